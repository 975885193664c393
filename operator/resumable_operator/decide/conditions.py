"""Conditions in status: one of each type; the time of transition moves only when the value does."""

from __future__ import annotations

from typing import Literal

from resumable_operator.decide.draft import Draft
from resumable_operator.model import Condition, JobStatus


def condition(status: JobStatus, type_: str) -> Condition | None:
    """The condition of that type."""
    return next((item for item in status.conditions if item.type == type_), None)


def set_condition(
    draft: Draft,
    type_: str,
    value: Literal["True", "False"],
    reason: str,
    message: str = "",
    *,
    urgent: bool = True,
) -> None:
    """Set one condition; a change of its value is written at once, or soon if it is not ``urgent``."""
    old = condition(draft.status, type_)
    moved = old is None or old.status != value
    new = Condition(
        type=type_,
        status=value,
        reason=reason,
        message=message,
        observed_generation=draft.observation.job.generation,
        last_transition=draft.now if old is None or moved else old.last_transition,
    )
    if new == old:
        return
    others = tuple(item for item in draft.status.conditions if item.type != type_)
    draft.set(conditions=tuple(sorted((*others, new), key=lambda item: item.type)))
    if moved and urgent:
        draft.reserve()
    elif moved:
        draft.soon = True


def set_if_known(draft: Draft, type_: str, holds: bool, reason: str, message: str = "") -> None:
    """Set a condition that only shows up once it has been true. ``message`` is for while it holds."""
    if holds:
        set_condition(draft, type_, "True", reason, message)
    elif condition(draft.status, type_) is not None:
        set_condition(draft, type_, "False", "Resolved")
