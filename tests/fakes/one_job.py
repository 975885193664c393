"""One job in memory, for tests of the loop: a cluster and agents that note what is done, plans to decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.port import Change
from resumable_operator.decide.actions import (
    Action,
    Plan,
    SendRequest,
)
from resumable_operator.decide.observation import Job, Node, Observation, Problem, Worker
from resumable_operator.errors import (
    AgentUnreachable,
    ConflictError,
    SpecError,
)
from resumable_operator.model import Condition, JobSpec, JobStatus, Workers
from resumable_operator.reconcile import Reconciler, Settings
from resumable_training.contract.assignment import Assignment, Request
from resumable_training.contract.events import AgentState

SPEC = JobSpec(workers=Workers(replicas=1))
KEY = "ns/train"
VALID = Condition(type="Valid", status="True", reason="Checked")
STOP = SendRequest("w-0-1", Request("stop", attempt=1))


@dataclass
class FakeCluster:
    """One job in memory; ``done`` is what happened, in order."""

    done: list[str] = field(default_factory=list)
    stored: Job | None = field(default_factory=lambda: Job("ns", "train", "uid", 1, SPEC, JobStatus(), "1"))
    conflicts: int = 0
    unreadable: SpecError | None = None
    problems: tuple[Problem, ...] | Exception = ()
    checks: int = 0
    failures: dict[str, Exception] = field(default_factory=dict)
    jobs_to_list: tuple[str, ...] = ()  # keys; none: the one that is there
    changes: asyncio.Queue[Change] = field(default_factory=asyncio.Queue)
    names: tuple[str, ...] = ()  # of this operator

    async def jobs(self) -> list[Job]:
        if self.stored is None:
            return []
        names = [key.partition("/")[2] for key in self.jobs_to_list] or ["train"]
        return [replace(self.stored, name=name) for name in names]

    async def job(self, key: str) -> Job | None:
        if self.unreadable is not None:
            raise self.unreadable
        return self.stored if self.stored and self.stored.key == key else None

    async def workers(self, job: Job) -> list[Worker]:
        return []

    async def nodes(self, job: Job) -> dict[str, Node]:
        return {}

    async def capacity(self, job: Job) -> int | None:
        return None

    async def create_worker(
        self, job: Job, name: str, place: int, incarnation: int, avoid: tuple[str, ...] = ()
    ) -> None:
        self._do(f"create {name}" + "".join(f" not on {node}" for node in avoid))

    async def delete_worker(self, job: Job, name: str, grace_seconds: float) -> None:
        self._do(f"delete {name}")

    async def write_status(self, job: Job, status: JobStatus) -> Job:
        if self.conflicts:
            self.conflicts -= 1
            raise ConflictError("written by another")
        self.done.append(f"write step {status.step}")
        self.stored = replace(job, status=status, resource_version=str(int(job.resource_version) + 1))
        return self.stored

    async def emit_event(
        self, job: Job, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        self.done.append(f"tell {reason}")

    async def report_invalid(self, key: str, error: SpecError) -> None:
        self.done.append(f"invalid {key}")

    async def check(self, job: Job) -> tuple[Problem, ...]:
        self.checks += 1
        if isinstance(self.problems, Exception):
            raise self.problems
        return self.problems

    async def delete_job(self, job: Job) -> None:
        self._do("delete job")

    def operators(self) -> tuple[str, ...]:
        return self.names

    def agent_key(self, job: Job, worker: Worker) -> bytes:
        return b"k" * 32

    async def watch(self) -> AsyncIterator[Change]:
        while True:
            yield await self.changes.get()

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what in self.failures:
            raise self.failures.pop(what)


class FakeAgents(AgentPool):
    """No agents; requests fail as ``failures`` says."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.sent: list[tuple[str, str]] = []
        self.assigned: list[Assignment] = []
        self.unreachable: set[str] = set()
        self.mute: dict[str, asyncio.Event] = {}  # answer when that is set

    async def assign(self, job_key: str, assignment: Assignment) -> AgentState:
        self.assigned.append(assignment)
        return AgentState("boot", assignment.worker)

    async def request(self, job_key: str, worker: str, request: Request) -> AgentState:
        self.sent.append((worker, request.kind))
        if worker in self.mute:
            await self.mute[worker].wait()
        if worker in self.unreachable:
            raise AgentUnreachable(worker)
        return AgentState("boot", worker)


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


@dataclass
class World:
    cluster: FakeCluster = field(default_factory=FakeCluster)
    agents: FakeAgents = field(default_factory=FakeAgents)
    clock: FakeClock = field(default_factory=FakeClock)
    plans: list[Plan] = field(default_factory=list)  # what to decide, one after the other; the last repeats
    seen: list[Observation] = field(default_factory=list)

    def decide(self, observation: Observation, now: float) -> Plan:
        self.seen.append(observation)
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    def reconciler(self, **settings: object) -> Reconciler:
        chosen = replace(Settings(isolate_jobs=False), **settings)  # type: ignore[arg-type]
        return Reconciler(self.cluster, self.agents, self.clock, chosen, self.decide)


def plan(*actions: Action, step: int = 0, must_write: bool = False, wake_at: float | None = None) -> Plan:
    return Plan(JobStatus(step=step), actions, "because", must_write, wake_at)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def running(reconciler: Reconciler, world: World, until: int) -> None:
    """Run until so many passes were made."""
    task = asyncio.create_task(reconciler.run())
    try:
        async with asyncio.timeout(10):
            while len(world.seen) < until and not task.done():
                await asyncio.sleep(0.005)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
