"""The local cluster passes the conformance suite, and does what only it must do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conformance import AdoptionConformance, ClusterConformance, eventually, spec, worker_in

from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local import LocalCluster, worker_address
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.cluster.local_processes import ProcessId, start_ticks
from resumable_operator.decide.observation import Job
from resumable_operator.errors import FatalError, UserError
from resumable_operator.model import AttemptStatus, JobSpec, JobStatus, MemberStatus


class LocalWorld:
    """The local cluster as a world of the conformance suite."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def submit(self, spec: JobSpec) -> Job:
        stored = {**spec.plain()["checkpoint"], "directory": {"path": str(self.cluster.files.checkpoints)}}
        return self.cluster.submit("fake", JobSpec.model_validate({**spec.plain(), "checkpoint": stored}))

    async def kill_agent(self, worker: str) -> None:
        found = self.cluster.worker(worker)
        assert found is not None
        found.signal(signal.SIGKILL)

    async def kill_rank(self, worker: str) -> None:
        found = self.cluster.worker(worker)
        assert found is not None
        assert [process.signal(signal.SIGKILL) for process in found.ranks().values()] == [True]

    async def lose_machine(self, worker: str) -> None:
        found = self.cluster.worker(worker)
        assert found is not None
        await self.cluster.lose_machine(found)


def cluster_in(directory: Path, machines: int = 3) -> LocalCluster:
    return LocalCluster(directory, SystemClock(), Machines(machines, machines))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LocalWorld]:
    async with cluster_in(tmp_path / "run") as cluster:
        yield LocalWorld(cluster)


class TestConformance(ClusterConformance):
    """All of it."""


class TestAdoption(AdoptionConformance):
    """All of it."""


async def test_lost_machine_takes_all_processes(world: LocalWorld) -> None:
    """When a machine goes, its agent, ranks and their children are dead, and the worker says why."""
    job = await world.submit(spec())
    await world.cluster.create_worker(job, "w-0-1", 0, 1)
    await worker_in(world, job, "w-0-1", "running")
    worker = world.cluster.worker("w-0-1")
    assert worker is not None
    processes = worker.processes()
    assert processes
    await world.lose_machine("w-0-1")
    assert [process for process in processes if process.alive()] == []
    failed = await worker_in(world, job, "w-0-1", "failed")
    assert failed.disruption is not None
    assert failed.disruption.cause == "node_lost"


async def test_workers_wait_for_a_machine(tmp_path: Path) -> None:
    """With no machine free a worker is pending, with the reason, until one arrives."""
    async with LocalCluster(tmp_path, SystemClock(), Machines(1, 2)) as cluster:
        world = LocalWorld(cluster)
        job = await world.submit(spec())
        await cluster.create_worker(job, "w-0-1", 0, 1)
        await cluster.create_worker(job, "w-1-1", 1, 1)
        await worker_in(world, job, "w-0-1", "running")
        waiting = await worker_in(world, job, "w-1-1", "pending")
        assert waiting.reason == "Unschedulable"
        assert await cluster.capacity(job) == 1
        assert await cluster.bring_machine() is not None
        await worker_in(world, job, "w-1-1", "running")
        assert await cluster.bring_machine() is None


async def test_preempted_worker_is_away_afterwards(world: LocalWorld) -> None:
    """Notice with a deadline, SIGTERM to the agent, and then the machine takes no other worker."""
    job = await world.submit(spec())
    await world.cluster.create_worker(job, "w-0-1", 0, 1)
    await worker_in(world, job, "w-0-1", "running")
    worker = world.cluster.worker("w-0-1")
    assert worker is not None
    world.cluster.preempt_machine(worker, 20.0)
    assert await world.cluster.capacity(job) == 2
    ended = await worker_in(world, job, "w-0-1", "failed")
    assert ended.disruption is not None
    assert ended.disruption.cause == "preempted"
    assert ended.disruption.deadline is not None

    async def gone() -> bool:
        return not (await world.cluster.nodes(job))[ended.node].exists

    await eventually(gone, "the machine to go")


async def test_directory_has_one_owner(world: LocalWorld) -> None:
    """A second cluster on the directory is refused, and says which process has it."""
    with pytest.raises(UserError, match=str(os.getpid())):
        async with cluster_in(world.cluster.files.root):
            pass


async def test_workers_of_a_killed_run_are_shown_as_lost(tmp_path: Path) -> None:
    """After a kill the members of the attempt that ran are there, failed with their machine."""
    member = MemberStatus(
        worker="fake-0-1", place=0, incarnation=1, address="127.9.9.9", agent_port=1, first_rank=0, ranks=1
    )
    async with cluster_in(tmp_path) as cluster:
        job = await LocalWorld(cluster).submit(spec())
        attempt = AttemptStatus(number=4, members=(member,), state="running")
        await cluster.write_status(job, JobStatus(attempt=attempt))
    async with cluster_in(tmp_path) as cluster:
        job = await LocalWorld(cluster).submit(spec())
        (worker,) = await cluster.workers(job)
    assert (worker.name, worker.phase) == ("fake-0-1", "failed")
    assert worker.disruption is not None


async def test_leftovers_are_ended_only_if_they_are_the_same(tmp_path: Path) -> None:
    """A process that a file names is killed when number, start time and boot fit, and else left alone."""
    ours = await asyncio.create_subprocess_exec("sleep", "1000")
    other = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        for name, process, ticks in (
            ("a", ours, start_ticks(ours.pid) or 0),
            ("b", other, (start_ticks(other.pid) or 0) + 1),
        ):
            directory = tmp_path / "workers" / name
            directory.mkdir(parents=True)
            plain = {"pid": process.pid, "start_ticks": ticks, "address": "127.9.9.9", "port": 1}
            (directory / "agent.json").write_text(json.dumps(plain))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (tmp_path / "cluster.json").write_text(json.dumps({"machine_boot_id": "of another boot"}))
        async with cluster_in(tmp_path):
            assert ours.returncode is None
        (tmp_path / "cluster.json").write_text(json.dumps({"machine_boot_id": boot}))
        async with cluster_in(tmp_path):
            async with asyncio.timeout(10):
                await ours.wait()
        assert ours.returncode == -signal.SIGKILL
        assert ProcessId(other.pid, start_ticks(other.pid) or 0).alive()
    finally:
        for process in (ours, other):
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_damaged_files_are_named(tmp_path: Path) -> None:
    """A status that can't be read is an error with the file's name, not a job that starts anew."""
    async with cluster_in(tmp_path) as cluster:
        await LocalWorld(cluster).submit(spec())
        cluster.files.status.write_text("{")
        with pytest.raises(FatalError, match=r"status\.json"):
            await cluster.jobs()


async def test_key_is_private(world: LocalWorld) -> None:
    """The key's file is readable by its owner only."""
    assert world.cluster.files.key.stat().st_mode & 0o077 == 0


def test_addresses_differ() -> None:
    """Every place of a run has its own loopback address, none the common one, other runs other ones."""
    addresses = {worker_address("uid-a", place) for place in range(8)}
    assert len(addresses) == 8
    assert "127.0.0.1" not in addresses
    assert addresses.isdisjoint({worker_address("uid-b", place) for place in range(8)})
