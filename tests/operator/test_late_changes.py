"""Changes of the cluster that no pass waits for: when that is so, in which order they come, no error lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from one_job import KEY, STOP, World, plan, running, until

from resumable_operator.decide.actions import (
    Action,
    CreateWorker,
    DeleteJob,
    DeleteWorker,
    EmitEvent,
    SendRequest,
)
from resumable_operator.errors import (
    ClusterRefused,
    FatalError,
    RetryableError,
)
from resumable_operator.reconcile import Reconciler
from resumable_training.contract.assignment import Request


@pytest.fixture
def world() -> World:
    return World()


@dataclass
class Held:
    """Changes of the cluster wait at ``moment`` until they are let go."""

    begun: list[str] = field(default_factory=list)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def moment(self, name: str) -> None:
        if name in ("CreateWorker", "DeleteWorker", "EmitEvent"):
            self.begun.append(name)
            await self.let_go.wait()


CREATE, DELETE = CreateWorker("w-1-2", 1, 2), DeleteWorker("w-1-1", 0.0, "it has ended")


@asynccontextmanager
async def at_work(reconciler: Reconciler) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reconciler.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_who_asks_agents_does_not_wait_for_the_cluster(world: World) -> None:
    """The next pass comes while a pod is still being made; what it changes itself comes afterwards."""
    tell = EmitEvent("Normal", "Later", "told by the second pass")
    world.plans = [plan(STOP, CREATE, DELETE, step=1, must_write=True), plan(tell), plan()]
    held = Held()
    reconciler = world.reconciler(moment=held.moment)
    async with at_work(reconciler):
        await until(lambda: len(held.begun) == 2 and len(world.seen) == 1)
        reconciler.queue.add(KEY)
        await until(lambda: len(world.seen) == 2)
        assert world.cluster.done == ["write step 1"]
        held.let_go.set()
        await until(lambda: len(world.cluster.done) == 4)
    assert set(world.cluster.done[1:3]) == {"create w-1-2", "delete w-1-1"}
    assert world.cluster.done[3] == "tell Later"


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param((CREATE,), id="no agent is asked"),
        pytest.param((STOP, DeleteWorker("w-1-1", 5.0, "too many")), id="a worker that lives"),
        pytest.param((STOP, DeleteJob("its time is over")), id="the job"),
    ],
)
async def test_a_pass_waits_for_other_changes(world: World, actions: tuple[Action, ...]) -> None:
    """Where nothing is gained, or the next pass might choose what is about to be deleted."""
    world.plans = [plan(*actions), plan()]
    let_go, begun = asyncio.Event(), []

    async def moment(name: str) -> None:
        if name in ("CreateWorker", "DeleteWorker", "DeleteJob"):
            begun.append(name)
            await let_go.wait()

    reconciler = world.reconciler(moment=moment)
    async with at_work(reconciler):
        await until(lambda: bool(begun))
        reconciler.queue.add(KEY)
        await asyncio.sleep(0)
        assert len(world.seen) == 1
        let_go.set()
        await until(lambda: len(world.seen) == 2)
        assert len(world.cluster.done) == 1


async def test_only_one_pass_is_ahead_of_the_cluster(world: World) -> None:
    """While its changes are not done the next pass that has some waits for both, calls to agents do not."""
    other = SendRequest("w-2-1", Request("stop", attempt=1))
    world.plans = [plan(STOP, CREATE), plan(other, CREATE), plan()]
    held = Held()
    reconciler = world.reconciler(moment=held.moment)
    async with at_work(reconciler):
        await until(lambda: bool(held.begun))
        reconciler.queue.add(KEY)
        await until(lambda: len(world.agents.sent) == 2)
        reconciler.queue.add(KEY)
        await asyncio.sleep(0)
        assert (len(world.seen), held.begun) == (2, ["CreateWorker"])
        held.let_go.set()
        await until(lambda: len(world.seen) == 3)
    assert world.cluster.done == ["create w-1-2"] * 2


async def test_what_was_left_and_fails_is_tried_again(world: World) -> None:
    """As if the pass itself had failed."""
    world.plans = [plan(STOP, CREATE)]
    world.cluster.failures["create w-1-2"] = RetryableError("not now")
    async with at_work(world.reconciler(isolate_jobs=True)):
        await until(lambda: len(world.cluster.done) == 2)
    assert (world.cluster.done, len(world.seen)) == (["create w-1-2"] * 2, 2)


async def test_a_refusal_of_what_was_left_is_seen(world: World) -> None:
    """By the pass that comes at once because of it."""
    world.plans = [plan(STOP, CREATE), plan()]
    world.cluster.failures["create w-1-2"] = ClusterRefused("QuotaExceeded", "no room")
    async with at_work(world.reconciler()):
        await until(lambda: len(world.seen) == 2)
    refusal = world.seen[1].refusal
    assert refusal is not None
    assert refusal.reason == "QuotaExceeded"


@pytest.mark.parametrize("asks", [True, False])
async def test_fatal_is_fatal_wherever_it_happens(world: World, asks: bool) -> None:
    """In a cluster too, whether a pass waits for its changes or not."""
    world.plans = [plan(*[STOP] * asks, CREATE)]
    world.cluster.failures["create w-1-2"] = FatalError("broken installation")
    with pytest.raises(FatalError, match="broken installation"):
        await running(world.reconciler(isolate_jobs=True), world, 100)


@pytest.mark.parametrize("isolate", [True, False])
async def test_a_bug_in_what_was_left(world: World, isolate: bool) -> None:
    """It is logged and tried again in a cluster, and raised on one machine."""
    world.plans = [plan(STOP, CREATE), plan()]
    world.cluster.failures["create w-1-2"] = ZeroDivisionError("a bug")
    reconciler = world.reconciler(isolate_jobs=isolate)
    if isolate:
        await running(reconciler, world, 2)
        return
    with pytest.raises(ZeroDivisionError):
        async with at_work(reconciler) as task, asyncio.timeout(10):
            await task
