"""Real training on a real API server: whatever happens to it, every sample counts once.

Ranks wait in an evaluation for what a test does to them, so that it happens at the same step everywhere.
"""

from __future__ import annotations

from pathlib import Path

import moments
import pytest
from cluster_run import ClusterRun, causes, unplanned

from bed.fixtures import AddNode

pytestmark = pytest.mark.timeout(400)

TORCHRUN = Path(__file__).parent.parent / "fakes" / "torchrun_script.py"
EVALUATE = ("--evaluate-every", "12")


def test_trains_to_the_end(cluster_run: ClusterRun) -> None:
    """Two workers train on one volume; every sample once, nothing left but pods that have ended."""
    run = cluster_run.training(40).create()
    status = run.finish_exact()
    assert (status.attempt.number, status.interruptions) == (1, ())
    assert run.conditions()["Valid"] == ("True", "Checked")
    run.until_event("Succeeded")
    assert len(run.events("AttemptReserved")) == len(run.events("Succeeded")) == 1
    run.wait(
        lambda: [pod["status"]["phase"] for pod in run.pods().values()] == ["Succeeded"] * 2,
        "the kubelets to tell that both pods have ended",
    )


def test_deleted_pod(cluster_run: ClusterRun) -> None:
    """`kubectl delete pod` drains inside the pod's grace: not a step is done twice."""
    run = cluster_run.training(40, *EVALUATE)
    held = run.hold(1, ranks=2)
    run.wish(*held)
    run.create()
    run.await_moments(*held)
    first, second = run.members()
    kept = run.life(first)
    run.plane.kubectl("delete", "pod", second, "-n", run.namespace, "--wait=false")
    status = run.until_goes_on(2, size=2)
    assert run.life(first) == kept
    assert run.members() == [first, "train-1-2"]
    status = run.finish_exact()
    assert [(item.cause, item.rework_steps) for item in status.interruptions] == [("evicted", 0)]
    assert status.ledger.rework_steps == 0
    assert status.attempt.start_step >= 12


def test_spot_notice(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A spot taint: drain, go on smaller with no step done twice, grow when there is a machine again."""
    run = cluster_run.training(40, *EVALUATE)
    run.own_nodes(add_node(cpu=1), add_node(cpu=1))
    run.spec["recovery"] |= {"shrinkAfterSeconds": 1, "growCooldownSeconds": 1, "drainSeconds": 20}
    first_hold, second_hold = run.hold(1, ranks=2), run.hold(2, ranks=1)
    run.wish(*first_hold, *second_hold)
    run.create(min=1)
    run.await_moments(*first_hold)
    first, second = run.members()
    kept = run.life(first)
    run.nodes.spot_notice(run.node_of(second), "gke")
    run.await_moments(*second_hold)
    status = run.until_goes_on(2, size=1)
    assert run.members() == [first]
    run.until_condition("WorkersReady", "False", "Unschedulable")
    assert run.until_event("Draining", "will be taken away")

    run.own_nodes(add_node(cpu=1))
    status = run.until_goes_on(3, size=2)
    assert run.life(first) == kept
    status = run.finish_exact()
    assert causes(status) == ["preempted", "scale"]
    assert [(item.size_before, item.size_after) for item in status.interruptions] == [(2, 1), (1, 2)]
    assert status.ledger.rework_steps == 0


def test_dead_node(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A node falls silent: the job goes on elsewhere long before the pod is evicted, from its checkpoint."""
    run = cluster_run.training(40, *EVALUATE)
    run.own_nodes(add_node(cpu=1), add_node(cpu=1), add_node(cpu=1))
    held = run.hold(1, ranks=2, action=moments.WAIT)
    run.wish(*held)
    run.create()
    run.await_moments(*held)
    first, second = run.members()
    kept = run.life(first)
    run.nodes.die(run.node_of(second))
    run.until_goes_on(2, size=2)
    assert run.life(first) == kept
    assert run.members() == [first, "train-1-2"]
    old = run.pods()[second]
    assert old["status"]["phase"] == "Running", "nobody is left to tell of its end"
    status = run.finish_exact()
    (ending,) = unplanned(status)
    assert (ending.cause, ending.worker, ending.resumed_step) == ("node_lost", second, 10)
    assert status.ledger.rework_steps == 2


def test_suspend_and_resume(cluster_run: ClusterRun) -> None:
    """Suspended it drains, keeps no pod and no process; resumed it goes on at the same step."""
    run = cluster_run.training(40, *EVALUATE, save_every=1000)
    held = run.hold(1, ranks=2)
    run.wish(*held)
    run.create()
    run.await_moments(*held)
    run.change(suspend=True)
    status = run.until_phase("Suspended")
    run.until_condition("Suspended", "True", "SpecSuspend")
    assert not run.pods()  # who waits for the condition may rely on it
    run.wait(lambda: not run.processes(), "all processes to go")
    assert status.checkpoint is not None
    run.until_condition("WorkersReady", "False", "NoneWanted")
    run.change(suspend=False)
    status = run.finish_exact()
    assert causes(status) == ["suspend"]
    assert unplanned(status) == []
    assert status.ledger.rework_steps == 0
    assert status.ledger.phases["suspended"] > 0
    assert run.conditions()["Suspended"] == ("False", "Resolved")


def test_unmodified_script(cluster_run: ClusterRun) -> None:
    """A script that knows only torchrun and DCP is restarted from its newest complete checkpoint."""
    run = cluster_run
    run.container["command"] = ["python", str(TORCHRUN), "20", "12"]
    run.create()
    status = run.finish()
    assert [(ending.cause, ending.code) for ending in status.interruptions] == [("crash", 7)]
    assert status.attempt.number == 2
    log = run.plane.kubectl("logs", "train-0-1", "-n", run.namespace).stdout
    assert "rank 0 of 2 starts at 10" in log
    assert status.ledger.phases["running_opaque"] > 0
