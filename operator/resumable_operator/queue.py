"""Work queue with client-go's *dirty* and *processing* sets: a key is worked on by one worker at a time.

A key that is added while it is being worked on is handed out once more when that work is done, however often
it was added: changes are never lost and never pile up. Keys with news come before those that are looked at as
a routine: a thousand looks now and then must not keep one failure waiting. While news are worked on few of
those are begun beside them, since both wait for the same API server. ``reconcile`` is its only caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class WorkQueue:
    """Keys to look at. Use within one event loop.

    Args:
        waited: told how many seconds a key with news has waited, when it is handed out.
        routines_beside_news: worked on at the same time.
    """

    def __init__(
        self,
        base_delay: float = 0.05,
        max_delay: float = 10.0,
        waited: Callable[[float], None] = lambda _seconds: None,
        routines_beside_news: int = 2,
    ) -> None:
        self._dirty: dict[str, bool] = {}  # key -> whether it is a routine
        self._news_since: dict[str, float] = {}
        self._news: dict[str, None] = {}  # those to hand out, in order
        self._routine: dict[str, None] = {}
        self._processing: dict[str, bool] = {}  # key -> whether it is a routine
        self._timers: dict[str, tuple[float, bool, asyncio.TimerHandle]] = {}
        self._failures: dict[str, int] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waiting_for_news: deque[asyncio.Future[None]] = deque()
        self._base_delay = base_delay
        self._max_delay = max_delay
        self._waited = waited
        self.routines_beside_news = routines_beside_news

    def __len__(self) -> int:
        return len(self._news) + len(self._routine)

    def add(self, key: str, *, routine: bool = False) -> None:
        """Look at ``key`` as soon as possible; ``routine``: when no other has news."""
        known = self._dirty.get(key)
        if known is None or (known and not routine):
            self._dirty[key] = routine
            if not routine:
                self._news_since[key] = asyncio.get_running_loop().time()
            if key not in self._processing:
                self._hand_out(key)

    def add_after(self, key: str, delay: float, *, routine: bool = False) -> None:
        """Look at ``key`` in ``delay`` seconds at the latest; of several such wishes the earliest counts."""
        if delay <= 0:
            self.add(key, routine=routine)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        if key in self._timers:
            known_due, known_routine, handle = self._timers[key]
            routine = routine and known_routine
            if known_due <= due:
                self._timers[key] = (known_due, routine, handle)
                return
            handle.cancel()
        self._timers[key] = (due, routine, loop.call_at(due, self._expire, key))

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

    async def get(self, *, news_only: bool = False) -> str:
        """The next key; the caller must call ``done`` with it. ``news_only``: no routine."""
        while not self._news and (news_only or not self._routine_may_begin()):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._waiting_for_news if news_only else self._waiting).append(waiter)
            await waiter
        found = self._news or self._routine
        key = next(iter(found))
        del found[key]
        self._processing[key] = self._dirty.pop(key)
        since = self._news_since.pop(key, None)
        if since is not None:
            self._waited(asyncio.get_running_loop().time() - since)
        self._wake_one()  # one that was woken may have taken what another was woken for
        return key

    def done(self, key: str) -> None:
        """End of the work that ``get`` began."""
        self._processing.pop(key, None)
        if key in self._dirty:
            self._hand_out(key)
        else:
            self._wake_one()  # a routine may have waited for the end of this

    def forget(self, key: str) -> None:
        """The key's object is gone: no more timers or failures for it."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer:
            timer[2].cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self.forget(key)

    def _routine_may_begin(self) -> bool:
        routines = sum(self._processing.values())
        calm = routines == len(self._processing)
        return bool(self._routine) and (calm or routines < self.routines_beside_news)

    def _expire(self, key: str) -> None:
        _, routine, _ = self._timers.pop(key)
        self.add(key, routine=routine)

    def _hand_out(self, key: str) -> None:
        routine = self._dirty[key]
        if routine:
            self._routine[key] = None
        else:
            self._routine.pop(key, None)
            self._news[key] = None
        self._wake_one()

    def _wake_one(self) -> None:
        """Of those that wait and would take what is there; who is woken for nothing waits again."""
        would_take = [self._waiting_for_news, self._waiting] if self._news else [self._waiting]
        for waiting in would_take if self._news or self._routine_may_begin() else ():
            while waiting:
                waiter = waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
