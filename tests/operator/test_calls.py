"""Calls to agents: none holds up a pass for long, and none is begun twice."""

from __future__ import annotations

import asyncio

import pytest

from resumable_operator.calls import Calls

KEY = "ns/train"


class Late:
    """What was told of calls that nobody waited for."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.calls = Calls(lambda key, failures: self.told.append((key, failures)))


@pytest.fixture
def late() -> Late:
    return Late()


async def answered(failures: int = 0) -> int:
    return failures


async def test_answers_are_counted(late: Late) -> None:
    """Those that come in time are the pass's."""
    tasks = late.calls.begin(KEY, {"a": answered, "b": lambda: answered(2)})
    assert await late.calls.answers(KEY, tasks, 10) == 2
    assert late.told == []


async def test_a_mute_agent_holds_up_nobody(late: Late) -> None:
    """Its call goes on; when it ends, that is told."""
    end = asyncio.Event()

    async def mute() -> int:
        await end.wait()
        return 1

    tasks = late.calls.begin(KEY, {"a": mute, "b": answered})
    assert await late.calls.answers(KEY, tasks, 0.01) == 0
    assert late.told == []
    end.set()
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)
    assert late.told == [(KEY, 1)]


async def test_one_call_at_a_time_for_each_agent(late: Late) -> None:
    """While one is under way no other is begun; afterwards one is. Jobs don't hinder each other."""
    end = asyncio.Event()

    async def mute() -> int:
        await end.wait()
        return 0

    (first,) = late.calls.begin(KEY, {"a": mute})
    assert late.calls.begin(KEY, {"a": answered}) == []
    assert len(late.calls.begin("ns/other", {"a": answered})) == 1
    end.set()
    await first
    await asyncio.sleep(0)
    assert len(late.calls.begin(KEY, {"a": answered})) == 1


async def test_the_end_of_a_call_that_another_waits_for_is_told(late: Late) -> None:
    """Also when a pass gets its answer in time; once, however many wait, and not that of other agents."""
    end = asyncio.Event()

    async def mute() -> int:
        await end.wait()
        return 0

    tasks = late.calls.begin(KEY, {"a": mute, "b": answered})
    for _ in range(2):
        assert late.calls.begin(KEY, {"a": answered}) == []
    asyncio.get_running_loop().call_soon(end.set)
    assert await late.calls.answers(KEY, tasks, 10) == 0
    await asyncio.sleep(0)
    assert late.told == [(KEY, 0)]


async def test_an_error_is_the_pass_s(late: Late) -> None:
    """What is no agent's refusal or silence is raised where it is waited for."""

    async def broken() -> int:
        raise ZeroDivisionError("a bug")

    tasks = late.calls.begin(KEY, {"a": broken})
    with pytest.raises(ZeroDivisionError):
        await late.calls.answers(KEY, tasks, 10)


async def test_a_late_error_is_logged_and_tried_again(late: Late, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it: the job is looked at again, and the error is in the log."""
    end = asyncio.Event()

    async def broken() -> int:
        await end.wait()
        raise ZeroDivisionError("a bug")

    tasks = late.calls.begin(KEY, {"a": broken})
    assert await late.calls.answers(KEY, tasks, 0.01) == 0
    end.set()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert late.told == [(KEY, 1)]
    assert "a bug" in caplog.text


async def test_close_ends_all(late: Late) -> None:
    """Nothing goes on after the loop's end, and nothing is told."""
    tasks = late.calls.begin(KEY, {"a": lambda: asyncio.sleep(1000, 0)})
    late.calls.leave(KEY, tasks)
    late.calls.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert late.told == []
