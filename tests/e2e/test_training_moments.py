"""Real training is broken at every moment that matters; each time it ends exact and with whole checkpoints.

One run goes through many moments, so that a cold start is paid for once a moment and not twice.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import moments
import pytest
from moments import DRAIN, KILL, WAIT, Wish
from training_run import TrainingRun, assert_close, assert_same, causes, unplanned

from resumable_operator.cli import exitcodes

pytestmark = pytest.mark.timeout(900)
Undisturbed = Callable[..., dict[str, Any]]
EVALUATES = ("--evaluate-every", "15")


def broken_in_turn(action: str) -> list[Wish]:
    """A moment for each attempt. Saves are at 10, 20, 30; the evaluation is at 15."""
    turns = [
        (moments.RENDEZVOUS, 1, 1),
        (moments.FIRST_STEP, 0, 1),  # the second in a row, before anything was recovered
        (moments.EVALUATION, 0, 1),
        (moments.RESTORE, 1, 1),
        (moments.RECORD, 0, 1),
        (moments.SHARDS, 1, 1),
        (moments.BEFORE_MARKER, 0, 2),  # the save at 20 succeeds
        (moments.AFTER_MARKER, 0, 1),
    ]
    return [
        Wish(moment, attempt, rank, action, nth) for attempt, (moment, rank, nth) in enumerate(turns, start=1)
    ]


def test_rank_killed_at_every_moment(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """SIGKILL of one rank: each moment ends one attempt, and what was committed before it is not redone."""
    training.wish(*broken_in_turn(KILL))
    training.start_tiny("--workers", "2", tiny=EVALUATES)
    status = training.finish()
    assert causes(status) == ["crash"] * 8
    assert status.attempt.number == 9
    assert len(training.workers_created()) == 2
    training.check()
    assert len(moments.half_checkpoints(training.moments)) == 2
    starts = [event["data"]["step"] for event in training.history("restored")]
    assert [step for step in starts if step] == [10, 10, 20, 30]  # one died before it could tell
    assert_same(training.result(), undisturbed(2, *EVALUATES))


def test_worker_killed_at_every_moment(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """The same with a whole worker, which comes back under a new name each time."""
    wishes = broken_in_turn(WAIT)
    training.wish(*wishes)
    training.start_tiny("--workers", "2", tiny=EVALUATES)
    for wish in wishes:
        training.await_moment(wish)
        training.fault("kill-worker", "--worker", training.worker_of(wish.rank), "--back-after", "0.1")
    status = training.finish()
    assert causes(status) == ["node_lost"] * 8
    assert status.attempt.number == 9
    assert len(training.workers_created()) == 10
    training.check()
    assert_same(training.result(), undisturbed(2, *EVALUATES))


def test_all_workers_at_once(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """With every worker gone in one moment nothing but the store is left, and that is enough."""
    here = Wish(moments.STEP, action=WAIT, nth=15)
    training.wish(here)
    training.start_tiny("--workers", "2", tiny=EVALUATES)
    training.await_moment(here)
    for worker in (training.worker_of(0), training.worker_of(1)):
        training.fault("kill-worker", "--worker", worker, "--back-after", "1")
    status = training.finish()
    assert set(causes(status)) == {"node_lost"}
    training.check()
    assert_same(training.result(), undisturbed(2, *EVALUATES))


def test_preempted_without_rework(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """Notice in rendezvous, in the first step and in mid-save: committed each time, nothing is done twice."""
    wishes = [
        Wish(moments.RENDEZVOUS, 1, 1, WAIT),
        Wish(moments.FIRST_STEP, 2, 0, WAIT),
        Wish(moments.BEFORE_MARKER, 3, 0, WAIT),
    ]
    training.wish(*wishes)
    training.start_tiny("--workers", "1:4")
    for wish, rank in zip(wishes, (3, 1, 0), strict=True):
        training.await_moment(wish)
        training.fault("preempt", "--worker", training.worker_of(rank), "--grace", "120")
        training.until(lambda status: status.attempt.state == "draining", "the drain")
        training.let_go(wish)
    status = training.finish()
    assert causes(status) == ["preempted"] * 3
    assert [ending.size_after for ending in status.interruptions] == [3, 2, 1]
    assert sum(ending.rework_steps for ending in status.interruptions) == 0
    assert status.ledger.phases.get("rework", 0) == 0
    training.check()
    assert_close(training.result(), undisturbed(1))


def test_hang_is_found_and_explained(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """A rank silent in a step, then one stopped in mid-save: cause hang, and stacks in the logs."""
    silent = Wish(moments.STEP, 1, 1, WAIT, nth=13)
    stopped = Wish(moments.BEFORE_MARKER, 2, 0, WAIT)
    training.wish(silent, stopped)
    training.start_tiny("--workers", "2", "--hang-seconds", "15", tiny=EVALUATES)
    training.await_moment(stopped)
    training.fault("hang", "--rank", "0")
    status = training.finish()
    assert causes(status) == ["hang", "hang"]
    assert unplanned(status)[1].rank == 0
    assert "moments.py" in training.log(1, 1)  # where the silent one is
    assert "backward" in training.log(1, 0)  # where the other waits for it
    assert "[agent] stacks:" in training.log(2, 1)  # the stopped one can't answer
    training.check()
    assert_same(training.result(), undisturbed(2, *EVALUATES))


def test_rtj_run_killed_and_interrupted(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """SIGKILL of ``rtj run`` in mid-save, then Ctrl-C in an evaluation: the same command line continues."""
    in_save = Wish(moments.BEFORE_MARKER, 1, 0, WAIT)
    in_evaluation = [Wish(moments.EVALUATION, 2, rank, DRAIN) for rank in (0, 1)]
    training.wish(in_save, *in_evaluation)
    training.start_tiny("--workers", "2", tiny=EVALUATES)
    training.await_moment(in_save)
    training.signal(signal.SIGKILL)
    training.finish(-9)
    training.wait(lambda: not training.processes(), "all orphans to end")
    training.again()
    for wish in in_evaluation:
        training.await_moment(wish)
    training.signal(signal.SIGINT)
    drained = training.finish(exitcodes.DRAINED)
    assert (drained.step, drained.phase) == (15, "Suspended")
    assert training.processes() == []
    training.again()
    status = training.finish()
    assert status.attempt.start_step == 15
    training.check()
    assert_same(training.result(), undisturbed(2, *EVALUATES))
