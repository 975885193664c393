"""Waiting with a limit loses neither a result, nor the time, nor a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from resumable_training.agent.bounded import within


async def value_of(future: asyncio.Future[int]) -> int:
    return await future


async def test_a_result_in_time() -> None:
    """It is handed on, and so is an error."""
    assert await within(asyncio.sleep(0, "done"), 5) == "done"
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_exception(ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        await within(value_of(future), 5)


async def test_too_late() -> None:
    """The work is cancelled."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(value_of(future), 0.01)
    await asyncio.sleep(0)
    assert future.cancelled()


@pytest.mark.parametrize("turns", range(5))
async def test_a_cancellation_is_never_lost(turns: int) -> None:
    """Also when the work is done in the same moment, where ``wait_for`` of older Pythons loses it."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(value_of(future), 5))
    await asyncio.sleep(0.01)
    future.set_result(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    if not waiting.done():
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
