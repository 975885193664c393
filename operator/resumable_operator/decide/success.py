"""When a job has done all its work: every rank returned 0, or failed only because rank 0 left first."""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.evidence import lost_members
from resumable_operator.decide.failure import WORKER_LOST
from resumable_training.contract import events

LAST_WORDS_SECONDS = 10.0  # how long other ranks may take after rank 0 returned 0 and a peer failed


def excused(draft: Draft) -> bool:
    """Rank 0 returned 0, and whatever failed did so as a consequence.

    With the library all ranks met at a barrier after the final commit, so a worker lost then took nothing
    along. A rank that fails by itself is never excused. Nor is one that lost its peers within its loop: rank
    0 left that early, with work undone.
    """
    attempt = draft.attempt
    if attempt.rank0_returned_at is None or not attempt.evidence:
        return False
    met_at_barrier = draft.status.uses_library is True
    return all(
        not (item.primary or item.in_loop) or (met_at_barrier and item.cause in WORKER_LOST)
        for item in attempt.evidence
    )


def has_succeeded(draft: Draft) -> bool:
    """Every rank of the attempt returned 0, or its failure is excused."""
    attempt = draft.attempt
    if all(attempt.outcomes.get(member.worker) == events.SUCCEEDED for member in attempt.members):
        return True
    if not excused(draft) or attempt.rank0_returned_at is None:
        return False
    closed = set(attempt.outcomes) | lost_members(draft)
    deadline = attempt.rank0_returned_at + LAST_WORDS_SECONDS
    draft.wake(deadline)
    return draft.now >= deadline or all(member.worker in closed for member in attempt.members)
