"""Copies in memory between saves under ``rtj run``: what a killed rank costs, and what a lost worker does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import moments
import pytest
from moments import WAIT, Wish
from training_run import TrainingRun, assert_same, causes

pytestmark = pytest.mark.timeout(600)
Undisturbed = Callable[..., dict[str, Any]]
STEP = ("--step-seconds", "0.2")  # a dozen of them are worth waiting for, also on a busy machine


def both(attempt: int, nth: int) -> list[Wish]:
    """Both ranks wait in that step of an attempt, when the one before it is copied on both."""
    return [Wish(moments.STEP, attempt, rank, WAIT, nth=nth) for rank in (0, 1)]


def test_a_killed_rank_costs_the_steps_since_the_last_copy(
    training: TrainingRun, undisturbed: Undisturbed
) -> None:
    """Far from any save, bit for bit and from memory; of what a lost worker held nothing is left, and the
    newest checkpoint counts. Copies are no checkpoints until then."""
    in_step_13, in_step_16 = both(1, 12), both(2, 3)
    training.wish(*in_step_13, *in_step_16)
    training.start_tiny("--workers", "2", "--memory-every", "1", steps=22, save_every=20, tiny=STEP)
    for wish in in_step_13:
        training.await_moment(wish)
    assert training.history("checkpoint") == []
    assert list(training.store.glob("step-*")) == []
    training.fault("kill-rank", "--rank", "1")
    for wish in in_step_16:
        training.await_moment(wish)
    training.fault("kill-worker", "--worker", training.worker_of(1), "--back-after", "0.1")
    status = training.finish()
    assert causes(status) == ["crash", "node_lost"]
    training.check(steps=22)
    found = [event["data"] for event in training.history("restored") if event["data"]["step"]]
    assert [one["step"] for one in found] == [12, 12]
    assert found[0]["storage_bytes"] == 0
    assert found[1]["memory_bytes"] == 0  # what is left of it is of step 15
    assert training.saved() == [12, 20, 22]
    assert [ending.rework_steps for ending in status.interruptions] == [0, 3]
    assert_same(training.result(), undisturbed(2, steps=22))
