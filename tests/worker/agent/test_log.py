"""The event log: numbered, bounded, and losing only what later events repeat."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent.log import EventLog
from resumable_training.contract import events

KINDS = st.sampled_from([events.PROGRESS, events.CHECKPOINT, events.WARNING])


def test_replay_after() -> None:
    """Everything beyond a number, in order; nothing twice."""
    log = EventLog("boot", clock_ms=lambda: 5)
    for number in range(1, 6):
        assert log.append(events.WARNING, 1, {"message": str(number)}).seq == number
    assert [event.seq for event in log.after(2)] == [3, 4, 5]
    assert log.after(5) == []
    assert [event.seq for event in log.after(0)] == [1, 2, 3, 4, 5]
    assert {(event.at_ms, event.boot_id) for event in log.after(0)} == {(5, "boot")}


@given(st.lists(st.tuples(KINDS, st.integers(0, 2), st.integers(0, 3)), max_size=400))
def test_bounded_and_honest(appended: list[tuple[str, int, int]]) -> None:
    """Never above capacity; from ``first_seq`` on only progress that was repeated later is missing."""
    log = EventLog("boot", capacity=100)
    for kind, attempt, rank in appended:
        log.append(kind, attempt, {"rank": rank})
        assert len(log.after(0)) <= 100
    kept = {event.seq: event for event in log.after(0)}
    newest: dict[tuple[int, int], int] = {}
    for seq, (kind, attempt, rank) in enumerate(appended, 1):
        if kind == events.PROGRESS:
            newest[attempt, rank] = seq
        elif seq >= log.first_seq:
            assert seq in kept
    assert all(seq in kept for seq in newest.values() if seq >= log.first_seq)
    assert list(kept) == sorted(kept)


def test_a_day_of_progress_drops_nothing_else() -> None:
    """What an operator that was away must know is still there, and is said to be."""
    log = EventLog("boot", capacity=200)
    for step in range(5000):
        log.append(events.PROGRESS, 1, {"rank": 0, "step": step})
        if step % 1000 == 0:
            log.append(events.CHECKPOINT, 1, {"step": step})
    assert log.first_seq == 1
    assert sum(event.kind == events.CHECKPOINT for event in log.after(0)) == 5
    assert log.after(0)[-1].data["step"] == 4999


async def test_waiters_are_woken() -> None:
    """All that wait see a new event at once; a wait without one ends by itself."""
    log = EventLog("boot")
    waiting = [asyncio.create_task(log.wait_beyond(0, 30.0)) for _ in range(3)]
    await asyncio.sleep(0)
    log.append(events.WARNING, 0)
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert await log.wait_beyond(0, 30.0)
    assert not await log.wait_beyond(1, 0.01)
