"""When the recovery benchmark strikes, and what it takes a strike to have cost."""

from __future__ import annotations

from typing import Any

import cluster_cases
import pytest
from recovery_cases import BY_NAME, SCENARIOS, first_new, is_time, judge


def lines(*steps: tuple[float, int, int, int]) -> list[dict[str, Any]]:
    """(time, step, world, pid of rank 0)."""
    return [{"time": at, "step": step, "world": world, "pid": pid} for at, step, world, pid in steps]


@pytest.mark.parametrize(
    ("scenario", "step", "saved", "since", "now"),
    [
        pytest.param("rank", 8, 5, 0, True, id="three are lost"),
        pytest.param("rank", 8, 0, 0, False, id="nothing is saved yet"),
        pytest.param("rank", 9, 5, 0, False, id="four would be"),
        pytest.param("rank", 8, 5, 6, False, id="it has not settled since the last recovery"),
        pytest.param("rank-saved", 10, 10, 5, True, id="saved at once"),
        pytest.param("rank-saved", 11, 10, 5, True, id="saved while the next step was done"),
        pytest.param("rank-saved", 10, 5, 5, False, id="not durable yet"),
        pytest.param("rank-saved", 6, 5, 3, False, id="saved before it had settled, so some time ago"),
    ],
)
def test_moment(scenario: str, step: int, saved: int, since: int, now: bool) -> None:
    """A strike comes at the moment that its name promises, on all sides."""
    assert is_time(BY_NAME[scenario], step, saved, since) is now


BEFORE = ((1.0, 6, 2, 70), (2.0, 7, 2, 70), (3.0, 8, 2, 70))


def test_steps_done_again_are_not_new() -> None:
    """The time runs until a step beyond all that had been done; what comes before it is counted as redone."""
    steps = lines(*BEFORE, (5.0, 6, 2, 71), (6.0, 7, 2, 71), (7.0, 8, 2, 71), (8.0, 9, 2, 71))
    assert first_new(steps[:6], struck_at=3.1, world=2) is None
    index = first_new(steps, struck_at=3.1, world=2)
    assert index == 6
    outcome = judge(steps, 3.1, index, planned=False)
    assert (outcome.seconds, outcome.redone, outcome.step_seconds) == (pytest.approx(4.9), 3, 1.0)


def test_a_step_under_way_is_no_recovery() -> None:
    """Rank 0 may finish the step whose sums were done when the other was killed."""
    steps = lines(*BEFORE, (3.2, 9, 2, 70))
    assert first_new(steps, struck_at=3.1, world=2) is None


def test_the_wanted_size_counts() -> None:
    """A new step at another size is none."""
    steps = lines(*BEFORE, (5.0, 9, 1, 71), (9.0, 10, 2, 72))
    assert first_new(steps, struck_at=3.1, world=2) == 4
    assert first_new(steps, struck_at=3.1, world=1) == 3


def test_which_strikes_change_the_size() -> None:
    """Of one machine and of a cluster; a worker that is replaced leaves it as it was."""
    scenarios = (*SCENARIOS, *cluster_cases.SCENARIOS)
    assert {one.name for one in scenarios if one.resizes} == {"lost", "grow", "preempt", "dead"}
    assert all(one.resizes for one in scenarios if one.smaller)


def test_planned_changes_are_a_pause() -> None:
    """Steps between the notice and the end are work; the pause begins with the last of them."""
    steps = lines(*BEFORE, (4.0, 9, 2, 70), (6.0, 10, 1, 71))
    index = first_new(steps, struck_at=3.1, world=1)
    assert index == 4
    outcome = judge(steps, 3.1, index, planned=True)
    assert (outcome.seconds, outcome.redone) == (2.0, 0)
    assert outcome.after_strike == pytest.approx(2.9)
