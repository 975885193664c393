"""Work queue with client-go's *dirty* and *processing* sets: a key is worked on by one worker at a time.

A key that is added while it is being worked on is handed out once more when that work is done, however often
it was added: changes are never lost and never pile up. ``reconcile`` is its only caller.
"""

from __future__ import annotations

import asyncio
from collections import deque


class WorkQueue:
    """Keys to look at. Use within one event loop."""

    def __init__(self, base_delay: float = 0.05, max_delay: float = 10.0) -> None:
        self._ready: deque[str] = deque()
        self._dirty: set[str] = set()
        self._processing: set[str] = set()
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[str, int] = {}
        self._arrived = asyncio.Event()
        self._base_delay = base_delay
        self._max_delay = max_delay

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: str) -> None:
        """Look at ``key`` as soon as possible."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._hand_out(key)

    def add_after(self, key: str, delay: float) -> None:
        """Look at ``key`` in ``delay`` seconds at the latest; of several such wishes the earliest counts."""
        if delay <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if key in self._timers:
            if self._timers[key][0] <= due:
                return
            self._timers[key][1].cancel()
        self._timers[key] = (due, loop.call_at(due, self._expire, key))

    def add_failed(self, key: str) -> float:
        """Look again after a delay that doubles with every failure in a row; returns it in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._max_delay, self._base_delay * 2.0 ** min(failures, 30))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: str) -> None:
        """Forget the failures of ``key``."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key; the caller must call ``done`` with it."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: str) -> None:
        """End of the work that ``get`` began."""
        self._processing.discard(key)
        if key in self._dirty:
            self._hand_out(key)

    def forget(self, key: str) -> None:
        """The key's object is gone: no more timers or failures for it."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer:
            timer[1].cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self.forget(key)

    def _expire(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _hand_out(self, key: str) -> None:
        self._ready.append(key)
        self._arrived.set()
