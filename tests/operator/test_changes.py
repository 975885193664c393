"""Changes of the cluster that no pass waits for: in order, told when they end, and no error is lost."""

from __future__ import annotations

import asyncio

import pytest

from resumable_operator.changes import Changes, Work, may_wait
from resumable_operator.decide.actions import Action, CreateWorker, DeleteJob, DeleteWorker, EmitEvent


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


@pytest.mark.parametrize(
    ("action", "may"),
    [
        (CreateWorker("w-0-1", 0, 1), True),
        (EmitEvent("Normal", "Started", "go"), True),
        (DeleteWorker("w-0-1", 0.0, "it has ended"), True),
        (DeleteWorker("w-0-1", 5.0, "too many"), False),
        (DeleteJob("its time is over"), False),
    ],
)
def test_what_may_wait(action: Action, may: bool) -> None:
    """What ends nothing that lives; one that may not is enough to wait for all."""
    harmless: list[Action] = [EmitEvent("Normal", "Started", "go")]
    assert may_wait({"w-0-1": [action], "": harmless}) is may
    assert may_wait({"": harmless, "w-0-1": [*harmless, action]}) is may


async def test_what_is_pending() -> None:
    """From its beginning until it has ended; of one job only."""
    gate, changes = asyncio.Event(), Changes(lambda _key, _failures: None)
    task = changes.begin("a", noted([], "first", gate))
    assert (changes.pending("a"), changes.pending("b")) == (True, False)
    gate.set()
    await task
    await asyncio.sleep(0)
    assert not changes.pending("a")
