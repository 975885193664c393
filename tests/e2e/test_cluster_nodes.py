"""What happens to nodes, on a real API server with the real scheduler, controllers and taints.

Ranks are fakes. Nodes are the test's own, with room for one worker each.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster_run import ClusterRun, causes, unplanned

from bed.api import path
from bed.fixtures import AddNode

pytestmark = pytest.mark.timeout(300)

LATE = 10_000  # no checkpoint before a drain


def faking_on(run: ClusterRun, add_node: AddNode, nodes: int, checkpoint_every: int = 20) -> ClusterRun:
    """Fake ranks on so many nodes of the test's own; quick to shrink and to grow."""
    run.faking(checkpoint_every=checkpoint_every)
    run.own_nodes(*(add_node(cpu=1) for _ in range(nodes)))
    run.spec["recovery"] |= {"shrinkAfterSeconds": 1, "growCooldownSeconds": 1, "drainSeconds": 20}
    return run


def node_path(name: str) -> str:
    return path("v1", "nodes", name=name)


def is_ready(run: ClusterRun, node: str) -> bool:
    conditions = run.api.get(node_path(node))["status"]["conditions"]
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def taint(run: ClusterRun, node: str, key: str, effect: str) -> None:
    """Beside those that it has."""
    found = run.api.get(node_path(node))
    taints = [*found["spec"].get("taints", ()), {"key": key, "effect": effect}]
    run.api.patch(node_path(node), {"spec": {"taints": taints}})


def test_graceful_shutdown(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A node that shuts down gives its pods time: they drain, the job goes on elsewhere at the same step."""
    run = faking_on(cluster_run, add_node, 3, checkpoint_every=LATE).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    run.nodes.shutdown(run.node_of(second), 20.0)
    status = run.until_goes_on(2, size=2)
    (ending,) = status.interruptions
    assert (ending.cause, ending.rework_steps) == ("preempted", 0)
    assert run.members() == [first, "train-1-2"]
    assert run.life(first) == kept


def test_node_object_deleted(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A machine and its Node vanish: known at once, whatever its pod's status still says."""
    run = faking_on(cluster_run, add_node, 3).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    run.nodes.remove(run.node_of(second))
    status = run.until_goes_on(2, size=2)
    (ending,) = status.interruptions
    assert (ending.cause, ending.worker) == ("node_lost", second)
    assert run.life(first) == kept


def test_reboot(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A node comes back under its name before anybody missed it: its pod has failed, and gets a successor."""
    run = faking_on(cluster_run, add_node, 2).create()
    run.until_step(30)
    first, second = run.members()
    kept, node = run.life(first), run.node_of(second)
    run.nodes.reboot(node)
    status = run.until_goes_on(2, size=2)
    assert causes(status) == ["node_lost"]
    assert run.members() == [first, "train-1-2"]
    assert run.node_of("train-1-2") == node
    assert run.life(first) == kept


def test_control_plane_cut_off(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """Nodes that only the control plane can't hear train on: no attempt is ended for that."""
    run = faking_on(cluster_run, add_node, 2).create()
    run.until_step(30)
    lives = {worker: run.life(worker) for worker in run.members()}
    nodes = [run.node_of(worker) for worker in lives]
    for node in nodes:
        run.nodes.partition(node)
    run.wait(lambda: not any(is_ready(run, node) for node in nodes), "the nodes to be missed")
    run.until_step(run.status().step + 100)
    for node in nodes:
        run.nodes.heal(node)
    run.wait(lambda: all(is_ready(run, node) for node in nodes), "the nodes to be heard")
    status = run.until_step(run.status().step + 50)
    assert (status.attempt.number, status.interruptions) == (1, ())
    assert {worker: run.life(worker) for worker in run.members()} == lives


def test_one_node_cut_off(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """One of the nodes is not heard, its agent is: replaced on purpose, with nothing lost."""
    run = faking_on(cluster_run, add_node, 3).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    run.nodes.partition(run.node_of(second))
    status = run.until_goes_on(2, size=2)
    assert causes(status) == ["drained"]
    assert status.interruptions[0].rework_steps == 0
    assert run.members() == [first, "train-1-2"]
    assert run.life(first) == kept


def test_emptied_by_a_taint(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """Somebody's NoExecute taint: the taint manager's deletion is an eviction, and drains."""
    run = faking_on(cluster_run, add_node, 3, checkpoint_every=LATE)
    run.pod["tolerations"][0]["effect"] = "NoSchedule"
    run.create()
    run.until_step(30)
    first, second = run.members()
    taint(run, run.node_of(second), "example.com/repair", "NoExecute")
    status = run.until_goes_on(2, size=2)
    (ending,) = status.interruptions
    assert (ending.cause, ending.rework_steps) == ("evicted", 0)
    assert "DeletionByTaintManager" in ending.message
    assert run.members() == [first, "train-1-2"]


def test_preempted_by_the_scheduler(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A pod of higher priority takes a worker's place: drain, go on smaller, grow when it has gone."""
    run = faking_on(cluster_run, add_node, 2, checkpoint_every=200).create(min=1)
    run.until_step(30)
    priority = f"high-{run.namespace}"
    classes = path("scheduling.k8s.io/v1", "priorityclasses")
    run.api.create(classes, {"metadata": {"name": priority}, "value": 1000})
    try:
        important = run.pod | {"containers": [sleeper()], "volumes": [], "priorityClassName": priority}
        important["terminationGracePeriodSeconds"] = 0
        body = {"metadata": {"name": "important"}, "spec": important}
        run.api.create(path("v1", "pods", run.namespace), body)
        status = run.until_goes_on(2, size=1)
        (ending,) = status.interruptions
        assert (ending.cause, ending.rework_steps, ending.size_after) == ("preempted", 0, 1)
        assert "PreemptionByScheduler" in ending.message
        run.until(lambda _: run.conditions()["WorkersReady"] == ("False", "Unschedulable"), "its condition")
        (kept,) = run.members()
        life = run.life(kept)
        run.api.delete(run.pod_path("important"))
        status = run.until_goes_on(3, size=2)
        assert causes(status) == ["preempted", "scale"]
        assert run.life(kept) == life
    finally:
        run.api.delete(f"{classes}/{priority}")


def sleeper() -> dict[str, Any]:
    return {
        "name": "sleep",
        "image": "python:3.11",
        "command": ["sleep", "1000"],
        "resources": {"requests": {"cpu": "1"}},
    }


def test_cordon(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A cordoned node keeps its worker, unless the job leaves such nodes (`drainOnCordon`)."""
    run = faking_on(cluster_run, add_node, 3).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    run.api.patch(node_path(run.node_of(second)), {"spec": {"unschedulable": True}})
    status = run.until_step(run.status().step + 50)
    assert (status.attempt.number, status.interruptions) == (1, ())
    run.change(recovery={"drainOnCordon": True})
    status = run.until_goes_on(2, size=2)
    assert causes(status) == ["drained"]
    assert "cordoned" in status.interruptions[0].message
    assert run.members() == [first, "train-1-2"]
    assert run.life(first) == kept


def test_no_room_for_a_replacement(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A replacement stays Pending: the job says why, goes on at once, and grows when there is room."""
    run = faking_on(cluster_run, add_node, 2)
    run.spec["recovery"]["shrinkAfterSeconds"] = 30
    run.create(min=1)
    run.until_step(30)
    first, second = run.members()
    node = run.node_of(second)
    kept = run.life(first)
    run.api.patch(node_path(node), {"spec": {"unschedulable": True}})
    run.api.delete(run.pod_path(second))
    status = run.until_goes_on(2, size=1)
    assert causes(status) == ["evicted"]
    assert run.members() == [first]
    assert "there is no room for more now" in run.until_event("AttemptReserved", "attempt 2")
    words = run.until_event("WorkersWaiting", "Unschedulable")
    assert "0/" in words, "the scheduler's own words"
    assert "train-1-2" in words
    run.api.patch(node_path(node), {"spec": {"unschedulable": False}})
    status = run.until_goes_on(3, size=2)
    assert causes(status) == ["evicted", "scale"]
    assert unplanned(status) == [status.last_interruption]
    assert run.life(first) == kept
    run.until(lambda _: run.conditions()["WorkersReady"] == ("True", "AllReady"), "all to be ready")


def test_no_room_at_all(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """Below `min` for too long the waiting pods are given back; with room the job begins."""
    run = faking_on(cluster_run, add_node, 1)
    run.spec["recovery"]["formingTimeoutSeconds"] = 2
    run.create()
    run.until_event("FormingTimeout", "given back")
    run.wait(lambda: not run.pods(), "the pods to be given back")
    assert run.status().attempt.number == 0
