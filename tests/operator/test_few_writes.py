"""What a recovery need not wait for: writes that the next one has in it, and its turn to connect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from one_job import KEY, SPEC, STOP, World, plan, running, until

from resumable_operator.agent_client import Endpoint
from resumable_operator.cluster.port import Change
from resumable_operator.decide.actions import CreateWorker, Plan, SendAssignment, SendRequest
from resumable_operator.decide.assign import checkpoint_config, limits
from resumable_operator.decide.observation import Worker
from resumable_operator.errors import FatalError, RetryableError
from resumable_operator.model import AttemptStatus, JobStatus
from resumable_operator.status_times import SOON_SECONDS
from resumable_training.contract.assignment import Assignment, Request

ASSIGNMENT = Assignment(
    job=KEY,
    job_uid="uid",
    attempt=2,
    digest="",
    worker="w-0-1",
    members=(),
    master_address="",
    master_port=0,
    high_water_samples=0,
    limits=limits(SPEC),
    checkpoint=checkpoint_config(SPEC, JobStatus()),
)
NEWCOMER = Worker("w-1-2", 1, 2, "running", address="127.0.0.1", agent_port=1)


@pytest.fixture
def world() -> World:
    return World()


def attempt(state: str, number: int = 1) -> AttemptStatus:
    return AttemptStatus.model_validate({"number": number, "state": state})


def soon(step: int) -> Plan:
    return replace(plan(step=step), soon=True)


async def test_what_is_for_people_waits_for_a_write_that_must_be(world: World) -> None:
    """It is in that one; without one it is written after a moment, by itself."""
    world.plans = [plan(step=1, must_write=True), soon(2), plan(step=3, must_write=True), soon(4), soon(5)]
    reconciler = world.reconciler(status_seconds=3600.0)
    for _ in range(4):
        await reconciler.step(KEY)
    assert world.cluster.done == ["write step 1", "write step 3"]
    world.clock.time += SOON_SECONDS
    await reconciler.step(KEY)
    assert world.cluster.done == ["write step 1", "write step 3", "write step 5"]
    reconciler.queue.close()


async def test_an_end_that_is_over_at_once_is_written_once(world: World) -> None:
    """Its ranks are stopped, then looked at again: what is decided then is written and done, and nobody is
    stopped twice. Nothing is created for the first decision, which was never written."""
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, status=JobStatus(attempt=attempt("running")))
    begun = (STOP, CreateWorker("w-1-2", 1, 2))
    over = (STOP, SendRequest("w-2-1", Request("stop", attempt=1)), CreateWorker("w-1-3", 1, 3))
    world.plans = [
        Plan(JobStatus(step=1, attempt=attempt("ending")), begun, "begun", must_write=True),
        Plan(JobStatus(step=2, attempt=attempt("forming", 2)), over, "over", must_write=True),
    ]
    made = await world.reconciler().step(KEY)
    assert made is not None
    assert made.reason == "over"
    assert world.cluster.done == ["write step 2", "create w-1-3"]
    assert world.agents.sent == [("w-0-1", "stop"), ("w-2-1", "stop")]
    assert len(world.seen) == 2


async def test_a_member_that_is_slow_to_stop_gets_its_assignment_when_it_has(world: World) -> None:
    """What the second decision sends to it is not begun while the stop is under way, and not forgotten,
    also when that is answered before the pass is over."""
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, status=JobStatus(attempt=attempt("running")))
    world.agents.mute["w-0-1"] = asyncio.Event()
    world.plans = [
        Plan(JobStatus(step=1, attempt=attempt("ending")), (STOP,), "begun", must_write=True),
        Plan(JobStatus(step=2, attempt=attempt("forming", 2)), (SendAssignment(ASSIGNMENT),), "", True),
    ]
    reconciler = world.reconciler(relist_seconds=3600.0)
    task = asyncio.create_task(reconciler.run())
    try:
        await until(lambda: "write step 2" in world.cluster.done)
        world.agents.mute["w-0-1"].set()
        await until(lambda: bool(world.agents.assigned))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_who_is_not_asked_to_stop_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost member will not say that its ranks have ended, and its stream may not have broken yet."""
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, status=JobStatus(attempt=attempt("running")))
    awaited: list[str] = []

    async def stopped(_key: str, _attempt: int, workers: Iterable[str], _seconds: float) -> None:
        awaited.extend(workers)

    monkeypatch.setattr(world.agents, "stopped", stopped)
    members = [
        {"worker": name, "place": place, "incarnation": 1, "address": "a", "agent_port": 1}
        | {"first_rank": place, "ranks": 1}
        for place, name in enumerate(("w-0-1", "w-1-1"))
    ]
    ending = AttemptStatus.model_validate({"number": 1, "state": "ending", "members": members})
    world.plans = [Plan(JobStatus(step=1, attempt=ending), (STOP,), "begun", must_write=True)]
    await world.reconciler().step(KEY)
    assert awaited == ["w-0-1"]


async def test_an_end_that_takes_its_time_is_looked_at_once_a_pass(world: World) -> None:
    """Its beginning was written: nothing is decided anew between stopping and the next write."""
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, status=JobStatus(attempt=attempt("ending")))
    world.plans = [Plan(JobStatus(step=1, attempt=attempt("ending")), (STOP,), "", must_write=True)]
    await world.reconciler().step(KEY)
    assert world.cluster.done == ["write step 1"]
    assert len(world.seen) == 1


@pytest.mark.parametrize(
    ("change", "met"),
    [
        pytest.param(Change(KEY, "worker", NEWCOMER), True, id="it runs"),
        pytest.param(Change(KEY, "worker", replace(NEWCOMER, phase="pending")), False, id="not yet"),
        pytest.param(Change(KEY, "worker", replace(NEWCOMER, address="")), False, id="nowhere"),
        pytest.param(Change(KEY, "worker", NEWCOMER, gone=True), False, id="gone"),
        pytest.param(Change(KEY, "job"), False, id="no worker"),
        pytest.param(Change("ns/other", "worker", NEWCOMER), False, id="of a job that is not there"),
    ],
)
async def test_a_newcomer_is_met_by_the_watch(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Change, met: bool
) -> None:
    """Before any pass: it may have to wait for a write of the one before."""
    found: list[tuple[str, Endpoint]] = []
    monkeypatch.setattr(world.agents, "meet", lambda key, endpoint, _cursors: found.append((key, endpoint)))
    world.plans = [plan()]
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    world.cluster.changes.put_nowait(change)
    world.cluster.changes.put_nowait(Change(KEY, "job"))
    await running(reconciler, world, 2)
    await asyncio.sleep(0)
    assert [(key, endpoint.worker) for key, endpoint in found] == ([(KEY, "w-1-2")] if met else [])


async def test_a_newcomer_that_cannot_be_met_breaks_no_watch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server may not answer for now; its pass will tell. What only a person can mend is raised."""
    reconciler = world.reconciler()
    errors: list[Exception] = [RetryableError("timeout"), FatalError("forbidden")]

    async def job(_key: str) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(world.cluster, "job", job)
    await reconciler._meet(Change(KEY, "worker", NEWCOMER))
    with pytest.raises(FatalError):
        await reconciler._meet(Change(KEY, "worker", NEWCOMER))
