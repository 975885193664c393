"""When to save: announced by rank 0 in steps, from what it measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.schedule import NEVER, Announcement, Measured, announce, interval_seconds

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
    assert interval_seconds(config, measured) / 60 == pytest.approx(9.1, abs=0.05)


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
