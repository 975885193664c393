"""How long a writer may go on without its rank, by table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent import landing
from resumable_training.agent.landing import (
    FREE_SECONDS,
    MOST_HELD_SECONDS,
    MOST_SECONDS,
    UNKNOWN_SECONDS,
    Flight,
    patience,
)


@pytest.mark.parametrize(
    ("durable", "worth", "age", "seconds", "why"),
    [
        (2.0, 60.0, 0.0, 4.0, "saves took 2.0 s lately"),
        (2.0, 60.0, 1.5, 2.5, "saves took 2.0 s lately"),
        (2.0, 60.0, 9.0, 0.0, "saves took 2.0 s lately"),  # it is late, and may be about to end
        (2.0, 60.0, -3.0, 4.0, "saves took 2.0 s lately"),  # it was told of later
        (2.0, 1.0, 0.0, 1.0, "its steps took 1.0 s"),
        (2.0, 0.0, 0.0, 0.0, "its steps took 0.0 s"),
        (90.0, 600.0, 3.0, MOST_SECONDS, "that is the most"),
        (0.0, 600.0, 3.0, UNKNOWN_SECONDS, "it is the first save"),
        (0.0, 0.2, 0.0, 0.2, "its steps took 0.2 s"),
    ],
)
def test_patience(durable: float, worth: float, age: float, seconds: float, why: str) -> None:
    """Twice what saves take, no more than the steps are worth, and never long."""
    flight = Flight("step-00000010.1", 10, since=100.0, durable=durable, worth=worth)
    assert patience(flight, 100.0 + age) == (pytest.approx(FREE_SECONDS + seconds), why)


@pytest.mark.parametrize(
    ("durable", "worth", "seconds", "why"),
    [
        (40.0, 600.0, 80.0, "saves took 40.0 s lately"),
        (40.0, 30.0, 30.0, "its steps took 30.0 s"),
        (90.0, 600.0, MOST_HELD_SECONDS, "that is the most"),
        (0.0, 600.0, UNKNOWN_SECONDS, "it is the first save"),
    ],
)
def test_patience_with_what_was_held(durable: float, worth: float, seconds: float, why: str) -> None:
    """All of it has to be stored yet: a large state takes longer than what is left of a save."""
    flight = Flight("step-00000010.1", 10, since=100.0, durable=durable, worth=worth, held=True)
    assert patience(flight, 100.0) == (pytest.approx(FREE_SECONDS + seconds), why)


@given(*[st.floats(0, 1e6)] * 2, st.floats(-1e6, 1e6), st.booleans())
def test_patience_is_bounded(durable: float, worth: float, age: float, held: bool) -> None:
    """Recovery is never delayed by more than the steps took, but for what a start takes anyway."""
    seconds, _ = patience(Flight("step-00000010.1", 10, 0.0, durable, worth, held), age)
    most = landing.MOST_HELD_SECONDS if held else landing.MOST_SECONDS
    assert FREE_SECONDS <= seconds <= FREE_SECONDS + min(most, worth)
