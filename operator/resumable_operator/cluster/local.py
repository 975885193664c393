"""A cluster on one machine: the job in files, workers as agent processes, machines as pretended places.

``rtj run`` holds one of these. It plays the part of API server, scheduler and kubelets together: what lives
in memory here is the world, not the operator's view of it. Killed with SIGKILL, its workers end with it,
because each agent holds the read end of a pipe whose other end was here; the files say where to go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

from resumable_operator.clock import Clock
from resumable_operator.cluster.local_files import RunFiles, RunLock, left_behind, load_or_make_key
from resumable_operator.cluster.local_machines import Machine, Machines
from resumable_operator.cluster.local_processes import kill_leftovers
from resumable_operator.cluster.local_store import JobStore, StoreUnwritable
from resumable_operator.cluster.local_worker import LocalWorker
from resumable_operator.cluster.port import Change
from resumable_operator.decide.observation import Disruption, Job, Node, Problem, Worker
from resumable_operator.errors import FatalError, RetryableError, SpecError
from resumable_operator.model import JobSpec, JobStatus, MemberStatus
from resumable_training.contract.assignment import AgentSpec

logger = logging.getLogger(__name__)

EventListener = Callable[[Literal["Normal", "Warning"], str, str], None]


class LocalCluster:
    """Implements ``port.Cluster``. Use as ``async with``: it owns the run directory while it is open.

    Args:
        environment: extra variables of the ranks, beside this process's own.
        gpus: devices to share out among machines, ``gpus_per_worker`` to each; empty: not our business.

    Raises (on entering):
        UserError: another process owns the directory.
        FatalError: its files are damaged.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        machines: Machines,
        *,
        environment: dict[str, str] | None = None,
        gpus: tuple[str, ...] = (),
        gpus_per_worker: int = 0,
        on_event: EventListener = lambda _kind, _reason, _message: None,
    ) -> None:
        self.files = RunFiles(directory.resolve())
        self.machines = machines
        self._clock = clock
        self._environment = environment or {}
        self._gpus, self._gpus_per_worker = gpus, gpus_per_worker
        self._on_event = on_event
        self._lock = RunLock(self.files.lock)
        self.store = JobStore(self.files, clock)
        self._key = b""
        self._workers: dict[str, LocalWorker] = {}
        self._watchers: set[asyncio.Queue[Change]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lifeline: tuple[int, int] = (-1, -1)
        self._submitted = False
        self._unwritable = False

    async def __aenter__(self) -> LocalCluster:
        self.files.root.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        try:
            self.files.workers.mkdir(exist_ok=True)
            self._key = load_or_make_key(self.files.key)
            self._lifeline = os.pipe()
            await self._clear_leftovers()
        except BaseException:
            self._let_go()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        living = [worker for worker in self._workers.values() if not worker.ended]
        await asyncio.gather(*(asyncio.to_thread(worker.kill_all) for worker in living))
        for worker in living:
            if worker.process is not None:
                await worker.process.wait()
        self._let_go()

    # ---- the job -------------------------------------------------------------------------------------

    def submit(self, name: str, spec: JobSpec, suspended_by: str = "") -> Job:
        """Create the job, or change the spec of the one that is there.

        Workers that an earlier, killed ``rtj run`` had in an attempt are shown as lost with their machine.
        """
        job = self.store.submit(name, spec, suspended_by)
        self._submitted = True
        if job.status.attempt.state != "ended":
            for member in job.status.attempt.members:
                if member.worker not in self._workers:
                    self._show_lost(job, member)
        self._tell(Change(job.key, "job"))
        return job

    async def jobs(self) -> list[Job]:
        job = self.store.job()
        if job is None and self._submitted:
            raise FatalError(f"{self.files.job} was removed while its job ran")
        return [job] if job else []

    async def job(self, key: str) -> Job | None:
        return next((job for job in await self.jobs() if job.key == key), None)

    async def write_status(self, job: Job, status: JobStatus) -> Job:
        """In a thread: a disk that is busy with checkpoints can take seconds for a few bytes."""
        try:
            stored = await asyncio.to_thread(self.store.write_status, job, status)
        except StoreUnwritable as error:
            if not self._unwritable:
                self._on_event("Warning", "StatusNotWritten", str(error))
            self._unwritable = True
            raise
        if self._unwritable:
            self._unwritable = False
            await self.emit_event(job, "Normal", "StatusWritten", "the run directory can be written again")
        return stored

    async def emit_event(
        self, job: Job, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        try:
            self.store.record_event(kind, reason, message)
        except OSError as error:
            logger.warning("event %s could not be written: %s", reason, error)
        self._on_event(kind, reason, message)

    async def report_invalid(self, key: str, error: SpecError) -> None:
        raise FatalError(f"{self.files.job} holds a job that cannot be read: {error}")

    async def check(self, job: Job) -> tuple[Problem, ...]:
        return ()  # the command line looks before it submits

    async def delete_job(self, job: Job) -> None:
        """Run directories are their users' to remove."""

    def operators(self) -> tuple[str, ...]:
        return ()  # the run directory's lock lets in nobody else

    def agent_key(self, job: Job, worker: Worker) -> bytes:
        return self._key

    # ---- workers -------------------------------------------------------------------------------------

    async def workers(self, job: Job) -> list[Worker]:
        return [worker.view() for worker in self._workers.values()]

    async def nodes(self, job: Job) -> dict[str, Node]:
        machines = self.machines.all.values()
        return {machine.name: Node(machine.name, ready=machine.up, exists=machine.up) for machine in machines}

    async def capacity(self, job: Job) -> int | None:
        return self.machines.capacity

    async def create_worker(
        self, job: Job, name: str, place: int, incarnation: int, avoid: tuple[str, ...] = ()
    ) -> None:
        """``avoid`` changes nothing: all places are on one machine."""
        if name in self._workers:
            return
        worker = self._new_worker(job, name, place, incarnation)
        self._workers[name] = worker
        self._changed(worker)
        await self._place(worker)

    async def delete_worker(self, job: Job, name: str, grace_seconds: float) -> None:
        worker = self._workers.get(name)
        if worker is None:
            return
        if worker.process is None or worker.ended:
            self._remove(worker)
            return
        worker.deleting = True
        worker.deleting_since = worker.deleting_since or self._clock.now()
        self._changed(worker)
        if grace_seconds <= 0:
            await asyncio.to_thread(worker.kill_all)
        else:
            worker.signal(signal.SIGTERM)
            self._kill_after(worker, grace_seconds)

    def worker(self, name: str) -> LocalWorker | None:
        """The worker of that name, for faults and tests."""
        return self._workers.get(name)

    def running_workers(self) -> list[LocalWorker]:
        """Workers whose agent listens, by place."""
        running = [worker for worker in self._workers.values() if worker.phase == "running"]
        return sorted(running, key=lambda worker: (worker.place, worker.incarnation))

    async def watch(self) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    # ---- machines (faults) ---------------------------------------------------------------------------

    async def lose_machine(self, worker: LocalWorker) -> Machine:
        """The worker's machine is gone at once with all that runs on it."""
        machine = self._machine(worker)
        worker.disruption = Disruption("node_lost", "MachineLost")
        self.machines.take_away(machine)
        await asyncio.to_thread(worker.kill_all)
        return machine

    def preempt_machine(self, worker: LocalWorker, grace_seconds: float) -> Machine:
        """Notice that the machine goes in ``grace_seconds``; its agent is asked to end, and killed then."""
        machine = self._machine(worker)
        machine.leaving = True
        worker.disruption = Disruption("preempted", "PreemptionNotice", self._clock.now() + grace_seconds)
        worker.signal(signal.SIGTERM)
        self._kill_after(worker, grace_seconds)
        self._changed(worker)
        return machine

    async def bring_machine(self, number: int | None = None) -> Machine | None:
        """A machine arrives (or comes back); workers that wait are placed."""
        machine = self.machines.bring(number)
        if machine is not None:
            await self._place_waiting()
            for job in await self.jobs():
                self._tell(Change(job.key, "node"))
        return machine

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run ``work`` until it ends or the cluster is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the local cluster failed", exc_info=task.exception())

    def _machine(self, worker: LocalWorker) -> Machine:
        machine = self.machines.of(worker.name)
        if machine is None:
            raise RetryableError(f"{worker.name} runs on no machine now")
        return machine

    # ---- life of a worker ----------------------------------------------------------------------------

    async def _place_waiting(self) -> None:
        for worker in list(self._workers.values()):
            if worker.phase == "pending" and not worker.machine:
                await self._place(worker)

    async def _place(self, worker: LocalWorker) -> None:
        machine = self.machines.place(worker.name)
        if machine is None:
            worker.reason, worker.message = "Unschedulable", "no machine is free"
            return
        worker.machine, worker.reason, worker.message = machine.name, "", ""
        worker.schedulable_since = self._clock.now()
        try:
            await worker.start(self._agent_spec(worker, machine), self._lifeline[0])
        except OSError as error:
            self._end(worker, None, f"the agent could not be started: {error}")
            return
        self.spawn(self._await_ready(worker))
        self.spawn(self._await_exit(worker))

    async def _await_ready(self, worker: LocalWorker) -> None:
        await worker.ready()
        self._changed(worker)

    async def _await_exit(self, worker: LocalWorker) -> None:
        assert worker.process is not None
        code = await worker.process.wait()
        own = code > 0 and not worker.disruption and not worker.deleting  # a killed agent had no last words
        self._end(worker, code, worker.log_tail() if own else "")
        await asyncio.to_thread(worker.kill_all)
        self.machines.release(worker.name)
        if worker.deleting:
            self._remove(worker)
        await self._place_waiting()

    def _end(self, worker: LocalWorker, code: int | None, message: str) -> None:
        if worker.kill_timer is not None:
            worker.kill_timer.cancel()
        worker.exit_code, worker.message = code, message
        worker.phase = "succeeded" if code == 0 and worker.disruption is None else "failed"
        self._changed(worker)

    def _remove(self, worker: LocalWorker) -> None:
        if worker.process is None:
            self.machines.release(worker.name)
        self._workers.pop(worker.name, None)
        self._changed(worker, gone=True)

    def _kill_after(self, worker: LocalWorker, seconds: float) -> None:
        def kill() -> None:
            self.spawn(asyncio.to_thread(worker.kill_all))

        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        if worker.kill_timer is not None and not worker.kill_timer.cancelled():
            if worker.kill_timer.when() <= due:
                return
            worker.kill_timer.cancel()
        worker.kill_timer = loop.call_at(due, kill)

    def _agent_spec(self, worker: LocalWorker, machine: Machine) -> AgentSpec:
        job = self.store.job()
        assert job is not None
        container = job.spec.worker_container()
        return AgentSpec(
            job=job.key,
            job_uid=job.uid,
            worker=worker.name,
            place=worker.place,
            incarnation=worker.incarnation,
            command=job.spec.command(),
            address=worker_address(job.uid, worker.place),
            directory=str(worker.directory),
            log_directory=str(self.files.logs),
            key_file=str(self.files.key),
            working_directory=container.get("workingDir") or os.getcwd(),
            lifeline_fd=self._lifeline[0],
            drain_seconds=job.spec.recovery.drain_seconds,
            allow_faults=True,
            preload=job.spec.workers.preload.enabled,
            preload_modules=job.spec.workers.preload.modules,
            environment={**self._environment, **container_environment(container), **self._devices(machine)},
        )

    def _devices(self, machine: Machine) -> dict[str, str]:
        """GPUs are shared out like machines, so that two workers never meet on one."""
        if not self._gpus:
            return {}
        first = (machine.number - 1) * self._gpus_per_worker
        return {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus[first : first + self._gpus_per_worker])}

    # ---- changes and leftovers -----------------------------------------------------------------------

    def _changed(self, worker: LocalWorker, gone: bool = False) -> None:
        self._tell(Change(worker.job_key, "worker", worker.view(), gone))

    def _tell(self, change: Change) -> None:
        for queue in self._watchers:
            queue.put_nowait(change)

    async def _clear_leftovers(self) -> None:
        """End what an earlier, killed run may have left."""
        earlier = left_behind(self.files)  # is there only when its writer was killed
        left = await asyncio.to_thread(kill_leftovers, self.files.workers, earlier.get("machine_boot_id"))
        if left:
            raise FatalError(f"processes {left} of an earlier run in {self.files.root} can't be ended")

    def _show_lost(self, job: Job, member: MemberStatus) -> None:
        worker = self._new_worker(job, member.worker, member.place, member.incarnation)
        worker.phase = "failed"
        worker.disruption = Disruption("node_lost", "RunEnded")
        worker.message = "the rtj run that held this worker ended"
        self._workers[worker.name] = worker

    def _new_worker(self, job: Job, name: str, place: int, incarnation: int) -> LocalWorker:
        directory = self.files.worker(name)
        return LocalWorker(name, job.key, place, incarnation, directory, created_at=self._clock.now())

    def _let_go(self) -> None:
        for descriptor in self._lifeline:
            if descriptor >= 0:
                os.close(descriptor)
        self._lifeline = (-1, -1)
        self._lock.release()


def worker_address(job_uid: str, place: int) -> str:
    """Loopback address of a worker: its own on Linux, so that runs and places don't meet; else shared."""
    if not sys.platform.startswith("linux"):
        return "127.0.0.1"
    digest = hashlib.sha256(job_uid.encode()).digest()
    network = ipaddress.IPv4Address(f"127.{1 + digest[0] % 254}.{digest[1]}.1")
    return str(network + place % 250)


def container_environment(container: dict[str, Any]) -> dict[str, str]:
    """``env`` of a container; ``valueFrom`` means nothing on one machine (the CLI refuses it)."""
    return {entry["name"]: entry.get("value") or "" for entry in container.get("env") or ()}
