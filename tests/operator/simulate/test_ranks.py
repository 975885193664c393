"""The ranks of a simulated attempt: what they do when, and what they report."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.simulate.ranks import Ranks, Timing

TIMING = {"setup": 20, "rendezvous": 10, "restoring": 30, "warmup": 40, "step": 100, "blocking": 50}


def ranks(committed: int = 0, high_water: int = 0, interval: int = 300, **changed: int) -> Ranks:
    timing: dict[str, Any] = {**TIMING, "durable": 50, **changed}
    return Ranks(Timing(**timing, interval=lambda _: interval), 0, committed, high_water, committed > 0)


def live(one: Ranks, until: int) -> list[tuple[int, str]]:
    """All that is told up to ``until``, and when."""
    told = []
    while not one.stopped and one.next_at <= until:
        at = one.next_at
        word = one.proceed()
        if word != "nothing":
            told.append((at, word))
    return told


def test_a_life_from_start_to_the_second_save() -> None:
    """Set-up, rendezvous, restore, a step of warm-up; then three steps of 100 ms, a save of 50, and so on."""
    one = ranks()
    assert live(one, 1000) == [(60, "restored"), (100, "first step"), (450, "committed"), (800, "committed")]
    assert one.committed == 7
    report = one.report(1000)
    assert report.phase_ms == {
        "setup": 20,
        "rendezvous": 10,
        "restoring": 30,
        "warmup": 40,
        "productive": 800,
        "checkpointing": 100,
    }
    assert (report.step, report.settled_ms) == (9, 1000)


def test_steps_below_the_high_water_mark_are_rework() -> None:
    """Those that the attempt before had done and lost, the one of the warm-up left out of the time."""
    one = ranks(committed=10, high_water=12)
    live(one, 400)
    report = one.report(400)
    assert (report.phase_ms["rework"], report.phase_ms["productive"], report.rework_steps) == (100, 200, 2)


def test_a_save_that_is_not_durable_is_lost() -> None:
    """Training goes on meanwhile; a failure before the commit goes back to the checkpoint before."""
    one = ranks(durable=250)
    live(one, 620)
    assert one.report(620).phase_ms["productive"] == 400
    one.kill(630)
    assert (one.committed, one.report(9999).step) == (0, 5)


def test_one_save_at_a_time() -> None:
    """The next begins when the one before is durable, however short the interval is."""
    one = ranks(interval=100, durable=1000)
    commits = [at for at, told in live(one, 5000) if told == "committed"]
    assert commits[0] == 100 + 100 + 1000
    assert all(later - earlier >= 1000 for earlier, later in pairwise(commits))


@given(
    *(st.integers(1, 2000), st.integers(1, 3000), st.integers(0, 500), st.integers(1, 3000)),
    *(st.integers(0, 4), st.integers(0, 250)),
)
def test_a_save_begins_at_the_end_of_the_step_in_which_the_one_before_is_durable(
    step: int, durable: int, blocking: int, interval: int, every: int, copy: int
) -> None:
    """Or when the interval is over if that is later: as regularly where steps do not divide either. Copies
    in between take their own time."""
    one = ranks(interval=interval, step=step, durable=durable, blocking=blocking, copy=copy, copy_every=every)
    commits: list[int] = []
    while len(commits) < 6:
        at = one.next_at
        commits += [at] if one.proceed() == "committed" else []
    until_durable = math.ceil((max(durable, blocking) - blocking) / step)
    steps = max(1, round(interval / step), until_durable)
    copies = math.ceil(steps / every) if every else 0
    assert all(
        0 <= later - earlier - blocking - steps * step <= copies * copy
        for earlier, later in pairwise(commits)
    )


@pytest.mark.parametrize("step", [700, 725, 1060])
def test_steps_that_do_not_divide_what_a_save_needs_cost_no_second_interval(step: int) -> None:
    """One every 10 s, durable after 30: a commit every 30 s and a step at most, 118 an hour."""
    one = ranks(interval=10_000, step=step, blocking=1000, durable=30_000)
    commits = [at for at, told in live(one, 3_600_000) if told == "committed"]
    assert len(commits) >= 3_600_000 // (30_000 + step) - 1


def test_a_step_in_the_making_is_lost_with_its_ranks() -> None:
    """What is not finished is not reported."""
    one = ranks()
    live(one, 350)
    one.kill(399)
    assert (one.report(399).step, one.report(399).settled_ms) == (3, 300)


def test_a_drain_saves_after_the_step_and_waits_until_it_is_durable() -> None:
    """Nothing is lost by a planned end."""
    one = ranks(durable=500)
    live(one, 250)
    one.drain(250)
    assert live(one, 2000) == [(800, "committed"), (800, "drained")]
    assert (one.committed, one.report(800).phase_ms["checkpointing"]) == (3, 500)


def test_a_drain_before_the_first_step_needs_no_save() -> None:
    """There is nothing new to keep."""
    one = ranks(committed=5, high_water=5)
    one.drain(15)
    assert live(one, 1000) == [(60, "drained")]
    assert one.committed == 5


@given(st.integers(1, 400), st.integers(1, 900), st.integers(0, 300), st.integers(0, 3000), st.booleans())
def test_reports_add_up_at_any_moment(
    interval: int, durable: int, blocking: int, at: int, drains: bool
) -> None:
    """The sum of the phases is the settled time, never ahead of the clock and at most one stretch behind."""
    one = ranks(interval=interval, durable=durable, blocking=blocking)
    live(one, at // 2)
    if drains:
        one.drain(at // 2)
    live(one, at)
    report = one.report(at)
    assert report.settled_ms == report.started_ms + sum(report.phase_ms.values()) <= at
    if not one.stopped:
        assert at - report.settled_ms <= max(100, durable, blocking)
    assert one.committed <= report.step
