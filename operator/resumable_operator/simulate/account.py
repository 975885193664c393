"""What a simulated job produced, and what the rest of its GPU time went to.

Seconds by phase are the ledger's. Here they are weighted with machines, and what an ending cost (its
detection, the restart after it, the steps done again) is charged to its cause. All sums are in GPU-seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from resumable_operator.decide.goodput import goodput
from resumable_operator.decide.ledger import milliseconds
from resumable_operator.model import JobStatus
from resumable_training.contract.metrics import INTERRUPTION_CAUSES, PLANNED_CAUSES

START = "start"  # before anything had gone wrong
SAVES = "saves"
QUEUE = "queue"
IDLE = "idle"  # spares, and machines that wait to be taken in
LOSSES = (*INTERRUPTION_CAUSES, *PLANNED_CAUSES, START, SAVES, QUEUE, IDLE)
_OWN = {"checkpointing": SAVES, "queued": QUEUE, "suspended": QUEUE}


@dataclass(frozen=True)
class Outcome:
    """One simulated life.

    ``work``: share of the steps that a job of full size without any interruption, save or restart would have
    done in that time; below ``goodput`` where it trained smaller. ``gpu_goodput``: share of the GPU time that
    was there, spares included, that made new steps. ``failed``: why the job gave up; empty when it did not.
    """

    days: float
    goodput: float
    scheduling: float
    runtime: float
    work: float
    gpu_goodput: float
    gpu_hours: float
    lost_gpu_hours: dict[str, float]  # by cause
    interruptions: dict[str, int]  # by cause
    planned: dict[str, int]
    phases: dict[str, float]  # seconds
    restart_seconds: float  # measured by the operator
    interval_seconds: float  # of work, between the last two saves
    failed: str
    passes: int  # of the operator's decisions

    @property
    def interruptions_a_day(self) -> float:
        return sum(self.interruptions.values()) / self.days


class Account:
    """Follows one job from pass to pass."""

    def __init__(self, gpus_per_machine: int) -> None:
        self._gpus = gpus_per_machine
        self._paid = 0.0
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._productive = 0.0
        self._blamed = START
        self._endings = 0

    def pay(self, machines: int, milliseconds_: int) -> None:
        """So many machines were there for so long."""
        self._paid += self._gpus * machines * milliseconds_ / 1000

    def passed(self, before: JobStatus, after: JobStatus, machines: int) -> None:
        """A pass has changed the status; ``machines`` are there."""
        old, new = before.ledger.phases, after.ledger.phases
        endings = sum(after.interruption_counts.values())
        cause = after.interruptions[-1].cause if after.interruptions else START
        training = len(before.attempt.members)
        for phase, total in new.items():
            amount = (total - old.get(phase, 0)) * self._gpus / 1000
            if not amount:
                continue
            if phase == "productive":
                self._productive += amount * training
            elif phase == "detecting":
                self._spent[_cause_of(after) or cause] += amount * training
            elif phase == "rework":
                self._spent[self._blamed] += amount * training
            elif phase == "checkpointing":
                self._spent[SAVES] += amount * training
            else:
                self._spent[_OWN.get(phase, self._blamed)] += amount * machines
        if endings > self._endings:
            self._endings, self._blamed = endings, cause

    def outcome(
        self, status: JobStatus, age: float, ideal_steps: float, interval: float, passes: int
    ) -> Outcome:
        """Of a job ``age`` seconds old. ``ideal_steps``: what it could have done at best in that time."""
        numbers = goodput(status.ledger, milliseconds(age))
        counts = status.interruption_counts
        self._charge_lost_for_good(status)
        lost = {cause: self._spent[cause] / 3600 for cause in LOSSES if self._spent[cause]}
        idle = self._paid - self._productive - sum(self._spent.values())
        steps = status.high_water_step
        if status.phase == "Failed":
            steps = status.checkpoint.step if status.checkpoint else 0
        return Outcome(
            days=age / 86_400,
            goodput=numbers.goodput or 0.0,
            scheduling=numbers.scheduling or 0.0,
            runtime=numbers.runtime or 0.0,
            work=steps / ideal_steps if ideal_steps else 0.0,
            gpu_goodput=self._productive / self._paid if self._paid else 0.0,
            gpu_hours=self._paid / 3600,
            lost_gpu_hours={**lost, IDLE: max(0.0, idle) / 3600},
            interruptions={cause: counts[cause] for cause in INTERRUPTION_CAUSES if cause in counts},
            planned={cause: counts[cause] for cause in PLANNED_CAUSES if cause in counts},
            phases={phase: amount / 1000 for phase, amount in status.ledger.phases.items()},
            restart_seconds=status.restart_seconds,
            interval_seconds=interval,
            failed=status.reason if status.phase == "Failed" else "",
            passes=passes,
        )

    def _charge_lost_for_good(self, status: JobStatus) -> None:
        """Steps of a job that gave up which no checkpoint holds made nothing."""
        productive = status.ledger.phases.get("productive", 0)
        lost = self._productive * status.ledger.lost / productive if productive else 0.0
        self._productive -= lost
        self._spent[self._blamed] += lost


def _cause_of(status: JobStatus) -> str | None:
    """Of the ending that is not settled yet, as its witnesses have it."""
    evidence = status.attempt.evidence
    return evidence[0].cause if evidence and status.attempt.state == "ending" else None
