"""The numbered event log that an operator replays after it was away.

Bounded. Progress reports are cumulative, so old ones are thinned out first; ``first_seq`` moves only when an
event is dropped that nothing later repeats. Used from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Callable, Dict, List, Optional

from resumable_training.contract import events
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import Event

CAPACITY = 4096
NEWEST_PROGRESS = 64  # kept when the log is thinned


def monotonic_ms() -> int:
    """The agent's clock: CLOCK_MONOTONIC in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class EventLog:
    """Events of one boot, numbered from 1."""

    def __init__(
        self, boot_id: str, capacity: int = CAPACITY, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self.boot_id = boot_id
        self.last_seq = 0
        self.first_seq = 1
        self._capacity = capacity
        self._clock_ms = clock_ms
        self._events: List[Event] = []
        self._waiters: "List[asyncio.Future[None]]" = []

    def append(self, kind: str, attempt: int, data: Any = None) -> Event:
        """Number and keep an event; wakes all that wait. ``data``: a dataclass or a dict."""
        self.last_seq += 1
        plain: Dict[str, Any] = to_plain(data) if data is not None else {}
        event = Event(self.last_seq, self._clock_ms(), kind, attempt, self.boot_id, plain)
        self._events.append(event)
        if len(self._events) > self._capacity:
            self._thin()
        self._wake()
        return event

    def after(self, seq: int) -> List[Event]:
        """Kept events with a greater number, in order."""
        newer = []
        for event in reversed(self._events):
            if event.seq <= seq:
                break
            newer.append(event)
        return newer[::-1]

    async def wait_beyond(self, seq: int, timeout_seconds: float) -> bool:
        """Wait until there is an event beyond ``seq``; False when the time is over first."""
        if self.last_seq > seq:
            return True
        waiter: "asyncio.Future[None]" = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await asyncio.wait([waiter], timeout=timeout_seconds)
        return self.last_seq > seq

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _thin(self) -> None:
        """Drop old progress; if that is not enough, the oldest tenth."""
        self._events = _without_old_progress(self._events)
        surplus = len(self._events) - self._capacity * 9 // 10
        if surplus > 0:
            self.first_seq = self._events[surplus].seq
            self._events = self._events[surplus:]


def newest_progress_only(found: List[Event]) -> List[Event]:
    """All but progress that a later report of the same rank and attempt repeats."""
    newest = {_reporter(event): event.seq for event in found if event.kind == events.PROGRESS}
    return [
        event for event in found if event.kind != events.PROGRESS or newest[_reporter(event)] == event.seq
    ]


def _reporter(event: Event) -> Any:
    return event.attempt, event.data.get("rank")


def _without_old_progress(kept: List[Event]) -> List[Event]:
    """All but progress that a later report of the same rank and attempt repeats; the newest stay."""
    seen: Dict[Any, Optional[bool]] = {}
    newest = 0
    result = []
    for event in reversed(kept):
        if event.kind == events.PROGRESS:
            key = _reporter(event)
            newest += 1
            if key in seen and newest > NEWEST_PROGRESS:
                continue
            seen[key] = True
        result.append(event)
    return result[::-1]
