"""The list of endings in status: written at an ending, completed by what the next attempt shows."""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.ledger import SUSPENDED
from resumable_operator.decide.restart import learnt
from resumable_operator.decide.stages import trains_again
from resumable_operator.model import Interruption
from resumable_training.contract.metrics import GROW, SHRINK

KEPT = 50


def append(draft: Draft, ending: Interruption) -> None:
    """Add one ending and count it by cause."""
    counts = dict(draft.status.interruption_counts)
    counts[ending.cause] = counts.get(ending.cause, 0) + 1
    draft.set(interruption_counts=counts)
    _replace(draft, (*draft.status.interruptions, ending))


def sized(draft: Draft, size: int, size_before: int) -> None:
    """The next attempt is reserved at this size. ``size_before``: of the one before; 0: there was none."""
    endings = draft.status.interruptions
    _replace(draft, tuple(_with_size(ending, size) for ending in endings))
    if size_before not in (0, size):
        direction = GROW if size > size_before else SHRINK
        counts = draft.status.resizes
        draft.set(resizes={**counts, direction: counts.get(direction, 0) + 1})


def recovered(draft: Draft, at: float) -> None:
    """The attempt has done its first step (or, without the library, has started): what did it cost?"""
    if draft.attempt.first_step_at is not None:
        return
    draft.set_attempt(first_step_at=at)
    draft.set(backoff_count=0)
    draft.reserve()
    trains_again(draft)
    draft.set(restart_seconds=learnt(draft.status, at))
    _replace(
        draft,
        tuple(_recovered(ending, at, suspended_seconds(draft)) for ending in draft.status.interruptions),
    )


def _recovered(ending: Interruption, at: float, suspended: float) -> Interruption:
    """A time in which the job was suspended on purpose is no part of a recovery."""
    if ending.recover_seconds is not None:
        return ending
    before = ending.suspended_before
    waited = 0.0 if before is None else suspended - before
    return ending.model_copy(update={"recover_seconds": max(0.0, at - ending.at - waited)})


def suspended_seconds(draft: Draft) -> float:
    """For how long the job has been suspended so far, while an attempt lives."""
    return draft.status.ledger.phases.get(SUSPENDED, 0) / 1000


def credit_rework(draft: Draft, resumed_step: int) -> None:
    """The attempt resumes at ``resumed_step``: what was done beyond it before has been lost.

    Charged to the ending that lost it, not to the attempt that does it again: an attempt that is drained
    while it redoes another's steps loses nothing itself. Over all endings every lost step is counted once.
    """
    lost = max(0, draft.status.step - resumed_step)
    settled = []
    for ending in draft.status.interruptions:
        if ending.resumed_step is None and ending.attempt < draft.attempt.number:
            steps = lost if ending.restored else 0  # an attempt that had not begun took nothing along
            ending = ending.model_copy(update={"resumed_step": resumed_step, "rework_steps": steps})
        settled.append(ending)
    _replace(draft, tuple(settled))


def _with_size(ending: Interruption, size: int) -> Interruption:
    return ending if ending.size_after is not None else ending.model_copy(update={"size_after": size})


def _replace(draft: Draft, endings: tuple[Interruption, ...]) -> None:
    kept = endings[-KEPT:]
    unplanned = [ending for ending in kept if not ending.planned]
    draft.set(
        interruptions=kept, last_interruption=unplanned[-1] if unplanned else draft.status.last_interruption
    )
