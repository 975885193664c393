"""A job's status and history after a failure and a resize, as a run directory or the API server has them."""

from __future__ import annotations

from typing import Any

from resumable_operator.model import (
    AttemptStatus,
    BudgetStatus,
    CheckpointStatus,
    Condition,
    Interruption,
    JobStatus,
    LedgerStatus,
)

BEGIN = 1_700_000_000.0  # seconds since the epoch
SPEC = {
    "workers": {"replicas": 3, "min": 1, "max": 4},
    "template": {"spec": {"containers": [{"name": "worker", "command": ["python", "train.py"]}]}},
}
LOST = Interruption(
    attempt=1,
    cause="node_lost",
    worker="train-1-1",
    rank=1,
    code=-9,
    message="worker train-1-1 is gone",
    tail=("step 24 loss 2.9", "Traceback [not markup]"),
    at=BEGIN + 40.4,
    detect_seconds=0.4,
    recover_seconds=5.6,
    rework_steps=4,
    size_before=3,
    size_after=2,
)
GREW = Interruption(
    attempt=2,
    cause="scale",
    planned=True,
    message="grow from 2 to 3",
    at=BEGIN + 70,
    recover_seconds=4.0,
    size_before=2,
    size_after=3,
)
LEDGER = LedgerStatus(
    started_at=round(BEGIN * 1000),
    settled_at=round(BEGIN * 1000) + 100_000,
    open_phase="unaccounted",
    phases={"queued": 1000, "starting": 9000, "productive": 80_000, "detecting": 400, "recovering": 9600},
    attempt=3,
    rework_steps=4,
)
STATUS = JobStatus(
    phase="Running",
    reason="all 3 workers train",
    conditions=(Condition(type="Valid", status="True", reason="Accepted"),),
    attempt=AttemptStatus(number=3, first_step_at=1010.0, state="running", world_size=3),
    size=3,
    step=200,
    samples=3200,
    high_water_step=200,
    high_water_samples=3200,
    loss=2.34567,
    step_seconds=0.4,
    checkpoint=CheckpointStatus(
        name="step-00000190.3",
        step=190,
        samples=3040,
        at=BEGIN + 95,
        bytes=12_500_000,
        blocking_ms=120,
        durable_ms=200,
    ),
    budgets=BudgetStatus(infrastructure=(BEGIN + 40.4, BEGIN - 90_000), without_progress=1),
    interruptions=(LOST, GREW),
    interruption_counts={"node_lost": 1, "scale": 1},
    last_interruption=LOST,
    ledger=LEDGER,
    started_at=BEGIN,
)


def save(step: int, at: float, attempt: int, **data: Any) -> dict[str, Any]:
    """A line of history: a completed save, `at` seconds after the beginning."""
    told = {"step": step, "checkpoint": f"step-{step:08d}.{attempt}", "bytes": 12_500_000}
    return {
        "at": BEGIN + at,
        "worker": "train-0-1",
        "kind": "checkpoint",
        "attempt": attempt,
        "data": {**told, "blocking_ms": 100, "durable_ms": 200, **data},
    }


HISTORY = [
    save(10, 15, 1),
    save(20, 20.1, 1),
    save(20, 20.1, 1),  # replayed
    {
        "at": BEGIN + 45,
        "worker": "train-0-1",
        "kind": "restored",
        "attempt": 2,
        "data": {
            "step": 20,
            "fallback": [{"checkpoint": "step-00000024.1", "why": "hash of __0_0.distcp differs"}],
        },
    },
    {
        "at": BEGIN + 50,
        "worker": "train-0-1",
        "kind": "checkpoint_failed",
        "attempt": 2,
        "data": {"step": 30, "message": "No space left on device"},
    },
    save(190, 95, 3, blocking_ms=120),
]
