"""When to save: announced by rank 0 in steps, from what it measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.formulas import auto_interval
from resumable_training.schedule import (
    NEVER,
    Announcement,
    IntervalLog,
    Measured,
    announce,
    copy_every,
    mean_cost,
    postponed,
    wanted,
)

EVERY_10_STEPS = CheckpointConfig(every_steps=10)
EVERY_60_SECONDS = CheckpointConfig(every_seconds=60.0)


@pytest.mark.parametrize(
    ("config", "measured", "step", "here", "expected"),
    [
        (EVERY_10_STEPS, Measured(), 0, 0, Announcement(10, 1)),
        (EVERY_10_STEPS, Measured(0.1), 13, 5, Announcement(20, 18)),
        (EVERY_10_STEPS, Measured(0.1), 20, 50, Announcement(30, 30)),
        (EVERY_60_SECONDS, Measured(), 0, 0, Announcement(NEVER, 1)),
        (EVERY_60_SECONDS, Measured(2.0, 20.0), 10, 4, Announcement(30, 14)),
        (EVERY_60_SECONDS, Measured(2.0, 20.0), 100, 100, Announcement(120, 115)),  # 30 s are 15 steps
        (EVERY_60_SECONDS, Measured(2.0, 90.0), 100, 100, Announcement(101, 101)),  # late: the next step
        (EVERY_60_SECONDS, Measured(600.0, 0.0), 5, 5, Announcement(6, 6)),  # a step longer than the interval
        (CheckpointConfig(), Measured(0.5), 0, 10, Announcement(20, 10)),  # auto, nothing measured: 10 s
    ],
)
def test_announcements(
    config: CheckpointConfig, measured: Measured, step: int, here: int, expected: Announcement
) -> None:
    """The step to save at, and the step to speak again at."""
    assert announce(config, measured, step, here) == expected


def test_auto_is_dalys_interval() -> None:
    """With d and M measured: Daly's 9.1 minutes for d = 5 min, M = 15 min."""
    config = CheckpointConfig(mtbf_seconds=900.0)
    measured = Measured(1.0, 0.0, blocking_seconds=300.0, durable_seconds=300.0)
    found = wanted(config, measured)
    assert (found.seconds / 60, found.bound) == (pytest.approx(9.1, abs=0.05), "optimum")
    assert found.steps == round(found.seconds)


def test_auto_grows_while_nothing_happens() -> None:
    """The operator's estimate is as old as the attempt: time without an interruption makes M longer."""
    config = CheckpointConfig(mtbf_seconds=1000.0, interruptions=1)
    later = Measured(1.0, 0.0, blocking_seconds=5.0, durable_seconds=0.0, settings_seconds=6000.0)
    assert wanted(config, later).mtbf_seconds == 4000.0
    expected = auto_interval(blocking_seconds=5.0, durable_seconds=0.0, mtbf_seconds=4000.0)
    assert wanted(config, later).seconds == expected.seconds


@pytest.mark.parametrize(
    ("measured", "save_at"), [(Measured(1.0), 60), (Measured(0.1), 100), (Measured(), 100)]
)
def test_of_steps_and_seconds_the_earlier_counts(measured: Measured, save_at: int) -> None:
    """With both given neither is ignored; seconds count once a step's length is known."""
    config = CheckpointConfig(every_steps=100, every_seconds=60.0)
    assert announce(config, measured, 0, 500).save_at == save_at
    assert wanted(config, Measured(1.0)).seconds == 60.0
    assert wanted(config, Measured(0.1)).seconds == pytest.approx(10.0)
    capped = CheckpointConfig(every_steps=100, longest_seconds=60.0)
    assert announce(capped, measured, 0, 500).save_at == save_at


def test_the_cap_bounds_auto_and_durability_bounds_the_cap() -> None:
    """The user's longest interval holds, unless a save takes longer to become durable."""
    config = CheckpointConfig(mtbf_seconds=1e6, longest_seconds=60.0)
    capped = wanted(config, Measured(1.0, 0.0, 10.0, 5.0))
    assert (capped.seconds, capped.bound) == (60.0, "cap")
    slow = wanted(config, Measured(1.0, 0.0, 10.0, 90.0))
    assert (slow.seconds, slow.bound) == (90.0, "durable")


def test_a_change_of_the_interval_is_told_with_its_reasons() -> None:
    """Once when it moves by more than a tenth, with d, M and what bounds it; not for less, nor when fixed."""
    log, config = IntervalLog(), CheckpointConfig(mtbf_seconds=3600.0)
    assert log.news(config, Measured()) == "saving every 10.0 s: until a save has been measured"
    text = log.news(config, Measured(1.0, 0.0, 2.0, 3.0))
    assert text is not None
    assert "instead of 10.0 s: Daly's optimum" in text
    assert "2.000 s (d)" in text
    assert "3600 s (M)" in text
    assert log.news(config, Measured(1.0, 0.0, 2.2, 3.0)) is None
    halved = log.news(CheckpointConfig(mtbf_seconds=900.0), Measured(1.0, 0.0, 2.0, 3.0))
    assert halved is not None
    assert "900 s (M)" in halved
    assert log.news(EVERY_10_STEPS, Measured(1.0, 0.0, 2.0, 3.0)) is None


def test_one_slow_save_does_not_halve_the_saves() -> None:
    """The cost is an exponential mean; the first one measured is taken as it is."""
    assert mean_cost(None, 4.0) == 4.0
    assert 4.0 < mean_cost(4.0, 40.0) < 20.0


@pytest.mark.parametrize(
    ("config", "measured", "every"),
    [
        (CheckpointConfig(), Measured(0.1, copy_seconds=0.001), 0),  # off
        (CheckpointConfig(memory_every_steps=7), Measured(), 7),
        (CheckpointConfig(memory_every_steps=1), Measured(0.1, copy_seconds=5.0), 1),  # what the user wants
        (CheckpointConfig(memory_auto=True), Measured(), 0),  # nobody knows what one costs
        (CheckpointConfig(memory_auto=True), Measured(0.5), 0),
        (CheckpointConfig(memory_auto=True), Measured(copy_seconds=0.01), 0),
        (CheckpointConfig(memory_auto=True), Measured(0.5, blocking_seconds=0.02), 4),
        (CheckpointConfig(memory_auto=True), Measured(0.5, blocking_seconds=0.02, copy_seconds=0.004), 1),
        (CheckpointConfig(memory_auto=True), Measured(0.5, copy_seconds=0.006), 2),
        (CheckpointConfig(memory_auto=True), Measured(0.5, blocking_seconds=0.02, on_gpus=True), 100),
        (CheckpointConfig(memory_auto=True), Measured(0.5, blocking_seconds=2.0, on_gpus=True), 400),
        (CheckpointConfig(memory_auto=True), Measured(0.5, copy_seconds=0.006, on_gpus=True), 2),
        (CheckpointConfig(memory_every_steps=1), Measured(0.5, on_gpus=True), 1),
    ],
)
def test_copies_in_memory(config: CheckpointConfig, measured: Measured, every: int) -> None:
    """As often as the user says, or as they cost a hundredth; a save's stall stands for an unknown cost."""
    assert copy_every(config, measured) == every


@given(st.floats(0, 1e4), st.floats(1e-6, 1e4))
def test_copies_cost_a_hundredth_at_most(cost: float, step: float) -> None:
    """And are not made more seldom than that asks for."""
    every = copy_every(CheckpointConfig(memory_auto=True), Measured(step, copy_seconds=cost))
    assert cost <= 0.01 * step * every * (1 + 1e-9)
    assert every == 1 or cost > 0.01 * step * (every - 1) * (1 - 1e-9)


@given(
    st.sampled_from([EVERY_10_STEPS, EVERY_60_SECONDS, CheckpointConfig()]),
    st.floats(0, 1000),
    st.floats(0, 1000),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_both_are_ahead(
    config: CheckpointConfig, step_seconds: float, since: float, step: int, here: int
) -> None:
    """Saving and speaking lie in the future, and ranks speak no later than they save."""
    found = announce(config, Measured(step_seconds, since), step, here)
    assert step < found.meet_at <= found.save_at


@pytest.mark.parametrize(("step_seconds", "ahead"), [(0.0, 1), (5.0, 1), (0.1, 1), (0.001, 100)])
def test_a_save_that_has_to_wait_is_spoken_of_again_soon(step_seconds: float, ahead: int) -> None:
    """At the next boundary; where steps are short, after a tenth of a second: speaking costs something."""
    assert postponed(Measured(step_seconds), 40) == Announcement(NEVER, 40 + ahead)
