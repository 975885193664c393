"""Machines and the workers on them, as the cluster's API and the agents show them.

A *slot* holds one machine at a time; a lost one is replaced after a while. A worker is placed on a machine
that has none, starts, and is then ready. What happens to a machine is shown to the operator only when it is
``revealed``: until then its worker looks as it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from resumable_operator.decide.observation import Agent, Node, TimedEvent, Worker, WorkerPhase
from resumable_training.contract.assignment import Assignment
from resumable_training.contract.events import FAILED, AgentState, Event

_PORT = 20_000


@dataclass
class Machine:
    """``gone_at`` is for one that was told to go (milliseconds)."""

    name: str
    alive: bool = True
    shown: bool = True  # as existing
    gone_at: int | None = None
    worker: str | None = None

    def view(self) -> Node:
        deadline = None if self.gone_at is None else self.gone_at / 1000
        return Node(self.name, exists=self.shown, notice_deadline=deadline)


@dataclass
class SimWorker:
    """One worker, its agent, and what that agent has said since the operator listened last."""

    name: str
    place: int
    incarnation: int
    created_at: int
    machine: Machine | None = None
    phase: WorkerPhase = "pending"
    state: str = "idle"
    outcome: str | None = None
    assignment: Assignment | None = None
    said: list[TimedEvent] = field(default_factory=list)
    sequence: int = 0
    _view: tuple[Worker, Agent | None] | None = None

    @property
    def reachable(self) -> bool:
        return self.phase == "running" and self.machine is not None and self.machine.alive

    @property
    def attempt(self) -> int:
        return self.assignment.attempt if self.assignment else 0

    def trains_in(self, attempt: int) -> bool:
        return self.attempt == attempt and self.state in ("running", "draining")

    def say(self, at: int, kind: str, data: dict[str, Any]) -> None:
        """One event of its agent."""
        self.sequence += 1
        event = Event(self.sequence, at, kind, self.attempt, self.name, data)
        self.said.append(TimedEvent(self.name, at / 1000, event))

    def change(self, **changes: Any) -> None:
        """Set attributes that others see."""
        for name, value in changes.items():
            setattr(self, name, value)
        self._view = None

    def view(self) -> tuple[Worker, Agent | None]:
        """As the API shows it, and its agent if that has been heard."""
        if self._view is None:
            self._view = self._worker(), self._agent()
        return self._view

    def _worker(self) -> Worker:
        placed = self.machine is not None
        return Worker(
            name=self.name,
            place=self.place,
            incarnation=self.incarnation,
            phase=self.phase,
            node=self.machine.name if self.machine else "",
            address="10.0.0.1",
            agent_port=_PORT,
            created_at=self.created_at / 1000,
            reason="" if placed else "Unschedulable",
            message="" if placed else "no machine is free",
        )

    def _agent(self) -> Agent | None:
        if self.phase == "pending":
            return None
        state = AgentState(
            boot_id=self.name,
            worker=self.name,
            attempt=self.attempt,
            digest=self.assignment.digest if self.assignment else "",
            master_port=_PORT + self.attempt % 10_000 if self.assignment else 0,
            state=self.state,
            outcome=self.outcome,
            last_seq=self.sequence,
        )
        running = self.phase == "running"
        return Agent(self.name, running, state, math.inf if running else 0.0)  # its stream never stalls


class Fleet:
    """All machines and workers of one job. Times are milliseconds."""

    def __init__(self, slots: int) -> None:
        self._machines = [Machine(f"node-{slot}") for slot in range(slots)]
        self._named = slots
        self._leaving: list[Machine] = []  # lost, and a worker of theirs is still shown
        self.workers: dict[str, SimWorker] = {}

    def machine(self, slot: int) -> Machine:
        return self._machines[slot]

    def nodes(self) -> dict[str, Node]:
        self._leaving = [machine for machine in self._leaving if machine.worker in self.workers]
        return {machine.name: machine.view() for machine in (*self._machines, *self._leaving)}

    def sorted_workers(self) -> list[SimWorker]:
        return sorted(self.workers.values(), key=lambda worker: (worker.place, worker.incarnation))

    def count(self) -> int:
        """Machines that somebody pays for."""
        return sum(machine.alive for machine in self._machines)

    # ---- machines ------------------------------------------------------------------------------------

    def lose(self, slot: int) -> Machine:
        """Its machine is dead; nobody knows yet."""
        machine = self._machines[slot]
        machine.alive = False
        return machine

    def reveal(self, machine: Machine) -> None:
        """The API shows that the machine is gone and its worker with it."""
        machine.shown = False
        worker = self.workers.get(machine.worker or "")
        if worker is not None:
            worker.change(phase="failed", state="ended", outcome=worker.outcome or FAILED)

    def bring_back(self, slot: int) -> None:
        """Another machine in the place of a lost one."""
        before = self._machines[slot]
        if before.worker is not None:
            self._leaving.append(before)
        self._machines[slot] = Machine(f"node-{self._named}")
        self._named += 1

    # ---- workers -------------------------------------------------------------------------------------

    def create(self, name: str, place: int, incarnation: int, now: int) -> None:
        if name not in self.workers:
            self.workers[name] = SimWorker(name, place, incarnation, now)

    def delete(self, name: str) -> SimWorker | None:
        worker = self.workers.pop(name, None)
        if worker is not None and worker.machine is not None:
            worker.machine.worker = None
        return worker

    def place_pending(self, avoid: Iterable[str]) -> list[SimWorker]:
        """Give free machines to workers that wait for one; those that got one."""
        avoided = set(avoid)
        free = [m for m in self._machines if m.alive and m.gone_at is None and m.worker is None]
        free.sort(key=lambda machine: machine.name in avoided)
        waiting = [worker for worker in self.sorted_workers() if worker.machine is None]
        placed = []
        for worker, machine in zip(waiting, free, strict=False):
            machine.worker = worker.name
            worker.change(machine=machine)
            placed.append(worker)
        return placed

    def members(self, names: Iterable[str]) -> list[SimWorker]:
        """Those of them that exist."""
        return [self.workers[name] for name in names if name in self.workers]
