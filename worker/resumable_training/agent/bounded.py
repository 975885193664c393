"""Waiting with a bound, on Pythons whose own way may lose a cancellation."""

from __future__ import annotations

import asyncio
from typing import Awaitable, TypeVar

T = TypeVar("T")


async def within(work: "Awaitable[T]", seconds: float) -> T:
    """What comes of ``work``, if it comes in time.

    Before Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes in the moment in which its work is
    done: when both of two agents end, a watch that goes on for ever would keep this one from ending.

    Raises:
        asyncio.TimeoutError: it took longer, and was cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody will ask for it
        task.cancel()
        raise
    if not task.done():
        task.cancel()
        raise asyncio.TimeoutError
    return task.result()
