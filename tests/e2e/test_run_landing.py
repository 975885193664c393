"""What outlives a rank under ``rtj run``: the save in flight, and the memory that it was stored from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import moments
import pytest
from moments import KILL, KILL_RANK, WAIT, Wish
from training_run import TrainingRun, assert_same, causes

pytestmark = pytest.mark.timeout(600)
Undisturbed = Callable[..., dict[str, Any]]
STEP = ("--step-seconds", "0.05")  # ten of them are worth waiting for


def restored(training: TrainingRun) -> list[dict[str, Any]]:
    return [event["data"] for event in training.history("restored") if event["data"]["step"]]


def test_ranks_die_before_their_save_is_committed(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """Each copy that was complete lands and is resumed from memory: no step is done twice, bit for bit."""
    training.wish(
        Wish(moments.BEFORE_MARKER, 1, 0, KILL_RANK),
        Wish(moments.BEFORE_MARKER, 2, 0, KILL_RANK),
    )
    training.start_tiny("--workers", "1", "--processes-per-worker", "2", tiny=STEP)
    status = training.finish()
    assert causes(status) == ["crash"] * 2
    training.check()
    found = restored(training)
    assert [one["step"] for one in found] == [10, 20]
    assert [one["storage_bytes"] for one in found] == [0, 0]
    assert all(one["memory_bytes"] for one in found)
    assert training.saved() == [10, 20, 30, 40]
    assert [ending.rework_steps for ending in status.interruptions] == [0, 0]
    assert "step-00000010.1, in flight when the attempt before ended, has landed" in training.log(2)
    assert_same(training.result(), undisturbed(2, *STEP))


def test_what_is_lost_with_a_machine_comes_from_storage(
    training: TrainingRun, undisturbed: Undisturbed
) -> None:
    """A worker that survives has its part in memory, the replaced one reads its own; a killed writer's save
    is the one before."""
    here, shards = Wish(moments.STEP, 1, 1, WAIT, nth=14), Wish(moments.SHARDS, 2, 1, KILL)
    training.wish(here, shards)
    training.start_tiny("--workers", "2", tiny=STEP)
    training.await_moment(here)
    training.fault("kill-worker", "--worker", training.worker_of(1), "--back-after", "0.1")
    status = training.finish()
    assert causes(status) == ["node_lost", "crash"]
    training.check()
    first, second = restored(training)
    assert (first["step"], second["step"]) == (10, 10)
    assert first["memory_bytes"] > 0
    assert first["storage_bytes"] > 0
    assert second["memory_bytes"] == 0  # it holds step 20, which has not landed
    assert second["storage_bytes"] > 0
    assert_same(training.result(), undisturbed(2, *STEP))
