"""The operator's clock over the lives of its process."""

from __future__ import annotations

import pytest

from resumable_operator import clock
from resumable_operator.clock import Offset, SystemClock


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


def test_an_offset_forgets_what_was_long_ago() -> None:
    """The other clock stood still for 30 s, with its machine: after two windows its times are right again."""
    offset = Offset()
    assert offset.here(5.0, 100.0) == 100.0  # nothing is known
    for second in range(50):
        offset.note(second, 1000.0 + second + (0.3 if second % 5 else 0.01))
    assert offset.here(40.0, 1050.0) == pytest.approx(1040.01)
    assert offset.here(60.0, 1050.0) == 1050.0  # never later than now
    for second in range(50, 50 + 2 * int(Offset.WINDOW_SECONDS) + 1):
        offset.note(second, 1030.0 + second + (0.3 if second % 5 else 0.02))
    assert offset.here(160.0, 1200.0) == pytest.approx(1190.02)


def test_an_offset_is_the_least_also_over_a_silence() -> None:
    """What was under way for long does not count beside what was fast, until that is old."""
    offset = Offset()
    offset.note(10.0, 110.0)
    offset.note(20.0, 125.0)
    assert offset.here(20.0, 125.0) == 120.0
    offset.note(75.0, 178.0)  # in the second window
    assert offset.here(75.0, 178.0) == 175.0
    offset.note(500.0, 603.0)
    assert offset.here(500.0, 603.0) == 603.0
