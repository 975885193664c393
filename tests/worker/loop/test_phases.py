"""The phase clock: exclusive phases that sum to the time, and what the page shows."""

from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract.progress import ProgressPage
from resumable_training.phases import PhaseClock, StepKind, rework_share, started_ns

SECOND = 1_000_000_000


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


@pytest.fixture
def time() -> Time:
    return Time()


def seconds(clock: PhaseClock) -> dict[str, float]:
    return {phase: ns / SECOND for phase, ns in clock.progress.phase_ns.items() if ns}


def test_a_step_across_the_high_water_mark_is_divided(time: Time) -> None:
    """Work below the mark is rework, beyond it productive, by samples; the first step is warm-up."""
    clock = PhaseClock(None, 90 * SECOND, time)
    clock.enter("restoring")
    time.pass_(2)
    clock.begin_step(StepKind(first=True))
    time.pass_(3)
    clock.end_step(1, 10, 1, None)
    clock.begin_step(StepKind(rework_share=rework_share(10, 20, 14)))
    time.pass_(10)
    clock.end_step(2, 20, 1, 0.5)
    assert seconds(clock) == {"setup": 10, "restoring": 2, "warmup": 3, "rework": 4, "productive": 6}
    assert clock.progress.step_seconds == 10
    assert clock.progress.loss == 0.5


def test_waiting_for_data_is_counted_apart_but_not_in_the_first_step(time: Time) -> None:
    """The start of loader processes belongs to the warm-up."""
    clock = PhaseClock(None, time(), time)
    for first in (True, False):
        clock.begin_step(StepKind(first=first))
        clock.begin_data_wait()
        time.pass_(1)
        clock.end_data_wait()
        time.pass_(2)
        clock.end_step(1, 1, 0, None)
    assert seconds(clock) == {"warmup": 3, "data_stall": 1, "productive": 2}
    assert clock.progress.step_seconds == 3


def test_the_page_shows_a_declared_wait_for_rank_0(time: Time, tmp_path) -> None:
    """Inside a step it shows ``evaluating`` while rank 0 evaluates; what is counted stays productive."""
    page = ProgressPage(tmp_path / "page", create=True)
    clock = PhaseClock(page, time(), time)
    clock.begin_step(StepKind())
    clock.rank_0_evaluates(True)
    assert page.read().phase == "evaluating"
    time.pass_(5)
    clock.rank_0_evaluates(False)
    assert page.read().phase == "productive"
    clock.end_step(1, 1, 0, None)
    assert seconds(clock) == {"productive": 5}


MOVES = [
    "setup",
    "restoring",
    "evaluating",
    "checkpointing",
    "step",
    "first",
    "rework",
    "wait",
    "go",
    "end",
    "beat",
]


@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 10**10)), max_size=60))
def test_phases_sum_to_the_settled_time(moves: list[tuple[str, int]]) -> None:
    """Whatever happens, finished stretches sum to exactly the time from the start to the last change."""
    time = Time()
    clock = PhaseClock(None, 99 * SECOND, time)
    actions = {
        "step": lambda: clock.begin_step(StepKind()),
        "first": lambda: clock.begin_step(StepKind(first=True)),
        "rework": lambda: clock.begin_step(StepKind(rework_share=0.37)),
        "wait": clock.begin_data_wait,
        "go": clock.end_data_wait,
        "end": lambda: clock.end_step(1, 1, 0, None),
        "beat": clock.beat,
    }
    for move, elapsed in moves:
        time.now += elapsed
        actions[move]() if move in actions else clock.enter(move)
        progress = clock.progress
        assert sum(progress.phase_ns.values()) == progress.phase_since_ns - progress.started_ns


@pytest.mark.parametrize(
    ("start", "stop", "mark", "share"),
    [(0, 10, 0, 0), (0, 10, 10, 1), (0, 10, 25, 1), (10, 20, 15, 0.5), (10, 20, 5, 0), (5, 5, 9, 0)],
)
def test_rework_share(start: int, stop: int, mark: int, share: float) -> None:
    """The part of a step's samples that lies below the mark."""
    assert rework_share(start, stop, mark) == share


def test_this_process_was_started_in_the_past() -> None:
    """The start is before now and within this machine's uptime, and not after a rank was wanted."""
    now, started = monotonic_ns(), started_ns()
    assert 0 < now - started < 3600 * SECOND
    assert started_ns(now - SECOND // 1000) == now - SECOND // 1000
    assert abs(started_ns(1) - started) < SECOND
    assert now <= started_ns(now + 3600 * SECOND) <= monotonic_ns()
