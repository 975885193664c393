"""What the tiny world of ``world`` is made of: workers with their agents, and the ranks of an attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from resumable_operator.decide.observation import Disruption, WorkerPhase
from resumable_training.contract.assignment import Assignment
from resumable_training.contract.events import AgentState, Event


@dataclass
class FakeAgent:
    """One worker with its agent and ranks."""

    name: str
    place: int
    incarnation: int
    born: float
    boot_id: str
    phase: WorkerPhase = "pending"
    deleting: bool = False
    deleting_since: float | None = None
    placed: bool = False
    stuck: bool = False  # its node does not carry a deletion out
    exit_code: int | None = None
    disruption: Disruption | None = None
    die_at: float | None = None
    assignment: Assignment | None = None
    state: str = "idle"
    outcome: str | None = None
    master_port: int = 0
    next_port: int = 0  # that it holds ready; 0: an agent that knows of no such thing
    resume_from: str = ""  # what it finds in the store
    terminating: bool = False
    hung_since: float | None = None
    cut: str = ""  # "", "operator", "all", or "dead": its machine refuses connections
    cut_since: float = 0.0
    log: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    last_heard: float | None = None
    shown: int | None = None  # events delivered while delayed; None: all
    shown_state: AgentState | None = None

    def after(self, number: int) -> list[tuple[float, Event]]:
        """Events with a higher number that are delivered, with their times. Numbers are 1, 2, 3 ..."""
        new = slice(max(0, number), self.shown)
        return list(zip(self.times[new], self.log[new], strict=True))

    @property
    def alive(self) -> bool:
        return self.phase == "running"

    @property
    def training(self) -> bool:
        return self.alive and self.state in ("running", "draining")


@dataclass
class Group:
    """The ranks of one attempt, together."""

    step: int
    start: int
    started_at: float
    steps_done: int = 0
    broken: bool = False
    last_save: int = 0
