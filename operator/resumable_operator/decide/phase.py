"""The word for people (``status.phase``), the control phase of the ledger, and the summary fields."""

from __future__ import annotations

from typing import Literal

from resumable_operator.decide import ledger
from resumable_operator.decide.assign import gpus_per_worker, store_root
from resumable_operator.decide.conditions import set_condition, set_if_known
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.goodput import goodput
from resumable_operator.decide.health import healths, supply
from resumable_operator.decide.kept import suspended_text
from resumable_operator.decide.pending import show_readiness
from resumable_operator.decide.size import largest_allowed
from resumable_operator.decide.terminal import effective_generation
from resumable_operator.decide.workers import wanted_workers
from resumable_operator.model import JobPhase
from resumable_training.contract.labels import LABEL_JOB_UID


def job_phase(draft: Draft) -> JobPhase:
    if draft.status.phase in ("Succeeded", "Failed"):
        return draft.status.phase
    if draft.alive and draft.attempt.state in ("running", "draining"):
        return "Running" if draft.attempt.state == "running" else "Draining"
    if draft.spec.suspend and not draft.alive:
        return "Suspended"
    endings = draft.status.interruptions
    if draft.attempt.state == "ending" or (endings and not endings[-1].planned):
        return "Recovering"
    return "Forming" if draft.attempt.number or draft.observation.workers else "Pending"


def settle_control_phase(draft: Draft) -> None:
    """Open the ledger's phase for a time without reporting ranks. While they report, the fold does it."""
    wanted = _control_phase(draft)
    if wanted is not None and wanted != draft.status.ledger.open_phase:
        draft.set(ledger=ledger.enter(draft.status.ledger, wanted, draft.now_ms))
        draft.soon = True  # until it is written the time goes to the phase before


def hold_gpus(draft: Draft) -> None:
    """Tell the ledger of the GPUs that the job has: those of its members, and between attempts those of the
    workers that are there to be."""
    workers = sum(worker.phase == "running" for worker in draft.observation.workers)
    held = len(draft.attempt.members) if draft.alive else min(workers, draft.spec.workers.max_size)
    gpus = gpus_per_worker(draft.spec) * held
    draft.set(ledger=ledger.hold(draft.status.ledger, gpus, draft.now_ms))


def _control_phase(draft: Draft) -> str | None:
    attempt = draft.attempt
    if draft.finished or attempt.state in ("draining", "ending"):
        return None
    if attempt.state == "running":
        return ledger.RUNNING_OPAQUE if draft.status.uses_library is False else None
    if draft.alive:  # rank 0 may be at it, and report, while others still lack their assignment
        return None if draft.status.ledger.attempt == attempt.number else _starting_phase(draft)
    if draft.spec.suspend:
        return ledger.SUSPENDED
    return ledger.QUEUED if _starved(draft) else _starting_phase(draft)


def _starting_phase(draft: Draft) -> str:
    endings = draft.status.interruptions
    if not endings:
        return ledger.STARTING
    return ledger.RESIZING if endings[-1].planned else ledger.RECOVERING


def _starved(draft: Draft) -> bool:
    """Not even the smallest size has room. What has a node and can't start there does not lack room."""
    have = supply(draft)
    stuck = list(healths(draft).values()).count("stuck")
    coming = have.ready + have.starting + stuck + (have.creatable or 0)
    return largest_allowed(draft.spec.workers, coming) is None


def summarize(draft: Draft) -> None:
    """Fields and conditions that follow from the rest."""
    job = draft.observation.job
    phase = job_phase(draft)
    if phase != draft.status.phase:
        draft.reserve()
    training = len(draft.attempt.members) if draft.alive else 0
    draft.set(
        phase=phase,
        reason=draft.status.reason if draft.finished else "".join(draft.notes[-1:]),  # where it stands now
        observed_generation=effective_generation(draft),
        workers=f"{training}/{draft.spec.workers.replicas}",
        goodput=_goodput(draft),
        replicas=sum(worker.phase == "running" for worker in draft.observation.workers),
        selector=f"{LABEL_JOB_UID}={job.uid}",
    )
    _set_conditions(draft)


def _goodput(draft: Draft) -> str:
    """Of the settled time only, so that it does not change while nothing is learned."""
    settled = draft.status.ledger
    ratio = goodput(settled, settled.settled_at).goodput
    return "" if ratio is None or draft.status.uses_library is False else f"{100 * ratio:.1f}%"


def _set_conditions(draft: Draft) -> None:
    trains = draft.alive and draft.attempt.state in ("running", "draining")
    text = f"attempt {draft.attempt.number} trains" if trains else ""
    value: Literal["True", "False"] = "True" if trains else "False"
    set_condition(draft, "Running", value, "AttemptRunning" if trains else draft.status.phase, text)
    show_readiness(draft, wanted_workers(draft))
    outdated = sorted(name for name, agent in draft.observation.agents.items() if agent.outdated)
    text = f"{len(outdated)} agents speak an older contract, e.g. {outdated[0]}" if outdated else ""
    set_if_known(draft, "AgentOutdated", bool(outdated), "OlderContract", text)
    wanted = store_root(draft.spec.checkpoint)
    moved = bool(draft.status.store) and wanted != draft.status.store
    text = (
        f"spec.checkpoint: the storage changes only while suspended; still {draft.status.store}"
        if moved
        else ""
    )
    set_if_known(draft, "StorageChangeIgnored", moved, "NotSuspended", text)
    suspended = draft.status.phase == "Suspended" and not draft.observation.workers
    text = suspended_text(draft.status, draft.observation.job.suspended_by)
    set_if_known(draft, "Suspended", suspended, "SpecSuspend", text)
