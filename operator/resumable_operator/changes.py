"""What passes ask of the cluster, one pass after the other. ``reconcile`` is the only caller.

A recovery needs what agents answer, and seldom what the API server says to a pod that is to be made or to an
Event, which is late when there is much to do. So a pass may leave such changes behind. Those of a job's next
pass begin when these are done, whether they were left or not: nothing overtakes. At most one pass's are left
at a time: where the API server is slow, passes are no quicker than it.

To the next pass it is as if the operator had died after the status was written. What differs is that the
changes still come, after that pass has decided. ``may_wait`` names those that do no harm then: a pod too many
is seen and deleted; one that has ended can't be needed any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from resumable_operator.decide.actions import Action, CreateWorker, DeleteWorker, EmitEvent

Work = Callable[[], Coroutine[Any, Any, int]]  # answers with the number of failures


def may_wait(rows: dict[str, list[Action]]) -> bool:
    """Whether all may be done when the job's next pass has decided. That one may have chosen any worker to
    take part but those that are deleted without grace: they have ended, or never began."""
    return all(_may_wait(action) for row in rows.values() for action in row)


def _may_wait(action: Action) -> bool:
    if isinstance(action, DeleteWorker):
        return action.grace_seconds <= 0
    return isinstance(action, CreateWorker | EmitEvent)


class Changes:
    """Of all jobs. Use within one event loop.

    Args:
        late: called with a job's key and the number of failures when changes have ended that were left.
    """

    def __init__(self, late: Callable[[str, int], None]) -> None:
        self._late = late
        self._newest: dict[str, asyncio.Task[int]] = {}
        self._tasks: set[asyncio.Task[int]] = set()
        self._broken: asyncio.Future[None] | None = None

    def pending(self, key: str) -> bool:
        """Whether something that was begun for the job is not done."""
        return key in self._newest

    def begin(self, key: str, work: Work) -> asyncio.Task[int]:
        """Do ``work`` when all that was begun for the job before is done."""
        task = asyncio.create_task(_after(self._newest.get(key), work), name=f"changes for {key}")
        self._newest[key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._forget(key, task))
        return task

    def leave(self, key: str, task: asyncio.Task[int]) -> None:
        """Don't wait for it."""
        task.add_done_callback(lambda task: self._has_ended(key, task))

    async def broken(self) -> None:
        """For ever; raises what changes that were left have raised."""
        self._broken = asyncio.get_running_loop().create_future()
        await self._broken

    def close(self) -> None:
        """Cancel all."""
        for task in self._tasks:
            task.cancel()

    def _forget(self, key: str, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if self._newest.get(key) is task:
            del self._newest[key]

    def _has_ended(self, key: str, task: asyncio.Task[int]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._late(key, task.result())
        elif self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)


async def _after(before: asyncio.Task[int] | None, work: Work) -> int:
    """However the one before ended: who asked for that has been told."""
    if before is not None:
        await asyncio.wait([before])
    return await work()
