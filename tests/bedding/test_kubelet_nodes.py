"""What happens to nodes, and what is then seen on their pods: the bed's nodes with the real controllers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bed.api import Api, ApiError, path
from bed.control_plane import ControlPlane
from bed.kubelet_addresses import WISH
from bed.kubelet_node import NOTICES
from bed.nodes import Nodes, NodesError
from bed.pod_testing import PodWatch, condition, phase, pod, restarts, shell, state, tolerating
from bed.processes import wait_until

Object = dict[str, Any]
AddNode = Callable[..., str]

SECONDS = 30.0
SLEEPS = "sleep 1000 & wait"
ENDS = "trap 'exit 0' TERM; sleep 1000 & wait"


@pytest.fixture
def pods(control_plane: ControlPlane, nodes: Nodes, namespace: str) -> Iterator[PodWatch]:
    """A watch on the pods of a fresh namespace."""
    with PodWatch(control_plane.api, namespace) as watch:
        yield watch


def _node(api: Api, name: str) -> Object:
    return api.get(path("v1", "nodes", None, name))


def _ready(api: Api, name: str) -> str:
    return str(condition(_node(api, name), "Ready").get("status"))


def _taints(api: Api, name: str) -> dict[str, str]:
    return {item["key"]: item["effect"] for item in _node(api, name)["spec"].get("taints", [])}


def _run(pods: PodWatch, nodes: Nodes, *items: Object) -> dict[str, list[int]]:
    """Create pods; their pids by name when they run."""
    pods.create(*items)
    names = [item["metadata"]["name"] for item in items]
    for name in names:
        pods.until(name, phase("Running"))
    return {name: nodes.pids(pods.namespace, name) for name in names}


def _alive(pids: list[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def _disruption(found: Object) -> str | None:
    return condition(found, "DisruptionTarget").get("reason")


def test_a_new_node_is_ready_with_what_it_has(control_plane: ControlPlane, add_node: AddNode) -> None:
    """Ready, schedulable, with its own address, its resources, labels and taints."""
    name = add_node(cpu=3, memory="5Gi", gpus=8, labels={"zone": "z1"}, taints=["a=b:NoSchedule"], pods=7)
    node = _node(control_plane.api, name)
    assert _ready(control_plane.api, name) == "True"
    wanted = {"cpu": "3", "memory": "5Gi", "nvidia.com/gpu": "8", "pods": "7", "ephemeral-storage": "100Gi"}
    assert node["status"]["allocatable"] == node["status"]["capacity"] == wanted
    assert node["status"]["addresses"][0]["address"].startswith("127.")
    assert node["metadata"]["labels"]["zone"] == "z1"
    assert {"key": "a", "value": "b", "effect": "NoSchedule"} in node["spec"]["taints"]


def test_a_dead_node(control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch) -> None:
    """Its processes are gone at once, its pods stay Running, are marked and end as Terminating for ever."""
    name = add_node()
    pids = _run(
        pods,
        nodes,
        pod("leaves", shell(SLEEPS), node=name, tolerations=tolerating(0)),
        pod("stays", shell(SLEEPS), node=name, tolerations=tolerating(300)),
    )
    mark = pods.mark()
    nodes.die(name)
    began = time.monotonic()
    assert not _alive(pids["leaves"])
    marked = pods.until("leaves", lambda item: _disruption(item) is not None)
    assert _disruption(marked) == "DeletionByTaintManager"
    deleted = pods.until("leaves", lambda item: "deletionTimestamp" in item["metadata"])
    assert time.monotonic() - began < 15
    assert deleted["status"]["phase"] == "Running"
    assert _ready(control_plane.api, name) == "Unknown"
    assert _taints(control_plane.api, name)["node.kubernetes.io/unreachable"] == "NoExecute"
    lost = pods.until("stays", lambda item: condition(item, "Ready").get("status") == "False", since=mark)
    assert "deletionTimestamp" not in lost["metadata"]
    control_plane.kubectl("taint", "node", name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    found = pods.until("stays", lambda item: "deletionTimestamp" in item["metadata"])
    assert _disruption(found) == "DeletionByTaintManager"


def test_a_partition(control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch) -> None:
    """Processes run on, nothing is heard of them; then all is reported and what was missed is done."""
    name = add_node()
    stay: Object = {"node": name, "tolerations": tolerating(300), "terminationGracePeriodSeconds": 1}
    items = [pod(kind, shell(SLEEPS), **stay) for kind in ("stays", "deleted", "forced")]
    items.append(pod("ends", shell("until [ -e /tmp/end ]; do sleep 0.1; done; exit 3"), **stay))
    pids = _run(pods, nodes, *items)
    mark = pods.mark()
    nodes.partition(name)
    pods.delete("deleted")
    pods.delete("forced", gracePeriodSeconds=0)
    logs = control_plane.kubectl("logs", "-n", pods.namespace, "stays", "--request-timeout=5s", check=False)
    assert logs.returncode != 0
    wait_until(lambda: _ready(control_plane.api, name) == "Unknown", SECONDS, "the node to be missed")
    lost = pods.until("stays", lambda item: condition(item, "Ready").get("status") == "False", since=mark)
    assert lost["status"]["phase"] == "Running"
    assert all(_alive(found) for found in pids.values())
    Path(f"/proc/{pids['ends'][0]}/root/tmp/end").touch()
    wait_until(lambda: not _alive(pids["ends"]), SECONDS, "a process to end")
    mark = pods.mark()
    nodes.heal(name)
    pods.until("stays", lambda item: condition(item, "Ready").get("status") == "True", since=mark)
    assert state(pods.until("ends", phase("Failed"), since=mark))["terminated"]["exitCode"] == 3
    pods.gone("deleted")
    wait_until(lambda: not _alive(pids["deleted"] + pids["forced"]), SECONDS, "deleted pods to end")
    wait_until(lambda: _ready(control_plane.api, name) == "True", SECONDS, "the node to be ready again")
    assert nodes.pids(pods.namespace, "stays") == pids["stays"]


def test_a_graceful_shutdown(
    control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch
) -> None:
    """Pods fail as Terminated, even those that end with 0; new ones are rejected; then it is off."""
    name = add_node()
    items = [pod("ends", shell(ENDS), node=name), pod("slow", shell("trap '' TERM; " + SLEEPS), node=name)]
    pids = _run(pods, nodes, *items)
    nodes.shutdown(name, grace=2)
    wait_until(lambda: _ready(control_plane.api, name) == "False", SECONDS, "the node to be not ready")
    ready = condition(_node(control_plane.api, name), "Ready")
    assert (ready["reason"], ready["message"]) == ("KubeletNotReady", "node is shutting down")
    pods.create(pod("new", shell(SLEEPS), node=name))
    assert pods.until("new", phase("Failed"))["status"]["reason"] == "NodeShutdown"
    for pod_name, code in (("ends", 0), ("slow", 137)):
        found = pods.until(pod_name, phase("Succeeded", "Failed"))
        assert (found["status"]["phase"], found["status"]["reason"]) == ("Failed", "Terminated")
        assert _disruption(found) == "TerminationByKubelet"
        assert state(found)["terminated"]["exitCode"] == code
        assert "deletionTimestamp" not in found["metadata"]
    assert not _alive(pids["slow"])
    wait_until(lambda: _ready(control_plane.api, name) == "Unknown", SECONDS, "the node to be off")


def test_a_reboot(control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch) -> None:
    """Processes are gone; the node returns with another boot id, and its pods by their restart policy."""
    name = add_node()
    items = [
        pod("never", shell(SLEEPS), node=name),
        pod("always", shell(SLEEPS), node=name, restartPolicy="Always"),
        pod("done", shell("exit 0"), node=name),
    ]
    pods.create(items.pop())
    pods.until("done", phase("Succeeded"))
    pids = _run(pods, nodes, *items)
    boot = _node(control_plane.api, name)["status"]["nodeInfo"]["bootID"]
    mark = pods.mark()
    nodes.reboot(name)
    failed = pods.until("never", phase("Failed"), since=mark)
    assert state(failed)["terminated"]["exitCode"] == 255
    restarted = pods.until("always", lambda item: restarts(item) == 1, since=mark)
    assert restarted["status"]["phase"] == "Running"
    wait_until(
        lambda: _node(control_plane.api, name)["status"]["nodeInfo"]["bootID"] != boot, SECONDS, "the boot id"
    )
    assert not _alive([*pids["never"], *pids["always"]])
    assert control_plane.api.get(path("v1", "pods", pods.namespace, "done"))["status"]["phase"] == "Succeeded"


def test_a_removed_node(control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch) -> None:
    """The Node object and the processes are gone; the same name can come back as another node."""
    name = add_node()
    uid = _node(control_plane.api, name)["metadata"]["uid"]
    pids = _run(pods, nodes, pod("lost", shell(SLEEPS), node=name))
    nodes.remove(name)
    assert not _alive(pids["lost"])
    assert control_plane.api.find(path("v1", "nodes", None, name)) is None
    with pytest.raises(NodesError, match=f"no node {name}"):
        nodes.die(name)
    nodes.add(name)
    assert _node(control_plane.api, name)["metadata"]["uid"] != uid


@pytest.mark.parametrize("provider", sorted(NOTICES))
def test_spot_notices(
    control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch, provider: str
) -> None:
    """The provider's taint first, the end of the machine after the time given."""
    name = add_node()
    pids = _run(pods, nodes, pod("spot", shell(SLEEPS), node=name))
    nodes.spot_notice(name, provider, seconds=1.0)
    assert _taints(control_plane.api, name)[NOTICES[provider].key] == "NoSchedule"
    assert _alive(pids["spot"])
    wait_until(lambda: not _alive(pids["spot"]), SECONDS, "the end of the machine")


def test_taints_by_others(
    control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch
) -> None:
    """NoExecute deletes pods that do not tolerate it; they end gracefully, marked."""
    name = add_node()
    _run(pods, nodes, pod("pushed", shell(ENDS), node=name, tolerations=tolerating(300)))
    control_plane.kubectl("taint", "node", name, "maintenance=now:NoExecute")
    last = pods.gone("pushed")
    assert _disruption(last) == "DeletionByTaintManager"
    assert (last["status"]["phase"], state(last)["terminated"]["exitCode"]) == ("Succeeded", 0)


def test_the_eviction_api(control_plane: ControlPlane, nodes: Nodes, pods: PodWatch) -> None:
    """429 while a disruption budget forbids it; else the pod is marked and ends gracefully."""
    guarded = pod("guarded", shell(ENDS))
    guarded["metadata"]["labels"] = {"app": "guarded"}
    _run(pods, nodes, guarded, pod("free", shell(ENDS)))
    budgets = path("policy/v1", "poddisruptionbudgets", pods.namespace)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    control_plane.api.create(budgets, {"metadata": {"name": "b"}, "spec": spec})

    def evict(name: str) -> int:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            control_plane.api.create(path("v1", "pods", pods.namespace, name, "eviction"), body)
        except ApiError as error:
            return error.status
        return 201

    wait_until(
        lambda: control_plane.api.list(budgets)[0].get("status", {}).get("currentHealthy") == 1,
        SECONDS,
        "the budget to be counted",
    )
    assert evict("guarded") == 429
    assert evict("free") == 201
    assert _disruption(pods.gone("free")) == "EvictionByEvictionAPI"


def test_preemption(control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, pods: PodWatch) -> None:
    """The scheduler takes room from a pod of lower priority; the victim is marked and ends gracefully."""
    name = add_node(cpu=1)
    priority = {"metadata": {"name": pods.namespace}, "value": 1000}
    control_plane.api.create(path("scheduling.k8s.io/v1", "priorityclasses"), priority)
    needs = {"resources": {"requests": {"cpu": "800m"}}}
    where = {"nodeSelector": {"kubernetes.io/hostname": name}, "tolerations": tolerating(300)}
    try:
        _run(pods, nodes, pod("victim", shell(ENDS, **needs), **where))
        pods.create(pod("strong", shell(ENDS, **needs), priorityClassName=pods.namespace, **where))
        assert _disruption(pods.gone("victim")) == "PreemptionByScheduler"
        pods.until("strong", phase("Running"))
    finally:
        classes = path("scheduling.k8s.io/v1", "priorityclasses", None, pods.namespace)
        control_plane.api.delete(classes)


def test_eviction_by_the_kubelet(nodes: Nodes, pods: PodWatch) -> None:
    """Memory pressure fails the pod as Evicted, without deleting it."""
    _run(pods, nodes, pod("big", shell("trap '' TERM; " + SLEEPS)))
    nodes.evict(pods.namespace, "big")
    found = pods.until("big", phase("Failed"))
    assert found["status"]["reason"] == "Evicted"
    assert _disruption(found) == "TerminationByKubelet"
    assert "deletionTimestamp" not in found["metadata"]


def test_addresses(nodes: Nodes, pods: PodWatch) -> None:
    """Each pod has its own, none comes back by itself, and one can be asked for."""
    pods.create(pod("one", shell("exit 0")), pod("two", shell("exit 0")))
    found = [pods.until(name, phase("Succeeded"))["status"]["podIP"] for name in ("one", "two")]
    assert len(set(found)) == 2
    third = pod("three", shell("exit 0"))
    third["metadata"]["annotations"] = {WISH: found[0]}
    pods.create(third)
    assert pods.until("three", phase("Succeeded"))["status"]["podIP"] == found[0]


def test_commands_that_make_no_sense_are_refused(nodes: Nodes, namespace: str) -> None:
    """Errors name what was wrong."""
    with pytest.raises(NodesError, match="no node nowhere"):
        nodes.partition("nowhere")
    with pytest.raises(NodesError, match=f"no node runs a pod {namespace}/none"):
        nodes.pids(namespace, "none")
    with pytest.raises(ValueError, match="key=value:Effect"):
        nodes.add("bad", taints=["nonsense"])
    with pytest.raises(ValueError, match="one of aws"):
        nodes.spot_notice("node-1", "azure")
    with pytest.raises(NodesError, match="there is a node node-1 already"):
        nodes.add("node-1")
