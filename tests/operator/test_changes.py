"""Changes of the cluster that no pass waits for: in order, told when they end, and no error is lost."""

from __future__ import annotations

import asyncio

import pytest

from resumable_operator.changes import Changes, Work


def noted(log: list[str], name: str, gate: asyncio.Event | None = None, failures: int = 0) -> Work:
    async def work() -> int:
        log.append(f"{name} begins")
        if gate is not None:
            await gate.wait()
        log.append(f"{name} ends")
        return failures

    return work


async def test_a_jobs_changes_do_not_overtake() -> None:
    """Those of a later pass begin when the earlier ones are done; other jobs' do not wait."""
    log: list[str] = []
    told: list[tuple[str, int]] = []
    gate, changes = asyncio.Event(), Changes(lambda key, failures: told.append((key, failures)))
    first = changes.begin("a", noted(log, "first", gate, failures=2))
    changes.leave("a", first)
    second = changes.begin("a", noted(log, "second"))
    await changes.begin("b", noted(log, "other"))
    assert log == ["first begins", "other begins", "other ends"]
    gate.set()
    assert await second == 0
    assert log[3:] == ["first ends", "second begins", "second ends"]
    assert told == [("a", 2)], "only of what was left, and with its failures"


async def test_a_failure_holds_up_nobody() -> None:
    """What raised is raised to who waits for it, and the next changes of the job go on."""

    async def broken() -> int:
        raise ZeroDivisionError("a bug")

    log: list[str] = []
    changes = Changes(lambda _key, _failures: None)
    first = changes.begin("a", broken)
    assert await changes.begin("a", noted(log, "second")) == 0
    with pytest.raises(ZeroDivisionError):
        await first


async def test_what_was_left_and_raises_is_raised_by_the_watch() -> None:
    """``broken`` ends with the error of changes that nobody waits for."""

    async def broken() -> int:
        raise ZeroDivisionError("a bug")

    changes = Changes(lambda _key, _failures: None)
    watching = asyncio.create_task(changes.broken())
    await asyncio.sleep(0)
    changes.leave("a", changes.begin("a", broken))
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(5):
            await watching


async def test_closing_ends_all() -> None:
    """Neither what goes on nor what waits for it is left, and nobody is told."""
    log: list[str] = []
    told: list[str] = []
    changes = Changes(lambda key, _failures: told.append(key))
    tasks = [changes.begin("a", noted(log, name, asyncio.Event())) for name in ("first", "second")]
    for task in tasks:
        changes.leave("a", task)
    await asyncio.sleep(0)
    changes.close()
    _, left = await asyncio.wait(tasks, timeout=5)
    assert (left, told, log) == (set(), [], ["first begins"])
