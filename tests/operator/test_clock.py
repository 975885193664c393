"""The operator's clock over the lives of its process."""

from __future__ import annotations

import pytest

from resumable_operator import clock
from resumable_operator.clock import SystemClock


def test_clock_never_shows_less_than_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back between two lives, it goes on from the last written time; set forward, it shows the new."""
    monkeypatch.setattr(clock.time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(clock.time, "time", lambda: 1000.0)
    for written, expected in ((4600.0, 4600.0), (400.0, 1000.0)):
        shown = SystemClock()
        shown.not_before(written)
        assert shown.now() == expected
        assert shown.at_monotonic(60.0) == expected + 10.0


def test_clock_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another clock's time is taken over, forwards and backwards, but not for a difference of no account."""
    monkeypatch.setattr(clock.time, "monotonic", lambda: 50.0)
    monkeypatch.setattr(clock.time, "time", lambda: 1000.0)
    for other, changed in ((1300.0, 300.0), (700.0, -300.0), (1001.5, 0.0), (998.5, 0.0)):
        shown = SystemClock()
        assert shown.agree_with(other, 2.0) == changed
        assert shown.now() == 1000.0 + changed
