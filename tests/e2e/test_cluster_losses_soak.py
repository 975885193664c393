"""Every way to lose a worker on a cluster, at every moment of a real training; run by ``make soak SEED=n``.

The seed gives the order of the cases, and which rank waits at the moment and which worker is hit. What takes
long by its nature is here, too.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import moments
import pytest
from cluster_run import ClusterRun, causes
from moments import KILL, WAIT, Wish

from bed.api import path
from bed.fixtures import AddNode

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SEED = os.environ.get("RESUMABLE_SOAK_SEED", "0")


@dataclass(frozen=True)
class Fault:
    """``causes`` that it may have. ``gentle``: there is time to drain, and no step may be done twice."""

    act: Callable[[ClusterRun, str], None]
    causes: tuple[str, ...]
    gentle: bool = False


def _kill_agent(run: ClusterRun, worker: str) -> None:
    os.kill(run.agent(worker), signal.SIGKILL)


def _stop_agent(run: ClusterRun, worker: str) -> None:
    os.kill(run.agent(worker), signal.SIGSTOP)


def _kill_rank(run: ClusterRun, worker: str) -> None:
    os.kill(run.ranks(worker)[0], signal.SIGKILL)


def _delete(run: ClusterRun, worker: str) -> None:
    run.api.delete(run.pod_path(worker))


def _remove(run: ClusterRun, worker: str) -> None:
    run.api.delete(run.pod_path(worker), gracePeriodSeconds=0)


def _spot(run: ClusterRun, worker: str) -> None:
    run.nodes.spot_notice(run.node_of(worker), "gke")


def _shut_down(run: ClusterRun, worker: str) -> None:
    run.nodes.shutdown(run.node_of(worker), 20.0)


FAULTS: Mapping[str, Fault] = {
    "rank killed": Fault(_kill_rank, ("crash",)),
    "agent killed": Fault(_kill_agent, ("node_lost",)),
    "agent stopped": Fault(_stop_agent, ("node_lost",)),
    "out of memory": Fault(lambda run, worker: run.nodes.oom(run.namespace, worker), ("oom",)),
    "pod deleted": Fault(_delete, ("evicted",), gentle=True),
    "pod removed": Fault(_remove, ("evicted",)),
    "pod evicted": Fault(lambda run, worker: run.evict(worker), ("evicted",), gentle=True),
    "queue's condition": Fault(lambda run, worker: run.stop_by_queue(worker), ("preempted",), gentle=True),
    "node taken away": Fault(_spot, ("preempted",), gentle=True),
    "node shut down": Fault(_shut_down, ("preempted", "drained"), gentle=True),
    "node dead": Fault(lambda run, worker: run.nodes.die(run.node_of(worker)), ("node_lost",)),
    "node rebooted": Fault(lambda run, worker: run.nodes.reboot(run.node_of(worker)), ("node_lost",)),
    "node removed": Fault(lambda run, worker: run.nodes.remove(run.node_of(worker)), ("node_lost",)),
}


def cases() -> list[tuple[str, str]]:
    found = list(itertools.product(FAULTS, moments.ALL))
    random.Random(SEED).shuffle(found)
    return found


@pytest.mark.parametrize(("fault", "moment"), cases())
def test_any_loss_at_any_moment(cluster_run: ClusterRun, add_node: AddNode, fault: str, moment: str) -> None:
    """Trained to the end, every sample once, whole checkpoints, and no cause but that of what was done."""
    run, done, draw = cluster_run, FAULTS[fault], random.Random(f"{SEED} {fault} {moment}")
    run.training(40, "--evaluate-every", "15", "--step-seconds", "0.02")
    run.own_nodes(*(add_node(cpu=1) for _ in range(3)))
    run.spec["recovery"] |= {"shrinkAfterSeconds": 30, "drainSeconds": 20}
    first = [Wish(moments.STEP, 1, 1, KILL, nth=13)] if moment in moments.AFTER_A_RESTART else []
    waits = 0 if moment in moments.OF_RANK_0 else draw.randrange(2)
    once = (*moments.AFTER_A_RESTART, moments.RENDEZVOUS, moments.FIRST_STEP)
    wish = Wish(moment, 1 + len(first), waits, WAIT, nth=1 if moment in once else 2)
    run.wish(*first, wish)
    run.create(min=1)
    run.await_moments(wish)
    run.wait(lambda: run.status().attempt.number == wish.attempt, "the attempt to be in status")
    worker = run.members()[draw.randrange(2)]
    done.act(run, worker)
    if done.gentle:
        run.until_event("Draining")
    else:  # a rank that nobody could stop goes on as a zombie, and must not win
        run.until(lambda status: len(status.interruptions) > len(first), "the attempt to end")
    run.let_go(wish)
    status = run.finish_exact()
    found = causes(status)[len(first) :]
    assert set(found) <= {*done.causes, "scale"}
    assert found[0] in done.causes
    if done.gentle:
        assert sum(ending.rework_steps for ending in status.interruptions[len(first) :]) == 0


def test_dead_pod_is_forced_away(cluster_run: ClusterRun, add_node: AddNode) -> None:
    """A pod that nobody is left to end holds nobody up, and is forced away after a minute, with an Event."""
    run = cluster_run.faking()
    run.own_nodes(*(add_node(cpu=1) for _ in range(3)))
    run.create()
    run.until_step(30)
    lost = run.members()[1]
    run.nodes.die(run.node_of(lost))
    run.until_goes_on(2, size=2)
    assert run.pods()[lost]["status"]["phase"] == "Running"
    run.until_event("DeletionForced", lost)
    run.wait(lambda: lost not in run.pods(), "the dead pod to go")
    assert run.status().attempt.number == 2


def test_claim_comes_later(cluster_run: ClusterRun) -> None:
    """A claim that is created after the job is seen, and the job starts by itself."""
    run = cluster_run.faking()
    where = path("v1", "persistentvolumeclaims", run.namespace)
    run.spec["checkpoint"]["persistentVolumeClaim"]["claimName"] = "later"
    run.create()
    run.until(lambda _: run.conditions().get("Valid") == ("False", "ClaimNotFound"), "the condition")
    assert run.pods() == {}
    wanted = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    run.api.create(where, {"metadata": {"name": "later"}, "spec": wanted})
    run.until_step(10)
    assert run.conditions()["Valid"] == ("True", "Checked")
