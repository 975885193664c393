"""Helm, and the operator from the chart, as a user installs it. Used by standing.py and by tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bed.binaries import binary
from bed.control_plane import ControlPlane

CHART = Path(__file__).parents[2] / "charts" / "resumable-training"
NAMESPACE = "resumable-system"
RELEASE = "resumable-training"
WAIT_SECONDS = 180

PORTS = range(8100, 9000)


def own_values(plane: ControlPlane) -> Mapping[str, Any]:
    """Values for the bed, where all pods share the machine's ports: the operator serves on its pod's address,
    and not on a port that others like to take on all addresses, and would then answer its probes on."""
    return {"bindAddress": "$(POD_IP)", "port": PORTS[plane.port % len(PORTS)]}


class InstallFailed(Exception):
    """Helm gave up; the message has its words and the state of the operator's pods."""


def helm(
    plane: ControlPlane, *arguments: str | Path, input: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Helm as admin of this cluster, with none of the user's own Helm files; it is not checked."""
    home = plane.directory / "helm"
    own = {name: str(home / name) for name in ("HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME")}
    return subprocess.run(
        [binary("helm"), *arguments],
        env={**os.environ, **own, "KUBECONFIG": str(plane.kubeconfig)},
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        check=False,
    )


def install(
    plane: ControlPlane,
    values: Mapping[str, Any] | None = None,
    *,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> None:
    """Install the chart, or upgrade to it, with `values` over `own_values`; returns when it is available.

    Needs nodes. Raises InstallFailed.
    """
    result = helm(
        plane,
        *("upgrade", "--install", release, CHART, "--namespace", namespace, "--create-namespace"),
        *("--wait", "--timeout", f"{WAIT_SECONDS}s", "--values", "-"),
        input=json.dumps({**own_values(plane), **(values or {})}),
    )
    if result.returncode:
        pods = plane.kubectl("get", "pods,events", "-n", namespace, check=False).stdout
        log = plane.kubectl("logs", "-n", namespace, f"deploy/{release}", "--tail=20", check=False)
        raise InstallFailed(f"{result.stderr}\n{pods}\n{log.stdout}{log.stderr}")


def uninstall(plane: ControlPlane, *, release: str = RELEASE, namespace: str = NAMESPACE) -> None:
    """Remove the release; jobs and the CRD stay. Raises InstallFailed."""
    result = helm(plane, "uninstall", release, "--namespace", namespace, "--wait")
    if result.returncode:
        raise InstallFailed(result.stderr)
