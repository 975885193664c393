"""When the cluster refuses to create workers: say so, try again ever more slowly, go on smaller."""

from __future__ import annotations

from resumable_operator.decide.backoff import delay_seconds
from resumable_operator.decide.conditions import condition, set_condition
from resumable_operator.decide.draft import Draft

CONDITION = "WorkersCreatable"
_SAME_SECONDS = 0.001  # status keeps microseconds
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0


def note_refusal(draft: Draft) -> None:
    """Take in the newest refusal; each counts once, however often it is seen."""
    refusal, last = draft.observation.refusal, draft.status.refused_at
    if refusal is None or (last is not None and refusal.at < last + _SAME_SECONDS):
        return
    count = draft.status.refusals + 1
    uid = draft.observation.job.uid
    until = refusal.at + delay_seconds(uid, count, _FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS)
    draft.set(
        refusals=count, refused_at=refusal.at, create_after=max(until, draft.status.create_after or until)
    )
    known = condition(draft.status, CONDITION)
    set_condition(draft, CONDITION, "False", refusal.reason, refusal.message)
    if known is None or known.reason != refusal.reason:
        draft.tell("Warning", "WorkersRefused", f"{refusal.reason}: {refusal.message}")


def refused(draft: Draft) -> bool:
    """Workers can't be created now, as far as is known."""
    known = condition(draft.status, CONDITION)
    return known is not None and known.status == "False"


def note_none_missing(draft: Draft) -> None:
    """All wanted workers exist: whatever stood against them does no more."""
    if refused(draft):
        draft.set(refusals=0)  # refused_at stays: the last refusal, which may still be seen, has been counted
        set_condition(draft, CONDITION, "True", "Created", "all wanted workers exist")
        draft.tell("Normal", "WorkersCreated", "the cluster lets workers be created again")
