"""The recorder of rank 0: what it notes of steps, and what that costs the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from resumable_training.checkpoint.history import AttemptHistory, parse_history
from resumable_training.checkpoint.reports import Fallback, RestoreReport, SaveReport
from resumable_training.launch import Launch
from resumable_training.phases import PhaseClock, StepKind
from resumable_training.recorder import Recorder

MS = 1_000_000


class Rank0:
    """A session with a clock that a test moves."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.clock = PhaseClock(None, 0, now_ns=lambda: self.now_ns)
        launch = Launch(world_size=4, job="team/gpt", job_uid="u-1", attempt=3)
        self.session: Any = SimpleNamespace(clock=self.clock, launch=launch, step=0)
        self.recorder = Recorder(self.session)

    def step(self, ms: int = 100, **values: Any) -> None:
        """One step of that length, counted and shown to the recorder."""
        self.clock.begin_step(StepKind())
        self.now_ns += ms * MS
        self.session.step += 1
        loss = values.get("loss")
        self.clock.end_step(
            self.session.step, self.session.step * 8, 0, None if loss is None else float(loss)
        )
        self.recorder.after_step(values)

    def written(self) -> AttemptHistory:
        """What goes along with a save now."""
        read = parse_history(1, "\n".join(self.recorder.lines()).encode())
        assert read is not None
        return read


@pytest.fixture
def rank() -> Rank0:
    return Rank0()


def test_it_says_whose_history_it_is(rank: Rank0) -> None:
    """Attempt, size, job: what a reader needs to put it in its place."""
    begin = rank.written().begin
    assert (begin.attempt, begin.world_size, begin.job, begin.job_uid) == (3, 4, "team/gpt", "u-1")


def test_steps_are_noted_at_a_pace_not_one_by_one(rank: Rank0) -> None:
    """A thousand steps of a millisecond make a handful of lines; totals are those of the clock."""
    for _ in range(1000):
        rank.step(ms=1, loss=1.0)
    steps = rank.written().steps
    assert 5 <= len(steps) <= 8
    assert (steps[-1].step, steps[-1].samples) == (1000, 8000)
    assert steps[-1].phase_ms == {"productive": 1000}
    assert steps[-1].ms == 1000


def test_each_save_brings_the_newest_moment(rank: Rank0) -> None:
    """What was done since the last note is not lost with the rank, if it dies after this commit."""
    rank.step(ms=300, loss=2.0)
    rank.step(ms=50, loss=1.5)
    read = rank.written()
    assert [step.step for step in read.steps] == [1, 2]
    assert [step.loss for step in read.steps] == [2.0, 1.5]
    assert read.committing is not None
    assert read.committing.step == 2
    assert len(rank.written().steps) == 2  # nothing new: nothing twice


def test_values_are_numbers_as_they_were_at_their_step(rank: Rank0) -> None:
    """A tensor that is changed in place afterwards, or that has a graph behind it, does no harm."""
    total = torch.tensor(1.0, requires_grad=True) * 2
    rank.step(ms=300, loss=total, rate=0.1, grid=torch.ones(3), name="x", odd=1j, count=7)
    with torch.no_grad():
        total.add_(5)
    (step,) = rank.written().steps
    assert (step.loss, step.values) == (2.0, {"rate": 0.1, "count": 7.0})


def test_a_loss_that_is_no_number_is_left_out(rank: Rank0) -> None:
    """JSON has no NaN; the line with its step is there all the same."""
    rank.step(ms=300, loss=float("nan"), other=float("inf"))
    (step,) = rank.written().steps
    assert (step.loss, step.values) == (None, {})


def test_many_steps_without_a_save_do_not_pile_up(rank: Rank0) -> None:
    """A job that saves once a day keeps no more in memory than one that saves every minute."""
    for _ in range(3000):
        rank.step(ms=250, loss=torch.tensor(1.0))
    assert len(rank.recorder._waiting) <= 256
    assert len(rank.written().steps) <= 600


def test_restore_saves_and_drain_are_lines(rank: Rank0) -> None:
    """With what was passed over, what a save cost, why one failed, and why it stops."""
    passed = (Fallback("step-00000040.2", "hash differs"),)
    rank.recorder.restored(RestoreReport("step-00000030.2", 3, 30, 240, {}, None, 4, passed, 0.5))
    rank.step(ms=300)
    rank.recorder.saved(SaveReport("step-00000031.3", 31, 248, 500, 20, 40), 60.0)
    rank.recorder.saved(SaveReport("step-00000032.3", 32, 256, ok=False, message="disk full"), None)
    rank.recorder.stopped("spot notice")
    read = rank.written()
    assert read.restored is not None
    assert (read.restored.step, read.restored.fallback[0]["why"]) == (30, "hash differs")
    assert [(save.bytes, save.message, save.interval_seconds) for save in read.saves] == [
        (500, "", 60.0),
        (0, "disk full", None),
    ]
    assert read.stop is not None
    assert read.stop.reason == "spot notice"


def test_a_fresh_start_is_told(rank: Rank0) -> None:
    """There was nothing to resume from."""
    rank.recorder.restored(None)
    restored = rank.written().restored
    assert restored is not None
    assert (restored.step, restored.checkpoint) == (0, "")
