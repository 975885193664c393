"""The list of endings in status: written at an ending, completed by what the next attempt shows."""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.model import Interruption

KEPT = 50
RESTART_MEMORY = 0.5  # weight of the newest measurement in the exponential mean


def append(draft: Draft, ending: Interruption) -> None:
    """Add one ending and count it by cause."""
    counts = dict(draft.status.interruption_counts)
    counts[ending.cause] = counts.get(ending.cause, 0) + 1
    draft.set(interruption_counts=counts)
    _replace(draft, (*draft.status.interruptions, ending))


def sized(draft: Draft, size: int) -> None:
    """The next attempt is reserved at this size."""
    _complete(draft, {"size_after": size}, missing="size_after")


def recovered(draft: Draft, at: float) -> None:
    """The attempt has done its first step (or, without the library, has started): what did it cost?"""
    if draft.attempt.first_step_at is not None:
        return
    draft.set_attempt(first_step_at=at)
    draft.set(backoff_count=0)
    draft.reserve()
    if draft.attempt.number > 1:
        cost = max(0.0, at - draft.attempt.reserved_at)
        mean = draft.status.restart_seconds
        draft.set(restart_seconds=mean + RESTART_MEMORY * (cost - mean))
    ending_times = [ending.at for ending in draft.status.interruptions if ending.recover_seconds is None]
    for ended_at in ending_times:
        _complete(draft, {"recover_seconds": max(0.0, at - ended_at)}, missing="recover_seconds", at=ended_at)


def credit_rework(draft: Draft, steps: int, seconds: float) -> None:
    """What this attempt does again was lost by the ending before it: over all endings, counted once."""
    endings = draft.status.interruptions
    if not endings or endings[-1].attempt >= draft.attempt.number:
        return
    last = endings[-1]
    if steps > last.rework_steps or seconds > last.rework_seconds:
        changed = {"rework_steps": steps, "rework_seconds": seconds}
        _replace(draft, (*endings[:-1], last.model_copy(update=changed)))


def _complete(draft: Draft, changes: dict[str, float], missing: str, at: float | None = None) -> None:
    _replace(
        draft,
        tuple(
            ending.model_copy(update=changes)
            if getattr(ending, missing) is None and (at is None or ending.at == at)
            else ending
            for ending in draft.status.interruptions
        ),
    )


def _replace(draft: Draft, endings: tuple[Interruption, ...]) -> None:
    kept = endings[-KEPT:]
    unplanned = [ending for ending in kept if not ending.planned]
    draft.set(
        interruptions=kept, last_interruption=unplanned[-1] if unplanned else draft.status.last_interruption
    )
