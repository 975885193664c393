"""PURE: the machines that a local cluster pretends to have, one worker each.

A machine can be taken away (a fault) and come back; a worker that finds none free waits, as a pod that can't
be scheduled does.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Machine:
    """One place for a worker. ``leaving``: still there, but it will go and takes no new worker."""

    number: int
    up: bool = True
    leaving: bool = False
    worker: str | None = None

    @property
    def name(self) -> str:
        return f"machine-{self.number}"

    @property
    def free(self) -> bool:
        return self.up and not self.leaving and self.worker is None


@dataclass
class Machines:
    """At most ``limit`` machines, ``count`` at first."""

    count: int
    limit: int
    all: dict[int, Machine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limit = max(self.limit, self.count)
        self.all = {number: Machine(number) for number in range(1, self.count + 1)}

    @property
    def capacity(self) -> int:
        """Workers that could exist once those on leaving machines are gone."""
        return sum(machine.up and not machine.leaving for machine in self.all.values())

    def of(self, worker: str) -> Machine | None:
        return next((machine for machine in self.all.values() if machine.worker == worker), None)

    def place(self, worker: str) -> Machine | None:
        """Put the worker on the first free machine; None when there is none."""
        machine = next((machine for machine in self.all.values() if machine.free), None)
        if machine is not None:
            machine.worker = worker
        return machine

    def release(self, worker: str) -> None:
        """The worker has ended: its machine is free, or gone if it was leaving."""
        machine = self.of(worker)
        if machine is not None:
            machine.worker = None
            if machine.leaving:
                machine.up, machine.leaving = False, False

    def take_away(self, machine: Machine) -> None:
        """The machine is gone at once."""
        machine.up, machine.leaving = False, False

    def bring(self, number: int | None = None) -> Machine | None:
        """A machine arrives: the one asked for, else one that was away, else a new one up to the limit.

        None when nothing could arrive.
        """
        away = [m for m in self.all.values() if not m.up and (number is None or m.number == number)]
        if away:
            away[0].up = True
            return away[0]
        if number is not None or len(self.all) >= self.limit:
            return None
        machine = Machine(len(self.all) + 1)
        self.all[machine.number] = machine
        return machine
