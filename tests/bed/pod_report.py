"""What a fake kubelet tells the API about one pod: pod_status.py, and what is remembered between reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bed import pod_status
from bed.kubelet_node import seconds
from bed.pod_status import TERMINAL, Object


@dataclass(frozen=True)
class Verdict:
    """Why the kubelet itself ends a pod. `condition` adds DisruptionTarget."""

    reason: str
    message: str
    condition: bool = False


class PodReport:
    """Keeps the phase that was told last, and since when each condition is what it is."""

    def __init__(self, spec: Object, known: Object, address: str, host: str) -> None:
        self._spec = spec
        self._addresses = (address, host)
        self._phase = "Pending"
        self._conditions: dict[str, Object] = {item["type"]: item for item in known.get("conditions") or []}
        self._began = known.get("startTime") or seconds()

    def status(
        self,
        inits: Sequence[Object],
        mains: Sequence[Object],
        pod: Object,
        *,
        sandbox: bool,
        stopped: bool,
        verdict: Verdict | None,
    ) -> Object:
        """The whole status, for a strategic merge patch. A terminal phase is told when all has `stopped`."""
        statuses = {item["name"]: item for item in (*inits, *mains)}
        phase = pod_status.phase(self._spec, statuses, stopped)
        if phase in TERMINAL and not stopped:
            phase = self._phase
        verdict = verdict if stopped else None
        self._phase = phase = "Failed" if verdict else phase
        others = (pod.get("status") or {}).get("conditions") or []
        conditions = pod_status.conditions(self._spec, statuses, phase, sandbox, others)
        if verdict is not None and verdict.condition:
            disruption = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
            conditions.append({**disruption, "message": verdict.message})
        address, host = self._addresses
        return {
            "phase": phase,
            "observedGeneration": pod["metadata"].get("generation", 1),
            "conditions": [self._timed(item) for item in conditions],
            "startTime": self._began,
            "hostIP": host,
            "hostIPs": _replaced([{"ip": host}]),
            "podIP": address,
            "podIPs": _replaced([{"ip": address}]),
            "initContainerStatuses": list(inits),
            "containerStatuses": list(mains),
            **({"reason": verdict.reason, "message": verdict.message} if verdict else {}),
        }

    def _timed(self, condition: Object) -> Object:
        """With the time of its last change; absent reasons are taken away explicitly."""
        old = self._conditions.get(condition["type"]) or {}
        same = old.get("status") == condition["status"]
        since = old.get("lastTransitionTime") if same else None
        full = {"reason": None, "message": None, **condition, "lastTransitionTime": since or seconds()}
        self._conditions[condition["type"]] = full
        return full


def _replaced(items: Sequence[Object]) -> list[Object]:
    """A list that a strategic merge patch would merge by key, to take the old one's place."""
    return [{"$patch": "replace"}, *items]
