"""The operator's own clock: wall time at its start, advanced by the monotonic clock.

Every time that is decided upon or written to status comes from here, so a step of the wall clock (NTP, a
suspended laptop) cannot make a wait jump or a ledger run backwards within one operator's life.
"""

from __future__ import annotations

import math
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, never running backwards."""

    def now(self) -> float: ...


class Offset:
    """What to add to another machine's clock to get this one's: the least that was seen lately.

    Whatever comes from there comes late, by the least when it was under way for the shortest time. That of
    one to two windows is taken: what was seen long ago is no measure for a clock that drifts, or that stood
    still with its machine.
    """

    WINDOW_SECONDS = 60.0

    def __init__(self) -> None:
        self._began, self._before, self._now = 0.0, math.inf, math.inf

    def note(self, there: float, here: float) -> None:
        """Something came, sent at ``there``, at ``here``; seconds."""
        if here - self._began >= 2 * self.WINDOW_SECONDS:
            self._began, self._before, self._now = here, math.inf, math.inf
        elif here - self._began >= self.WINDOW_SECONDS:
            self._began, self._before, self._now = here, self._now, math.inf
        self._now = min(self._now, here - there)

    def here(self, there: float, now: float) -> float:
        """Seconds on this clock, not after ``now``; that while nothing is known."""
        least = min(self._before, self._now)
        return now if math.isinf(least) else min(now, there + least)


class SystemClock:
    """The clock that runs outside tests."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._offset + time.monotonic()

    def not_before(self, seconds: float) -> None:
        """Show at least this from now on.

        For what was written by an earlier process, before the wall clock was set back: waits that it began
        must not last for as long as that, nor its ledger stand still.
        """
        self._offset += max(0.0, seconds - self.now())

    def agree_with(self, seconds: float, tolerance: float) -> float:
        """Show what another clock shows now, unless the two agree; returns by how much this one was wrong.

        Only before anything was decided: it may run backwards here.
        """
        ahead = seconds - self.now()
        if abs(ahead) <= tolerance:
            return 0.0
        self._offset += ahead
        return ahead

    def at_monotonic(self, seconds: float) -> float:
        """What this clock showed when CLOCK_MONOTONIC showed ``seconds``."""
        return self._offset + seconds
