"""What every implementation of ``cluster.port.Cluster`` must do: the local one and the Kubernetes one alike.

A test module of an implementation derives from these classes and provides the fixture ``world``. Workers are
real agents with fake ranks; every wait is for a condition and bounded.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.port import Change, Cluster
from resumable_operator.decide.observation import Job, Worker
from resumable_operator.errors import ConflictError
from resumable_operator.model import JobSpec, JobStatus, parse_spec
from resumable_operator.observe import observe
from resumable_operator.reconcile import Reconciler, Settings

FAKE_RANK = Path(__file__).parents[2] / "fakes" / "fake_rank.py"
PATIENCE_SECONDS = 30.0


class World(Protocol):
    """A cluster under test, and what a test may do to it from outside."""

    cluster: Cluster

    async def submit(self, spec: JobSpec) -> Job:
        """Create the job as a user would."""
        ...

    async def kill_agent(self, worker: str) -> None:
        """The worker's main process dies by itself; its machine stays."""
        ...

    async def kill_rank(self, worker: str) -> None:
        """One of the worker's ranks is killed."""
        ...

    async def lose_machine(self, worker: str) -> None:
        """The machine under the worker is gone for good."""
        ...


def spec(*fake: str, replicas: int = 2, least: int | None = None) -> JobSpec:
    """A job of fake ranks that runs for long, unless ``fake`` says otherwise."""
    command = [sys.executable, str(FAKE_RANK), *(fake or ("--steps", "1000000"))]
    return parse_spec(
        {
            "workers": {"replicas": replicas, "min": least or replicas},
            "template": {"spec": {"containers": [{"name": "worker", "command": command}]}},
            "recovery": {"shrinkAfterSeconds": 60},
        }
    )


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """The first true answer of ``check``."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


async def worker_in(world: World, job: Job, name: str, phase: str) -> Worker:
    """The worker, once it is in that phase."""

    async def find() -> Worker | None:
        found = [worker for worker in await world.cluster.workers(job) if worker.name == name]
        return found[0] if found and found[0].phase == phase else None

    found: Worker = await eventually(find, f"{name} to be {phase}")
    return found


async def next_change(changes: asyncio.Queue[Change], wanted: Callable[[Change], bool], what: str) -> Change:
    """The first change that is wanted; others are skipped."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            change = await changes.get()
            if wanted(change):
                return change
    raise AssertionError(f"waited in vain for {what}")


class Watcher:
    """Collects what ``watch`` tells. Use as ``async with``."""

    def __init__(self, cluster: Cluster) -> None:
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self._cluster = cluster

    async def __aenter__(self) -> asyncio.Queue[Change]:
        self._task = asyncio.create_task(self._collect())
        await asyncio.sleep(0)
        return self.changes

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _collect(self) -> None:
        async for change in self._cluster.watch():
            self.changes.put_nowait(change)


class ClusterConformance:
    """The port, method by method."""

    async def test_jobs_are_found(self, world: World) -> None:
        """A submitted job is listed and found by its key, with its spec; an unknown key finds nothing."""
        job = await world.submit(spec())
        jobs = await world.cluster.jobs()
        assert [found.key for found in jobs if found.namespace == job.namespace] == [job.key]
        found = await world.cluster.job(job.key)
        assert found is not None
        assert (found.uid, found.spec) == (job.uid, job.spec)
        assert (found.spec.workers, found.spec.command()) == (spec().workers, spec().command())
        assert await world.cluster.job("local/another") is None

    async def test_status_is_stored(self, world: World) -> None:
        """What is written is what is read, under a newer version."""
        job = await world.submit(spec())
        written = await world.cluster.write_status(job, JobStatus(step=7, cursors={"boot": 3}))
        assert written.resource_version != job.resource_version
        stored = await world.cluster.job(job.key)
        assert stored is not None
        assert stored == written
        assert (stored.status.step, stored.status.cursors) == (7, {"boot": 3})

    async def test_stale_status_is_refused(self, world: World) -> None:
        """A write based on an old version raises ConflictError and changes nothing: reserve, then act."""
        job = await world.submit(spec())
        await world.cluster.write_status(job, JobStatus(step=1))
        with pytest.raises(ConflictError):
            await world.cluster.write_status(job, JobStatus(step=2))
        stored = await world.cluster.job(job.key)
        assert stored is not None
        assert stored.status.step == 1

    async def test_worker_comes_up(self, world: World) -> None:
        """A created worker runs an agent that can be reached; creating it again makes no second one."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        worker = await worker_in(world, job, "fake-0-1", "running")
        assert (worker.place, worker.incarnation, worker.deleting) == (0, 1, False)
        assert worker.address
        assert worker.agent_port > 0
        assert worker.node in await world.cluster.nodes(job)
        assert len(await world.cluster.workers(job)) == 1

    async def test_agent_takes_the_jobs_key(self, world: World) -> None:
        """Calls signed with ``agent_key`` are accepted by the agents of the job's workers."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        await worker_in(world, job, "fake-0-1", "running")
        agents = AgentPool(SystemClock())
        try:
            await observe(world.cluster, agents, job)

            async def connected() -> bool:
                return agents.agents(job.key)["fake-0-1"].connected

            await eventually(connected, "the agent's stream")
        finally:
            await agents.close()

    async def test_watch_tells_of_a_worker(self, world: World) -> None:
        """Coming up and dying are told at once, with the worker as it is then."""
        job = await world.submit(spec())
        async with Watcher(world.cluster) as changes:
            await world.cluster.create_worker(job, "fake-0-1", 0, 1)
            up = await next_change(changes, _phase("running"), "the worker to run")
            assert up.job_key == job.key
            await world.kill_agent("fake-0-1")
            down = await next_change(changes, _phase("failed"), "the worker to fail")
            assert down.worker is not None
            assert down.worker.exit_code is not None

    async def test_dead_agent_is_a_failed_worker(self, world: World) -> None:
        """An agent that dies by itself leaves a failed worker with no disruption, until it is deleted."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        await worker_in(world, job, "fake-0-1", "running")
        await world.kill_agent("fake-0-1")
        worker = await worker_in(world, job, "fake-0-1", "failed")
        assert worker.disruption is None
        await world.cluster.delete_worker(job, "fake-0-1", 10.0)
        await eventually(lambda: _none(world, job), "the worker to go")

    async def test_lost_machine(self, world: World) -> None:
        """A lost machine shows on the worker or on its node, and can't take a replacement."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        before = await worker_in(world, job, "fake-0-1", "running")
        capacity = await world.cluster.capacity(job)
        await world.lose_machine("fake-0-1")

        async def shown() -> bool:
            nodes = await world.cluster.nodes(job)
            node = nodes.get(before.node)
            return node is None or not node.exists or not node.ready

        await eventually(shown, "the node to be gone")
        now = await world.cluster.capacity(job)
        assert now is None or capacity is None or now == capacity - 1

    async def test_deletion_with_grace(self, world: World) -> None:
        """The agent is asked to end; until it has, the worker is there and says that it is being deleted."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        worker = await worker_in(world, job, "fake-0-1", "running")
        await eventually(lambda: listens(worker), "its agent, which would not hear a signal before")
        async with Watcher(world.cluster) as changes:
            await world.cluster.delete_worker(job, "fake-0-1", 20.0)
            await next_change(changes, lambda change: change.gone and change.job_key == job.key, "its end")
        assert await world.cluster.workers(job) == []

    async def test_deletion_at_once(self, world: World) -> None:
        """0 seconds of grace: killed and removed; deleting what is not there is success."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        await worker_in(world, job, "fake-0-1", "running")
        await world.cluster.delete_worker(job, "fake-0-1", 0.0)
        await eventually(lambda: _none(world, job), "the worker to go")
        await world.cluster.delete_worker(job, "fake-0-1", 0.0)

    async def test_next_incarnation(self, world: World) -> None:
        """The same place can be taken by a next incarnation while the old one is still known."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        await worker_in(world, job, "fake-0-1", "running")
        await world.kill_agent("fake-0-1")
        await worker_in(world, job, "fake-0-1", "failed")
        await world.cluster.create_worker(job, "fake-0-2", 0, 2)
        worker = await worker_in(world, job, "fake-0-2", "running")
        assert (worker.place, worker.incarnation) == (0, 2)

    async def test_telling_people_never_fails(self, world: World) -> None:
        """An event for people is told without raising, whatever is in it."""
        job = await world.submit(spec())
        await world.cluster.emit_event(job, "Warning", "Something", "ünïcode\nand lines")

    async def test_key_is_stable(self, world: World) -> None:
        """The key of a worker's agent is 32 bytes and stays the same."""
        job = await world.submit(spec())
        await world.cluster.create_worker(job, "fake-0-1", 0, 1)
        [worker] = await world.cluster.workers(job)
        key = world.cluster.agent_key(job, worker)
        assert (len(key), world.cluster.agent_key(job, worker)) == (32, key)


class Frozen:
    """Stops a reconciler for good at its ``number``-th moment after ``arm``, as if its process had died.

    A write right after a write, with no other effect between, is no moment of its own: how many of those
    there are depends on the time that things take.
    """

    def __init__(self, number: int | None) -> None:
        self.reached = asyncio.Event()
        self.names: list[str] = []
        self._number = number
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    async def __call__(self, name: str) -> None:
        if not self._armed or (name in ("write", "written") and self.names[-1:] == ["written"]):
            return
        self.names.append(name)
        if self._number is not None and len(self.names) > self._number:
            self.reached.set()
            await asyncio.Event().wait()


class Operator:
    """A reconciler with its own agent pool: what a restarted operator process is. Use as ``async with``."""

    def __init__(self, world: World, frozen: Frozen | None = None) -> None:
        clock = SystemClock()
        self._agents = AgentPool(clock)
        settings = Settings(status_seconds=0.2, actions_at_once=1, isolate_jobs=False)
        settings = replace(settings, moment=frozen) if frozen else settings
        self._reconciler = Reconciler(world.cluster, self._agents, clock, settings)

    async def __aenter__(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._reconciler.run())
        return self._task

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._agents.close()


SHORT = ("--steps", "40", "--step-seconds", "0.01", "--checkpoint-every", "10")
START_MOMENTS = 18  # at least as many as there are until two workers train; the test checks that
RECOVERY_MOMENTS = 16


class AdoptionConformance:
    """A fresh operator over a living cluster goes on where the old one stopped, between any two effects."""

    @pytest.mark.parametrize("number", [None, *range(START_MOMENTS)])
    async def test_killed_while_starting(self, world: World, number: int | None) -> None:
        """Stopped anywhere in a job's start: its successor makes no second worker and no second attempt."""
        frozen = Frozen(number)
        frozen.arm()
        job = await world.submit(spec(*SHORT))
        async with Operator(world, frozen) as task:
            await _reached_or(frozen, task, lambda: _trains(world, job))
        async with Operator(world) as task:
            await eventually(lambda: _alive(task, _phase_is(world, job, "Succeeded")), "success")
        status = await _status(world, job)
        assert (status.attempt.number, status.interruptions) == (1, ())
        assert status.incarnations == {"0": 1, "1": 1}
        assert number is not None or 4 < len(frozen.names) <= START_MOMENTS

    @pytest.mark.parametrize("number", [None, *range(RECOVERY_MOMENTS)])
    async def test_killed_while_recovering(self, world: World, number: int | None) -> None:
        """Stopped anywhere in a recovery: the same workers go on in attempt 2; the failure counts once."""
        frozen = Frozen(number)
        job = await world.submit(spec(*SHORT))
        async with Operator(world, frozen) as task:
            await eventually(lambda: _alive(task, _trains(world, job)), "training")
            frozen.arm()
            await world.kill_rank((await _status(world, job)).attempt.members[1].worker)
            await _reached_or(frozen, task, lambda: _trains(world, job, attempt=2))
        async with Operator(world) as task:
            await eventually(lambda: _alive(task, _phase_is(world, job, "Succeeded")), "success")
        status = await _status(world, job)
        assert status.attempt.number == 2
        assert [ending.cause for ending in status.interruptions] == ["crash"]
        assert status.incarnations == {"0": 1, "1": 1}
        assert number is not None or 4 < len(frozen.names) <= RECOVERY_MOMENTS


def _phase(phase: str) -> Callable[[Change], bool]:
    return lambda change: change.worker is not None and change.worker.phase == phase


async def listens(worker: Worker) -> bool:
    try:
        _, writer = await asyncio.open_connection(worker.address, worker.agent_port)
    except OSError:
        return False
    writer.close()
    return True


async def _none(world: World, job: Job) -> bool:
    return await world.cluster.workers(job) == []


async def _status(world: World, job: Job) -> JobStatus:
    stored = await world.cluster.job(job.key)
    assert stored is not None
    return stored.status


async def _phase_is(world: World, job: Job, phase: str) -> bool:
    return (await _status(world, job)).phase == phase


async def _trains(world: World, job: Job, attempt: int = 1) -> bool:
    status = await _status(world, job)
    return (status.attempt.number, status.attempt.state) == (attempt, "running") and status.step > 0


async def _alive(task: asyncio.Task[None], check: Awaitable[bool]) -> bool:
    """The answer of ``check``; an operator that has failed is reported as what it failed with."""
    if task.done():
        task.result()
    return await check


async def _reached_or(
    frozen: Frozen, task: asyncio.Task[None], otherwise: Callable[[], Awaitable[bool]]
) -> None:
    """Wait until the operator froze, or there was no such moment."""

    async def either() -> bool:
        return frozen.reached.is_set() or await _alive(task, otherwise())

    await eventually(either, "the moment to stop at")
