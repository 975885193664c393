"""Real training is killed and resized, and ends with the weights it would have had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import moments
import pytest
from moments import Wish
from training_run import TrainingRun, assert_close, assert_same, causes

pytestmark = pytest.mark.timeout(900)
NOISY = ("--dropout", "0.1")  # every rank draws its own


@pytest.mark.parametrize(("wrap", "workers"), [("ddp", 1), ("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3)])
def test_same_weights_bit_for_bit(
    training: TrainingRun, undisturbed: Callable[..., dict[str, Any]], wrap: str, workers: int
) -> None:
    """Killed between steps and in mid-save, at one world size: weights and generators are the same."""
    tiny = ("--wrap", wrap, *NOISY)
    training.wish(
        Wish(moments.STEP, attempt=1, rank=workers - 1, nth=13),
        Wish(moments.BEFORE_MARKER, attempt=2, nth=2),
    )
    training.start_tiny("--workers", str(workers), tiny=tiny)
    status = training.finish()
    assert causes(status) == ["crash", "crash"]
    assert [ending.rework_steps for ending in status.interruptions] == [3, 10]
    training.check()
    assert_same(training.result(), undisturbed(workers, *tiny))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_other_sizes_same_samples(
    training: TrainingRun, undisturbed: Callable[..., dict[str, Any]], wrap: str
) -> None:
    """3 workers, 2 after one is killed, 3 when a machine comes: each sample once, weights nearly equal."""
    killed = Wish(moments.STEP, attempt=1, rank=2, nth=13, action=moments.WAIT)
    grows = Wish(moments.STEP, attempt=2, nth=3, action=moments.WAIT)
    training.wish(killed, grows)
    training.start_tiny("--workers", "1:3", "--grow-cooldown", "0", tiny=("--wrap", wrap))
    training.await_moment(killed)
    training.fault("kill-worker", "--worker", training.worker_of(2))
    training.await_moment(grows)
    training.fault("add-worker")
    training.until(lambda status: status.attempt.state == "draining", "the drain to grow")
    training.let_go(grows)
    status = training.finish()
    assert [ending.cause for ending in status.interruptions] == ["node_lost", "scale"]
    assert [ending.rework_steps for ending in status.interruptions] == [3, 0]
    sizes = [(ending.size_before, ending.size_after) for ending in status.interruptions]
    assert sizes == [(3, 2), (2, 3)]
    training.check()
    assert_close(training.result(), undisturbed(1))
