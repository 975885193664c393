"""PURE: phase, conditions and status of a pod from those of its containers, by the kubelet's own rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

TERMINAL = ("Succeeded", "Failed")


def is_sidecar(container: Object) -> bool:
    """An init container that is started and kept running."""
    return container.get("restartPolicy") == "Always"


def restartable(spec: Object, container: Object, exit_code: int, init: bool = False) -> bool:
    """Whether the kubelet starts `container` again after `exit_code`."""
    policy = container.get("restartPolicy") or spec.get("restartPolicy", "Always")
    if init and not is_sidecar(container):
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def phase(spec: Object, statuses: Mapping[str, Object], stopped: bool) -> str:
    """The pod's phase. `stopped`: nothing of it will be started any more."""
    inits = [item for item in spec.get("initContainers") or [] if not is_sidecar(item)]
    sidecars = [item for item in spec.get("initContainers") or [] if is_sidecar(item)]
    mains = spec["containers"]
    if any(_failed_for_good(spec, item, statuses[item["name"]]) for item in inits):
        return "Failed"
    states = [statuses[item["name"]] for item in mains]
    begun = any(_ran(state) for state in states)
    waiting = any(not _ran(statuses[item["name"]]) for item in [*mains, *sidecars])
    uninitialised = any(not _initialised(item, statuses[item["name"]]) for item in inits) or (
        not begun and any(not statuses[item["name"]].get("started") for item in sidecars)
    )
    if (uninitialised or waiting) and not stopped:
        return "Pending"
    if any("running" in statuses[item["name"]]["state"] for item in [*mains, *sidecars]):
        return "Running"
    codes = [_exit_code(state) for state in states]
    if not stopped and any(
        code is not None and restartable(spec, item, code) for item, code in zip(mains, codes, strict=True)
    ):
        return "Running"
    return "Succeeded" if all(code == 0 for code in codes) else "Failed"


def conditions(
    spec: Object, statuses: Mapping[str, Object], pod_phase: str, sandbox: bool, others: Sequence[Object]
) -> list[Object]:
    """The kubelet's conditions, without times. `others` are what the API has, for readiness gates."""
    inits = spec.get("initContainers") or []
    begun = any(_ran(statuses[item["name"]]) for item in spec["containers"])
    incomplete = [item["name"] for item in inits if not _initialised(item, statuses[item["name"]])]
    watched = [*(item for item in inits if is_sidecar(item)), *spec["containers"]]
    unready = [item["name"] for item in watched if not statuses[item["name"]].get("ready")]
    ready = _readiness(unready, pod_phase)
    return [
        {"type": "PodReadyToStartContainers", "status": _word(sandbox and pod_phase not in TERMINAL)},
        _initialisation(incomplete if not begun else [], pod_phase),
        {"type": "Ready", **(ready if ready["status"] == "False" else _gated(spec, others))},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]


def _initialisation(incomplete: list[str], pod_phase: str) -> Object:
    if pod_phase == "Succeeded":
        return {"type": "Initialized", "status": "True", "reason": "PodCompleted"}
    if incomplete:
        return {
            "type": "Initialized",
            "status": "False",
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(incomplete)}]",
        }
    return {"type": "Initialized", "status": "True"}


def _readiness(unready: list[str], pod_phase: str) -> Object:
    if pod_phase in TERMINAL:
        return {"status": "False", "reason": "PodCompleted" if pod_phase == "Succeeded" else "PodFailed"}
    if unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        return {"status": "False", "reason": "ContainersNotReady", "message": message}
    return {"status": "True"}


def _gated(spec: Object, others: Sequence[Object]) -> Object:
    states = {item["type"]: item["status"] for item in others}
    missing = [
        gate["conditionType"]
        for gate in spec.get("readinessGates") or []
        if states.get(gate["conditionType"]) != "True"
    ]
    if not missing:
        return {"status": "True"}
    message = ", ".join(f'the status of pod readiness gate "{name}" is not "True"' for name in missing)
    return {"status": "False", "reason": "ReadinessGatesNotReady", "message": message}


def _word(value: bool) -> str:
    return "True" if value else "False"


def _ran(status: Object) -> bool:
    """Whether it was started at least once."""
    return "waiting" not in status["state"] or bool(status.get("lastState"))


def _initialised(container: Object, status: Object) -> bool:
    return bool(status.get("started") if is_sidecar(container) else status.get("ready"))


def _exit_code(status: Object) -> int | None:
    ended = status["state"].get("terminated") or (status.get("lastState") or {}).get("terminated")
    return None if ended is None else ended["exitCode"]


def _failed_for_good(spec: Object, container: Object, status: Object) -> bool:
    code = _exit_code(status)
    if code is None or code == 0 or "running" in status["state"]:
        return False
    return not restartable(spec, container, code, init=True)
