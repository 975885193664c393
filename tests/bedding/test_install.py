"""Installing the chart: an operator that can't come up is said soon, with its own last words."""

import socket
import time

import pytest

from bed import install as module
from bed.control_plane import ControlPlane
from bed.install import InstallFailed, install, is_free, own_values, trouble_of, uninstall
from bed.nodes import Nodes
from bed.processes import wait_until

SECONDS = 60
RELEASE = "fails"
BROKEN = {
    "crash": ({"extraArgs": ["--no-such-option"]}, r"exit code 2(?s:.*)--no-such-option"),
    "image": ({"image": {"repository": "nowhere/operator"}}, "ImagePullBackOff"),
}


@pytest.mark.parametrize("broken", list(BROKEN))
def test_operator_that_cannot_come_up_is_said_soon(
    control_plane: ControlPlane, nodes: Nodes, namespace: str, job_kind: str, broken: str
) -> None:
    """Long before Helm gives up the error has the container's state and log; mended, it installs."""
    values, words = BROKEN[broken]
    began = time.monotonic()
    own = {"watchNamespaces": [namespace]}
    try:
        with pytest.raises(InstallFailed, match=words):
            install(control_plane, {**own, **values}, release=RELEASE, namespace=namespace)
        assert time.monotonic() - began < module.WAIT_SECONDS / 2
        where = {"release": RELEASE, "namespace": namespace}
        wait_until(
            lambda: trouble_of(control_plane, **where) is not None, SECONDS, "trouble to be seen again"
        )
        install(control_plane, own, **where)
        assert trouble_of(control_plane, **where) is None
    finally:
        uninstall(control_plane, release=RELEASE, namespace=namespace)


def test_port_taken_on_all_addresses_is_left_alone(control_plane: ControlPlane) -> None:
    """The operator gets another port; one taken on a pod's address only is no reason to change."""
    port = own_values(control_plane)["port"]
    with socket.create_server(("127.3.3.3", port)):
        assert own_values(control_plane)["port"] == port
    with socket.create_server(("0.0.0.0", port)):
        assert not is_free(port)
        assert own_values(control_plane)["port"] not in (port, 8080)


def test_files_that_pods_cannot_read_are_said_first(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed from a checkout that only root may read."""
    monkeypatch.setattr(module.image_files, "unreadable", lambda: "/private")
    with pytest.raises(InstallFailed, match=r"may not read /private.*chmod"):
        install(control_plane, release=RELEASE, namespace="none")
