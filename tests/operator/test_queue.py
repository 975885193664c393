"""The work queue hands out a key to one worker at a time and loses no change."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.queue import WorkQueue


async def test_same_key_is_handed_out_once() -> None:
    """A key that was added often is worked on once."""
    queue = WorkQueue()
    for _ in range(5):
        queue.add("a")
    assert (await queue.get(), len(queue)) == ("a", 0)


async def test_key_added_meanwhile_comes_again() -> None:
    """A change during the work is looked at after it, not beside it."""
    queue = WorkQueue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1


async def test_order_of_arrival() -> None:
    """First come, first served."""
    queue = WorkQueue()
    for key in "abc":
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["a", "b", "c"]


async def test_waiting_getter_wakes() -> None:
    """A worker that waits gets the next key."""
    queue = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await asyncio.wait_for(waiting, 5) == "a"


async def test_news_come_before_routine() -> None:
    """However long the row of jobs that are looked at now and then; news of one of those takes it out."""
    queue = WorkQueue()
    for key in "abc":
        queue.add(key, routine=True)
    queue.add("x")
    queue.add("b")
    assert [await queue.get() for _ in range(4)] == ["x", "b", "a", "c"]


async def test_news_stay_news() -> None:
    """A routine look that is wished for, too, does not put a key back; nor does one while it is worked on."""
    queue = WorkQueue()
    queue.add("a", routine=True)
    queue.add("b")
    queue.add("b", routine=True)
    assert await queue.get() == "b"
    queue.add("b", routine=True)
    queue.add("b")
    queue.done("b")
    assert await queue.get() == "b"
    assert len(queue) == 1


async def test_some_wait_for_news_only() -> None:
    """Routine alone never takes up all who work; it goes to whoever takes both, news to either."""
    queue = WorkQueue()
    eager = asyncio.create_task(queue.get(news_only=True))
    patient = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a", routine=True)
    queue.add("b", routine=True)
    assert await asyncio.wait_for(patient, 5) == "a"
    assert not eager.done()
    queue.add("news")
    assert await asyncio.wait_for(eager, 5) == "news"
    assert len(queue) == 1


async def test_few_routines_are_begun_beside_news() -> None:
    """Of many that wait two are worked on while there is one with news, whoever asks; then all are."""
    queue = WorkQueue()
    for number in range(5):
        queue.add(f"routine {number}", routine=True)
    queue.add("news")
    assert await queue.get() == "news"
    waiting = [asyncio.create_task(queue.get()) for _ in range(5)]
    begun, _ = await asyncio.wait(waiting, timeout=0.05)
    assert sorted(task.result() for task in begun) == ["routine 0", "routine 1"]
    queue.done("routine 0")
    queue.done("news")
    found = await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert sorted(found) == [f"routine {number}" for number in range(5)]


async def test_a_routine_look_is_not_forgotten_over_news() -> None:
    """One who was woken for it may take news that came meanwhile; then another is woken."""
    queue = WorkQueue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add("a", routine=True)
    queue.add("b")
    assert sorted(await asyncio.wait_for(asyncio.gather(*waiting), 5)) == ["a", "b"]


async def test_earliest_delay_counts() -> None:
    """Of two delayed wishes for one key the earlier one is kept, in either order."""
    for delays in ((0.02, 3600), (3600, 0.02)):
        queue = WorkQueue()
        for delay in delays:
            queue.add_after("a", delay)
        assert await asyncio.wait_for(queue.get(), 5) == "a"
        queue.close()


async def test_a_delayed_wish_is_news_if_any_of_them_is() -> None:
    """Of a routine look and another one for the same key, the time of the earlier, the rank of the other."""
    for routine in (True, False):
        queue = WorkQueue()
        queue.add_after("a", 0.02, routine=routine)
        queue.add_after("a", 3600, routine=not routine)
        eager = asyncio.create_task(queue.get(news_only=True))
        assert await asyncio.wait_for(eager, 5) == "a"
        queue.close()


async def test_failures_back_off_and_are_forgotten() -> None:
    """Delays double up to the bound; success starts over."""
    queue = WorkQueue(base_delay=1.0, max_delay=5.0)
    assert [queue.add_failed("a") for _ in range(5)] == [1, 2, 4, 5, 5]
    assert queue.add_failed("b") == 1
    queue.succeeded("a")
    assert queue.add_failed("a") == 1
    queue.close()


async def test_forgotten_key_does_not_come_back() -> None:
    """A job that is gone leaves no timer behind."""
    queue = WorkQueue()
    queue.add_after("gone", 0.01)
    queue.forget("gone")
    queue.add_after("b", 0.03)
    assert await asyncio.wait_for(queue.get(), 5) == "b"


async def test_how_long_news_waited() -> None:
    """Told once for each hand-out, from the first word on; a routine has all the time."""
    waits: list[float] = []
    queue = WorkQueue(waited=waits.append)
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    queue.add("routine", routine=True)
    queue.add("news")
    queue.add_after("later", 0.02)
    queue.add("news")
    assert [await queue.get(), await queue.get(), await queue.get()] == ["news", "routine", "later"]
    assert len(waits) == 2
    assert all(0 <= wait <= loop.time() - began for wait in waits)


OPERATIONS = ["add a", "add b", "routine a", "routine b", "get", "done"]


@given(st.lists(st.sampled_from(OPERATIONS), max_size=60))
def test_no_change_is_lost(operations: list[str]) -> None:
    """Whatever the order of events: never two workers on a key, and every add is followed by a hand-out."""

    async def scenario() -> None:
        queue, working, unseen = WorkQueue(), set[str](), set[str]()
        for operation in operations:
            if operation[-1] in "ab":
                queue.add(operation[-1], routine=operation.startswith("routine"))
                unseen.add(operation[-1])
            elif operation == "get" and len(queue):
                key = await queue.get()
                assert key not in working
                working.add(key)
                unseen.discard(key)
            elif operation == "done" and working:
                queue.done(working.pop())
        for key in working:
            queue.done(key)
        while len(queue):
            unseen.discard(await queue.get())
        assert unseen == set()

    asyncio.run(scenario())
