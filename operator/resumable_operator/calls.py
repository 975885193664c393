"""Calls to agents that are under way: none holds up a pass for long. ``reconcile`` is the only caller.

An agent whose machine is gone answers nothing for seconds, in which its job must be looked at: the evidence
of that very loss may come. So a pass waits a moment for answers. What takes longer goes on beside the passes,
no other call is begun to that agent meanwhile, and its job is looked at again when it has ended; also when it
ends soon, if another was not begun because of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

logger = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, int]]  # answers with the number of failures


class Calls:
    """Of all jobs. Use within one event loop.

    Args:
        late: called with a job's key and the number of failures when a call has ended that nobody waits for,
            or that kept another from being begun; once for each.
    """

    def __init__(self, late: Callable[[str, int], None]) -> None:
        self._late = late
        self._running: dict[tuple[str, str], asyncio.Task[int]] = {}
        self._left: set[asyncio.Task[int]] = set()  # whose end is told

    def begin(self, key: str, agents: dict[str, Work]) -> list[asyncio.Task[int]]:
        """Begin calls, by agent; not to one to which another is under way, the end of which is told."""
        self.leave(key, [self._running[key, agent] for agent in agents if (key, agent) in self._running])
        return [
            self._start((key, agent), work)
            for agent, work in agents.items()
            if (key, agent) not in self._running
        ]

    async def answers(self, key: str, calls: list[asyncio.Task[int]], seconds: float) -> int:
        """Wait for them, at most so long; the failures so far."""
        if not calls:
            return 0
        ended, late = await asyncio.wait(calls, timeout=seconds)
        self.leave(key, late)
        return sum(task.result() for task in ended)

    def leave(self, key: str, calls: Iterable[asyncio.Task[int]]) -> None:
        """Don't wait for them."""
        for task in calls:
            if task not in self._left:
                self._left.add(task)
                task.add_done_callback(lambda task: self._has_ended(key, task))

    def close(self) -> None:
        """Cancel all."""
        for task in self._running.values():
            task.cancel()

    def _start(self, place: tuple[str, str], work: Work) -> asyncio.Task[int]:
        task = self._running[place] = asyncio.create_task(work(), name=f"calls to {place[1]}")
        task.add_done_callback(lambda _: self._running.pop(place))
        return task

    def _has_ended(self, key: str, task: asyncio.Task[int]) -> None:
        self._left.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("%s: a call to an agent failed", key, exc_info=error)
        self._late(key, 1 if error is not None else task.result())
