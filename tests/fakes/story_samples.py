"""Lives of jobs with the status and the histories that they leave, made by the ledger's own functions.

`Life` is told what happens, one stretch after the other; what it leaves is what an operator that missed
nothing would have in its status, and what rank 0 would have written at its commits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from resumable_operator.decide import ledger as book
from resumable_operator.model import (
    AttemptStatus,
    CheckpointStatus,
    Interruption,
    JobStatus,
    RecoveryStatus,
)
from resumable_training.checkpoint.history import (
    AttemptHistory,
    Begin,
    Committing,
    Restored,
    Save,
    Step,
)
from resumable_training.contract.events import ProgressReport

BEGIN = 1_700_000_000.0
UID = "u-1"


class Life:
    """One job, from its first second. Times are milliseconds since `BEGIN`."""

    def __init__(self) -> None:
        self.now = 0
        self.ledger = book.open_ledger(round(BEGIN * 1000))
        self.interruptions: list[Interruption] = []
        self.histories: list[AttemptHistory] = []
        self.attempt = 0
        self.step = 0
        self.furthest = 0
        self.size = 0
        self._committed = 0
        self._pending: AttemptHistory | None = None  # what the next commit will write
        self._checkpoint: CheckpointStatus | None = None
        self._first_step_at: float | None = None

    @property
    def wall(self) -> float:
        return BEGIN + self.now / 1000

    def wait(self, phase: str, ms: int) -> None:
        """Without any rank."""
        self.ledger = book.enter(self.ledger, phase, self._at())
        self.now += ms
        self.ledger = book.enter(self.ledger, phase, self._at())

    def begin(self, size: int, *, setup: int = 400, rendezvous: int = 50, restoring: int = 80) -> None:
        """The next attempt's ranks start, and restore the newest checkpoint."""
        self.attempt += 1
        self.size = size
        self._started = self.now
        self._phases: dict[str, int] = {}
        self._rework = 0
        begin = Begin(self.wall, 0, self.attempt, size, "team/gpt", UID)
        self._pending = AttemptHistory(self.attempt, begin)
        if self.interruptions:
            self._settle_last(size)
        self.step = self._committed
        for phase, ms in (("setup", setup), ("rendezvous", rendezvous), ("restoring", restoring)):
            self._spend(phase, ms)
        name = f"step-{self.step:08d}.1" if self.step else ""
        restored = Restored(self.wall, self.now - self._started, self.step, self.step * 8, name, 0.08)
        self._pending = replace(self._pending, restored=restored)
        self._first_step_at = None

    def train(self, steps: int, ms: int = 100, noted: bool = True) -> None:
        """So many steps of that length; the first of an attempt is its warm-up."""
        for _ in range(steps):
            first = self._first_step_at is None
            again = self.step < self.furthest
            self.step += 1
            self._rework += again
            self._spend("warmup" if first else "rework" if again else "productive", ms)
            self.furthest = max(self.furthest, self.step)
            if first:
                self._first_step_at = self.wall
                self._recovered()
            if noted:
                self.note()

    def spend(self, phase: str, ms: int) -> None:
        """In the loop, beside steps."""
        self._spend(phase, ms)
        self.note()

    def note(self) -> None:
        """Rank 0 notes how it stands."""
        assert self._pending is not None
        loss = round(3.0 / (1 + 0.02 * self.step), 4)
        line = Step(
            self.wall,
            self.now - self._started,
            self.step,
            self.step * 8,
            loss,
            0.1,
            self._rework,
            dict(self._phases),
            {"learning_rate": round(0.001 * 0.99**self.step, 9)},
        )
        self._pending = replace(self._pending, steps=(*self._pending.steps, line))

    def commit(self, ms: int = 60) -> None:
        """Save; what was noted so far is left beside the checkpoint."""
        self.note()
        assert self._pending is not None
        committing = Committing(self.wall, self.now - self._started, self.step)
        kept = [item for item in self.histories if item.record != self._pending.record]
        self.histories = [*kept, replace(self._pending, committing=committing)]
        self._spend("checkpointing", ms)
        name = f"step-{self.step:08d}.{self.attempt}"
        made = len(self._pending.saves) + 1
        save = Save(
            self.wall,
            self.now - self._started,
            self.step,
            name,
            12_000_000,
            ms,
            2 * ms,
            5.0,
            made=made,
            total_bytes=12_000_000 * made,
            total_blocking_ms=ms * made,
            total_durable_ms=2 * ms * made,
        )
        self._pending = replace(self._pending, saves=(*self._pending.saves, save))
        self._committed = self.step
        self._checkpoint = CheckpointStatus(
            name=name,
            step=self.step,
            samples=self.step * 8,
            at=self.wall,
            bytes=12_000_000,
            blocking_ms=ms,
            durable_ms=2 * ms,
        )

    def fail(self, cause: str = "node_lost", silence: int = 300, **known: Any) -> None:
        """Something breaks and is noticed after a silence."""
        self.now += silence
        self.ledger = book.declare_failure(self.ledger, self._at())
        self._end(cause, planned=False, detect_seconds=silence / 1000, **known)

    def drain(self, cause: str = "scale", **known: Any) -> None:
        """A planned end: committed, so that nothing is lost."""
        self.commit()
        self.ledger = book.enter(self.ledger, book.RESIZING, self._at())
        self._end(cause, planned=True, **known)

    def status(self, **changes: Any) -> JobStatus:
        """As the operator has it now."""
        counts: dict[str, int] = {}
        for item in self.interruptions:
            counts[item.cause] = counts.get(item.cause, 0) + 1
        unplanned = [item for item in self.interruptions if not item.planned]
        stage_ms: dict[str, int] = {}
        for item in unplanned:
            for stage, seconds in (item.stages or {}).items():
                stage_ms[stage] = stage_ms.get(stage, 0) + round(seconds * 1000)
        known = {
            "phase": "Running",
            "reason": f"attempt {self.attempt} is running with {self.size} workers",
            "attempt": AttemptStatus(
                number=self.attempt,
                state="running",
                first_step_at=self._first_step_at,
                last_progress_at=self.wall,
                world_size=self.size,
            ),
            "size": self.size,
            "step": self.step,
            "samples": self.step * 8,
            "high_water_step": self.furthest,
            "high_water_samples": self.furthest * 8,
            "step_seconds": 0.1,
            "loss": 1.5,
            "checkpoint": self._checkpoint,
            "interruptions": tuple(self.interruptions),
            "interruption_counts": counts,
            "last_interruption": unplanned[-1] if unplanned else None,
            "ledger": self.ledger,
            "recovery": RecoveryStatus(stage_ms=stage_ms),
            "started_at": BEGIN,
            "uses_library": True,
        }
        return JobStatus(**{**known, **changes})

    def _at(self) -> int:
        return round(BEGIN * 1000) + self.now

    def _spend(self, phase: str, ms: int) -> None:
        self.now += ms
        self._phases[phase] = self._phases.get(phase, 0) + ms
        report = ProgressReport(
            0, 0, 0, phase, self.step, self.step * 8, dict(self._phases), rework_steps=self._rework
        )
        self.ledger = book.fold_progress(self.ledger, report, self.attempt, self._at())

    def _end(self, cause: str, **known: Any) -> None:
        ending = Interruption(attempt=self.attempt, cause=cause, at=self.wall, size_before=self.size, **known)
        self.interruptions.append(ending)
        self._ended_at = self.now
        self.size = 0

    def _settle_last(self, size: int) -> None:
        last = self.interruptions[-1]
        lost = max(0, self.step - self._committed)
        self.interruptions[-1] = last.model_copy(
            update={"resumed_step": self._committed, "rework_steps": lost, "size_after": size}
        )

    def _recovered(self) -> None:
        if not self.interruptions or self.interruptions[-1].recover_seconds is not None:
            return
        last, took = self.interruptions[-1], (self.now - self._ended_at) / 1000
        update: dict[str, Any] = {"recover_seconds": took}
        if not last.planned:
            known = {stage: self._phases.get(phase, 0) / 1000 for stage, phase in _STAGES.items()}
            rest = took - sum(known.values())
            update["stages"] = {"detect": last.detect_seconds, "reschedule": rest, **known}
        self.interruptions[-1] = last.model_copy(update=update)


_STAGES = {"rendezvous": "rendezvous", "restore": "restoring", "warmup": "warmup"}


def eventful() -> Life:
    """A lost node, a crash soon after, and growth: every kind of line and mark."""
    life = Life()
    life.wait("queued", 2000)
    life.wait("starting", 1500)
    life.begin(3)
    for _ in range(4):
        life.train(20)
        life.spend("data_stall", 40)
        life.commit()
    life.train(12)
    life.fail(
        "node_lost",
        silence=900,
        worker="gpt-2-1",
        message="node machine-3 of gpt-2-1 is gone",
        tail=("step 91 loss 1.2", "<script>alert('tail')</script>"),
    )
    life.wait("recovering", 2500)
    life.begin(2)
    life.train(30)
    life.commit()
    life.train(7)
    life.fail("crash", silence=100, worker="gpt-0-1", rank=1, code=1, message="ValueError: bad batch")
    life.wait("recovering", 300)
    life.begin(2)
    life.train(20)
    life.spend("evaluating", 800)
    life.drain("scale", message="growing from 2 to 3 workers")
    life.wait("resizing", 700)
    life.begin(3)
    for _ in range(5):
        life.train(25)
        life.commit(90)
    return life
