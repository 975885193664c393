"""What happens to a job's pods on a real API server: each is answered by a new attempt, with the right cause.

Ranks are fakes, so a test takes seconds. The pods that nothing happens to must go on as they are, with their
ranks restarted inside them.
"""

from __future__ import annotations

import os
import signal

import pytest
from cluster_run import ClusterRun, causes

from bed.api import ApiError, path
from resumable_training.contract.labels import LABEL_JOB

pytestmark = pytest.mark.timeout(300)

LATE = 10_000  # no checkpoint before a drain, so that nothing spent is given back


def test_killed_agent(cluster_run: ClusterRun) -> None:
    """A pod fails: its place gets another pod, the other one goes on in its container."""
    run = cluster_run.faking().create()
    run.until_step(30)
    first, second = run.members()
    kept, ranks = run.life(first), run.ranks(first)
    os.kill(run.agent(second), signal.SIGKILL)
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.worker, ending.attempt) == ("node_lost", second, 1)
    assert (ending.size_before, ending.size_after) == (2, 2)
    assert run.members() == [first, "train-1-2"]
    assert run.life(first) == kept
    assert set(run.ranks(first)).isdisjoint(ranks)
    run.until_event("Interrupted", "attempt 1 ended: node_lost")
    assert run.conditions()["Running"] == ("True", "AttemptRunning")


def test_removed_pod(cluster_run: ClusterRun) -> None:
    """A pod that is deleted without grace counts as lost, not as finished."""
    run = cluster_run.faking().create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(second)
    run.api.delete(run.pod_path(first), gracePeriodSeconds=0)
    status = run.until_goes_on(2)
    assert causes(status) == ["evicted"]
    assert run.members() == ["train-0-2", second]
    assert run.life(second) == kept


def test_evicted_pod(cluster_run: ClusterRun) -> None:
    """A disruption budget protects the job; an eviction that it allows lets it drain, and costs no step."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    budgets = path("policy/v1", "poddisruptionbudgets", run.namespace)
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {LABEL_JOB: run.name}}}
    run.api.create(budgets, {"metadata": {"name": "one"}, "spec": spec})
    budget = f"{budgets}/one"
    run.wait(lambda: run.api.get(budget)["status"].get("expectedPods") == 2, "the budget to count pods")
    with pytest.raises(ApiError) as refused:
        run.evict(second)
    assert refused.value.status == 429
    assert run.status().attempt.number == 1

    run.api.patch(budget, {"spec": {"maxUnavailable": 1}})
    run.wait(lambda: run.api.get(budget)["status"]["disruptionsAllowed"] == 1, "the budget to allow one")
    run.evict(second)
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.rework_steps) == ("evicted", 0)
    assert len(status.budgets.preemption) == 1
    assert run.life(first) == kept
    assert "EvictionByEvictionAPI" in ending.message


def test_out_of_memory(cluster_run: ClusterRun) -> None:
    """The kernel's verdict is kept, and paid for as infrastructure."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    second = run.members()[1]
    run.nodes.oom(run.namespace, second)
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.worker) == ("oom", second)
    assert (len(status.budgets.infrastructure), status.budgets.without_progress) == (1, 1)
    assert status.budgets.user_error == status.budgets.preemption == ()


def test_condition_of_a_queue(cluster_run: ClusterRun) -> None:
    """Kueue's own condition, before it deletes anything, is a notice: drain, and replace the pod."""
    run = cluster_run.faking(checkpoint_every=LATE).create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    run.stop_by_queue(second)
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.rework_steps) == ("preempted", 0)
    assert run.members() == [first, "train-1-2"]
    assert run.life(first) == kept


def test_silent_agent(cluster_run: ClusterRun) -> None:
    """An agent that says nothing, and that its neighbour can't reach either, is lost, though its pod runs."""
    run = cluster_run.faking().create()
    run.until_step(30)
    first, second = run.members()
    kept = run.life(first)
    os.kill(run.agent(second), signal.SIGSTOP)
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.worker) == ("node_lost", second)
    assert "silent" in ending.message
    assert run.life(first) == kept
    run.wait(lambda: second not in run.pods(), "the silent pod to go")


def test_failed_rank(cluster_run: ClusterRun) -> None:
    """The script's own error: ranks restart in both pods, its last words are kept, the user's budget pays."""
    words = "ValueError: the batch is empty"
    fault = ("--exit-at", "30", "--only-rank", "1", "--only-attempt", "1", "--message", words)
    run = cluster_run.faking(*fault, checkpoint_every=LATE).create()
    run.until(lambda status: bool(status.attempt.running_at), "attempt 1")
    lives = {worker: run.life(worker) for worker in run.members()}
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.rank, ending.code) == ("crash", 1, 1)
    assert any(words in line for line in ending.tail)
    assert len(status.budgets.user_error) == 1
    assert {worker: run.life(worker) for worker in run.members()} == lives


def test_hung_rank(cluster_run: ClusterRun) -> None:
    """A rank that gets no further is found by its agent; pods stay."""
    fault = ("--hang-at", "30", "--only-rank", "1", "--only-attempt", "1")
    run = cluster_run.faking(*fault)
    run.spec["recovery"]["hangSeconds"] = 5
    run.create()
    run.until(lambda status: bool(status.attempt.running_at), "attempt 1")
    lives = {worker: run.life(worker) for worker in run.members()}
    status = run.until_goes_on(2)
    ending = status.last_interruption
    assert ending is not None
    assert (ending.cause, ending.rank) == ("hang", 1)
    assert {worker: run.life(worker) for worker in run.members()} == lives


def test_spare(cluster_run: ClusterRun) -> None:
    """A spare takes the lost worker's place at once; a new spare is made."""
    run = cluster_run.faking().create(spares=1)
    run.until_step(30)
    run.until_condition("WorkersReady", "True", "AllReady")  # the spare, too
    (spare,) = set(run.pods()) - set(run.members())
    first, second = run.members()
    os.kill(run.agent(second), signal.SIGKILL)
    status = run.until_goes_on(2, size=2)
    assert set(run.members()) == {first, spare}
    assert causes(status) == ["node_lost"]
    run.wait(lambda: len(run.pods().keys() - {first, spare, second}) == 1, "a new spare")
    run.until(lambda status: status.attempt.number == 2, "the spare to change nothing")
