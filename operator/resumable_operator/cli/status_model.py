"""What ``rtj status`` says about a job. Pure; rendering is in ``status.py``."""

from __future__ import annotations

from resumable_operator.cli.report_model import (
    Ending,
    GoodputNumbers,
    PhaseShare,
    ending,
    goodput_numbers,
    phase_shares,
)
from resumable_operator.cli.rundir import JobFile
from resumable_operator.cli.save_interval import saves_told
from resumable_operator.cli.standing import is_cut_off
from resumable_operator.cli.units import duration
from resumable_operator.decide.assign import gpus_per_worker
from resumable_operator.model import Budget, JobSpec, JobStatus, Model


class BudgetLeft(Model):
    """Endings of one class that the job may still have, of how many."""

    name: str
    left: int
    limit: int


class PodLine(Model):
    """One worker's pod in a cluster."""

    name: str
    node: str  # empty: none yet
    phase: str  # pending, running, succeeded, failed, ending
    reason: str  # why it waits or how it ended, with the message; may be empty
    ranks: str  # those it holds in the newest attempt, such as 0-7; may be empty


class StatusView(Model):
    namespace: str
    name: str
    uid: str
    at: float  # seconds since the epoch; what the rest holds for
    owner: int | None  # process id of the `rtj run` that runs it; None also in a cluster
    pods: tuple[PodLine, ...] | None  # None: it runs without a cluster
    cut_off: bool  # its `rtj run` was killed: the status is its last word
    notes: tuple[str, ...]  # what a reader of the status must know
    wanted_size: int
    allowed_sizes: tuple[int, ...]
    growth: str  # what a larger size waits for, when workers for it are ready; may be empty
    gpus_per_worker: int  # that its template asks for
    memory_every_steps: int | str | None  # between copies in memory, or "auto"; None: none are made
    goodput: GoodputNumbers
    phases: tuple[PhaseShare, ...]
    budgets_left: tuple[BudgetLeft, ...]
    saves: str  # how often it does, in words; empty: not known, or it has ended
    saves_measured: bool  # that is from the newest save, not from its spec
    last_interruption: Ending | None
    status: JobStatus


def build_view(
    job: JobFile,
    spec: JobSpec,
    status: JobStatus,
    owner: int | None,
    now: float,
    pods: tuple[PodLine, ...] | None = None,
    notes: tuple[str, ...] = (),
) -> StatusView:
    """The view of a job at ``now`` (seconds on the operator's clock)."""
    last = status.last_interruption
    return StatusView(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        at=now,
        owner=owner,
        pods=pods,
        cut_off=is_cut_off(status, runs=owner is not None or pods is not None),
        notes=notes,
        wanted_size=spec.workers.replicas,
        allowed_sizes=spec.workers.allowed_sizes(),
        growth=growth_told(spec, status, now),
        gpus_per_worker=gpus_per_worker(spec),
        memory_every_steps=spec.checkpoint.memory_every_steps,
        goodput=goodput_numbers(status, now),
        phases=phase_shares(status, now),
        budgets_left=budgets_left(spec, status, now),
        saves="" if status.finished_at is not None else saves_told(spec.checkpoint, status),
        saves_measured=spec.checkpoint.interval == "auto",
        last_interruption=ending(last, status) if last else None,
        status=status,
    )


def growth_told(spec: JobSpec, status: JobStatus, now: float) -> str:
    """Why a job that could be larger is not yet: as a rule it waits out ``recovery.growCooldownSeconds``."""
    attempt = status.attempt
    if attempt.grow_ready_since is None or attempt.state != "running" or status.finished_at is not None:
        return ""
    began = attempt.running_at if attempt.running_at is not None else now
    left = max(began, status.last_grow_at or began) + spec.recovery.grow_cooldown_seconds - now
    return (
        f"more are ready; it may grow in {duration(left)} (growCooldownSeconds)"
        if left > 0
        else "more are ready"
    )


def budgets_left(spec: JobSpec, status: JobStatus, now: float) -> tuple[BudgetLeft, ...]:
    """What each budget still allows: endings charged longer ago than its window no longer count."""
    limits, spent = spec.recovery.budgets, status.budgets
    return (
        _left("user error", limits.user_error, spent.user_error, now),
        _left("infrastructure", limits.infrastructure, spent.infrastructure, now),
        _left("preemption", limits.preemption, spent.preemption, now),
        BudgetLeft(
            name="without progress",
            left=max(0, limits.without_progress - spent.without_progress),
            limit=limits.without_progress,
        ),
    )


def _left(name: str, budget: Budget, charged: tuple[float, ...], now: float) -> BudgetLeft:
    counted = sum(at > now - budget.window_seconds for at in charged)
    return BudgetLeft(name=name, left=max(0, budget.limit - counted), limit=budget.limit)
