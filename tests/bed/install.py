"""Helm, and the operator from the chart, as a user installs it. Used by standing.py and by tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bed import image_files
from bed.api import Object
from bed.binaries import binary
from bed.control_plane import ControlPlane

CHART = Path(__file__).parents[2] / "charts" / "resumable-training"
NAMESPACE = "resumable-system"
RELEASE = "resumable-training"
WAIT_SECONDS = 180
LOOK_SECONDS = 2.0
GIVE_UP_SECONDS = 20.0
LOG_LINES = 20

# Waiting for one of these, restarted so often, a container does not come up by itself.
HOPELESS: Mapping[str, int] = {"CrashLoopBackOff": 2, "ImagePullBackOff": 0, "CreateContainerConfigError": 0}

PORTS = range(8100, 9000)


def own_values(plane: ControlPlane) -> Mapping[str, Any]:
    """Values for the bed, where all pods share the machine's ports: the operator serves on its pod's address,
    and on a port that nobody has taken on all addresses, who would then answer its probes."""
    first = plane.port % len(PORTS)
    port = next((port for port in (*PORTS[first:], *PORTS[:first]) if is_free(port)), None)
    if port is None:
        raise InstallFailed(f"all ports from {PORTS[0]} to {PORTS[-1]} are taken on this machine")
    return {"bindAddress": "$(POD_IP)", "port": port}


def is_free(port: int) -> bool:
    """Nobody listens there on all addresses; one on a pod's address does no harm."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class InstallFailed(Exception):
    """Helm gave up; the message has its words and the state of the operator's pods."""


def helm(
    plane: ControlPlane, *arguments: str | Path, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Helm as admin of this cluster, with none of the user's own Helm files; it is not checked."""
    with _started(plane, arguments) as process:
        out, err = process.communicate(input)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def install(
    plane: ControlPlane,
    values: Mapping[str, Any] | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> None:
    """Install the chart, or upgrade to it, with `values` over `own_values`; returns when it is available.

    Needs nodes. Raises InstallFailed, at once when the operator's pod can't come up.
    """
    if closed := image_files.unreadable():
        raise InstallFailed(
            f"the operator's pod is not root and may not read {closed}: let others read and enter it "
            "(chmod o+rX), or use a clone elsewhere"
        )
    old = {pod["metadata"]["uid"] for pod in _pods(plane, namespace, release)}
    arguments = ("upgrade", "--install", release, CHART, "--namespace", namespace, "--create-namespace")
    wait = ("--wait", "--timeout", f"{WAIT_SECONDS}s", "--values", "-")
    given: str | None = json.dumps({**own_values(plane), **(values or {})})
    with _started(plane, (*arguments, *wait)) as process:
        while True:
            try:
                _, err = process.communicate(given, timeout=LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                given = None  # it is being read
            if trouble := trouble_of(plane, release=release, namespace=namespace, but=old):
                _give_up(process)
                raise InstallFailed(f"the operator does not come up: {trouble}")
    if process.returncode:
        listed = plane.kubectl("get", "pods,events", "-n", namespace, check=False).stdout
        states = "\n".join(_state(plane, pod) for pod in _pods(plane, namespace, release))
        raise InstallFailed(f"{err}\n{listed}\n{states}")


def trouble_of(
    plane: ControlPlane, *, release: str = RELEASE, namespace: str = NAMESPACE, but: Collection[str] = ()
) -> str | None:
    """Why a pod of the operator won't come up by itself; None: all may. `but`: uids that do not count."""
    for pod in _pods(plane, namespace, release):
        if pod["metadata"]["uid"] not in but and _is_hopeless(pod):
            return _state(plane, pod)
    return None


def _started(plane: ControlPlane, arguments: Collection[str | Path]) -> subprocess.Popen[str]:
    home = plane.directory / "helm"
    own = {name: str(home / name) for name in ("HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME")}
    return subprocess.Popen(
        [binary("helm"), *arguments],
        env={**os.environ, **own, "KUBECONFIG": str(plane.kubeconfig)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _give_up(process: subprocess.Popen[str]) -> None:
    """Let Helm write down that the release failed; else the next install waits for this one."""
    process.terminate()
    try:
        process.communicate(timeout=GIVE_UP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _pods(plane: ControlPlane, namespace: str, release: str) -> list[Object]:
    select = f"app.kubernetes.io/instance={release}"
    found = plane.kubectl("get", "pods", "-n", namespace, "-l", select, "-o", "json", check=False)
    return list(json.loads(found.stdout)["items"]) if found.returncode == 0 else []


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]


def _is_hopeless(pod: Object) -> bool:
    waiting = ((item, item["state"].get("waiting", {}).get("reason")) for item in _containers(pod))
    return any(reason in HOPELESS and item["restartCount"] >= HOPELESS[reason] for item, reason in waiting)


def _state(plane: ControlPlane, pod: Object) -> str:
    """How the pod's containers are, how they last ended, and what they said last."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    lines = [f"pod {name} is {pod.get('status', {}).get('phase', 'Pending')}"]
    for item in _containers(pod):
        lines.append(
            f"container {item['name']}, restarted {item['restartCount']} times: {_words(item['state'])}"
        )
        if item.get("lastState"):
            lines.append(f"it ended last with {_words(item['lastState'])}; its last lines:")
        elif "waiting" in item["state"]:
            continue  # it has never run
        previous = ("--previous",) if item.get("lastState") else ()
        what = ("logs", "-n", namespace, name, "-c", item["name"], f"--tail={LOG_LINES}", *previous)
        log = plane.kubectl(*what, check=False)
        lines.extend(f"  {line}" for line in (log.stdout or log.stderr).splitlines())
    return "\n".join(lines)


def _words(state: Object) -> str:
    """Of a container's state, e.g. "terminated, Error, exit code 1"."""
    [(kind, more)] = state.items()
    code = [f"exit code {more['exitCode']}"] if "exitCode" in more else []
    return ", ".join(filter(None, [kind, more.get("reason"), *code, more.get("message")]))


def uninstall(plane: ControlPlane, *, release: str = RELEASE, namespace: str = NAMESPACE) -> None:
    """Remove the release; jobs and the CRD stay. Raises InstallFailed."""
    result = helm(plane, "uninstall", release, "--namespace", namespace, "--wait")
    if result.returncode:
        raise InstallFailed(result.stderr)
