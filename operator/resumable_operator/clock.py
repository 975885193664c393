"""The operator's own clock: wall time at its start, advanced by the monotonic clock.

Every time that is decided upon or written to status comes from here, so a step of the wall clock (NTP, a
suspended laptop) cannot make a wait jump or a ledger run backwards within one operator's life.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, never running backwards."""

    def now(self) -> float: ...


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
