"""What a draining agent does next."""

from __future__ import annotations

import pytest

from resumable_training.agent.drain import Drain, next_step

DRAIN = Drain("scale", 100.0, 160.0)
SIGNALLED = Drain("scale", 100.0, 160.0, signalled=True)
LEFT = Drain("scale", 100.0, 160.0, signalled=True, leader_ended_at=110.0)


@pytest.mark.parametrize(
    ("drain", "now", "connected", "age", "step"),
    [
        (DRAIN, 101.0, True, 50.0, "wait"),  # it was asked on its socket
        (DRAIN, 159.9, True, 50.0, "wait"),
        (DRAIN, 160.0, True, 50.0, "kill"),
        (DRAIN, 100.0, False, 50.0, "signal"),  # old enough to be known as a script without the library
        (DRAIN, 100.0, False, 1.0, "wait"),  # may still connect
        (DRAIN, 130.0, False, 1.0, "signal"),  # but half the window is over
        (SIGNALLED, 140.0, False, 50.0, "wait"),  # once is enough
        (SIGNALLED, 160.0, False, 50.0, "kill"),
        (LEFT, 114.0, False, 50.0, "wait"),  # the others may end by themselves
        (LEFT, 115.0, False, 50.0, "end"),
        (LEFT, 160.0, False, 50.0, "kill"),
    ],
)
def test_next_step(drain: Drain, now: float, connected: bool, age: float, step: str) -> None:
    """Ask, wait, signal a script without the library once, kill when the window is over."""
    assert next_step(drain, now, connected, age) == step


@pytest.mark.parametrize(
    ("drain", "connected", "not_begun", "step"),
    [
        (DRAIN, True, True, "end"),  # it waits for one that may never come: nothing to save
        (DRAIN, True, False, "wait"),  # there may be steps to save
        (DRAIN, False, True, "wait"),  # the first may be about to connect
        (SIGNALLED, True, True, "end"),
    ],
)
def test_ranks_that_wait_for_one_are_ended(drain: Drain, connected: bool, not_begun: bool, step: str) -> None:
    """Ranks that have done nothing and wait for one that has not connected are ended, and at once."""
    assert next_step(drain, 101.0, connected, 1.0, not_begun) == step
