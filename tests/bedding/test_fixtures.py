"""The fixtures give each test a place of its own, and take everything in it away."""

from collections.abc import Callable
from pathlib import Path

from bed.api import Object, path
from bed.control_plane import ControlPlane
from bed.fixtures import OWN, remove_namespace
from bed.nodes import Nodes
from bed.processes import wait_until

POD_SECONDS = 60


def _pod(name: str, **spec: object) -> Object:
    container = {"name": "c", "image": "busybox", "command": ["sleep", "1000"]}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def _start(plane: ControlPlane, namespace: str, pod: Object) -> Object:
    """The pod, running."""
    where = path("v1", "pods", namespace)
    plane.api.create(where, pod)
    one = f"{where}/{pod['metadata']['name']}"
    wait_until(lambda: plane.api.get(one)["status"].get("phase") == "Running", POD_SECONDS, f"{one} to run")
    return plane.api.get(one)


def test_own_nodes_are_for_own_pods(
    control_plane: ControlPlane, namespace: str, nodes: Nodes, add_node: Callable[..., str]
) -> None:
    """A pod that asks for the test's own node gets there; another is put on one of the four."""
    name = add_node(cpu=2)
    toleration = {"key": OWN, "operator": "Exists"}
    mine = _start(control_plane, namespace, _pod("mine", nodeSelector={OWN: name}, tolerations=[toleration]))
    other = _start(control_plane, namespace, _pod("other"))
    assert mine["spec"]["nodeName"] == name
    assert other["spec"]["nodeName"] in {"node-1", "node-2", "node-3", "node-4"}


def test_namespaces_go_with_their_pods(control_plane: ControlPlane, nodes: Nodes, namespace: str) -> None:
    """What the clean-up of a namespace does: it ends its pods' processes too, at once."""
    _start(control_plane, namespace, _pod("p"))
    [pid, *_] = nodes.pids(namespace, "p")
    remove_namespace(control_plane.api, namespace)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), POD_SECONDS, "the pod's process to end")
    place = path("v1", "namespaces", name=namespace)
    wait_until(lambda: control_plane.api.find(place) is None, POD_SECONDS, "the namespace to go")


def test_each_namespace_is_another(make_namespace: Callable[..., str], control_plane: ControlPlane) -> None:
    """Names differ, labels are set, and the default account is there for pods."""
    one, two = make_namespace(), make_namespace(team="a")
    assert one != two
    assert control_plane.api.get(path("v1", "namespaces", name=two))["metadata"]["labels"]["team"] == "a"
    assert control_plane.api.get(path("v1", "serviceaccounts", one, "default"))


def test_jobs_are_a_kind(control_plane: ControlPlane, job_kind: str) -> None:
    """The job's definition is installed and served."""
    assert control_plane.api.get(job_kind)["kind"] == "ResumableTrainingJobList"
    assert "rtj" in control_plane.kubectl("api-resources", "--api-group=resumable.dev").stdout
