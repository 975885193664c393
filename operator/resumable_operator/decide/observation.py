"""What the world looks like to one decision: frozen values, no behaviour beyond look-ups.

``observe`` builds it, ``decide`` reads it. All times are seconds on the operator's own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from resumable_operator.model import JobSpec, JobStatus
from resumable_training.contract.events import SILENT_SECONDS, AgentState, Event

WorkerPhase = Literal["pending", "running", "succeeded", "failed"]


@dataclass(frozen=True)
class Job:
    """The resource as read. ``suspended_by``: what set ``spec.suspend``, if that was not its user's hand."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: JobSpec
    status: JobStatus
    resource_version: str = ""
    deleting: bool = False
    suspended_by: str = ""  # such as Ctrl-C

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Disruption:
    """A notice or verdict about a worker from outside."""

    cause: Literal["preempted", "evicted", "node_lost"]
    reason: str  # e.g. DeletionByTaintManager, PreemptionNotice
    deadline: float | None = None  # when the worker will be gone; None: it is gone or going now


@dataclass(frozen=True)
class Worker:
    """One pod (or local agent process) as the cluster sees it."""

    name: str
    place: int
    incarnation: int
    phase: WorkerPhase
    node: str = ""
    address: str = ""
    agent_port: int = 0
    created_at: float = 0.0
    deleting: bool = False
    exit_code: int | None = None  # of the agent's container; negative for a signal
    reason: str = ""  # container or pod reason: OOMKilled, Evicted, ...
    message: str = ""
    disruption: Disruption | None = None
    schedulable_since: float | None = None
    deleting_since: float | None = None  # when its deletion was asked for, if the cluster knows
    key_id: str = ""  # of the key that its agent was started with; empty: the job's only key


@dataclass(frozen=True)
class Node:
    name: str
    ready: bool = True
    unready_since: float | None = None  # of a node that is not ready; None: not known, so for long
    exists: bool = True
    cordoned: bool = False
    out_of_service: bool = False
    notice_deadline: float | None = None  # a spot taint


@dataclass(frozen=True)
class Problem:
    """Something outside the spec's own text that keeps the job from running, or will hurt it."""

    field: str  # path in the resource, e.g. spec.checkpoint.persistentVolumeClaim.claimName
    reason: (
        str  # CamelCase, of the condition: TemplateInvalid, ClaimNotFound, ClaimNotShared, StoreShared, ...
    )
    message: str  # what is wrong, and the fix
    fatal: bool = True  # False: told, and the job goes on


@dataclass(frozen=True)
class Refusal:
    """The cluster's no to creating workers: quota, admission, rights."""

    reason: str
    message: str
    at: float = 0.0  # when it was said; a later one is another refusal


@dataclass(frozen=True)
class TimedEvent:
    """An agent's event with its time mapped to the operator's clock."""

    worker: str
    at: float
    event: Event


@dataclass(frozen=True)
class Distrust:
    """Something answers at the worker's address, and it is not an agent of this job that we can talk to."""

    kind: Literal["key", "words"]  # it knows none of our keys; or what it says is unsigned, garbage, foreign
    message: str


@dataclass(frozen=True)
class Agent:
    """What is known of one worker's agent."""

    worker: str
    connected: bool
    state: AgentState | None = None  # newest snapshot, folded with later events
    last_heard: float | None = None
    outdated: bool = False  # speaks an older contract
    silent_after: float = SILENT_SECONDS  # a stream that says nothing this long is silent
    refused: bool = False  # asked since then: nobody listens there, or, called lost by its peer, answers
    distrust: Distrust | None = None  # it answers, but not as an agent that can be believed
    known_since: float = 0.0  # since when this operator, awake all the time, could talk to it
    asked_attempt: int = 0  # whose assignment this operator has tried to send it; 0: none
    asked_since: float = 0.0  # first try


@dataclass(frozen=True)
class Observation:
    """One job and all that bears on it."""

    job: Job
    workers: tuple[Worker, ...] = ()
    nodes: dict[str, Node] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    events: tuple[TimedEvent, ...] = ()  # not yet folded into status, in order of time
    capacity: int | None = None  # workers that the cluster could hold, if it can tell (local); None: unknown
    problems: tuple[Problem, ...] | None = None  # None: not looked for in this pass
    refusal: Refusal | None = None  # of the newest try to create a worker
    operator: str = ""  # the name of who decides; empty: nobody else can

    def worker(self, name: str) -> Worker | None:
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Worker]:
        return {worker.name: worker for worker in self.workers}
