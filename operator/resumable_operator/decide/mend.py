"""Status as somebody's hand or an older version left it, brought back to what the rest relies on.

What can be had from the world (agents' attempts, pods' names) is taken from there; nothing is ever numbered
or named twice.
"""

from __future__ import annotations

from resumable_operator.decide import ledger
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.views import assigned_members
from resumable_operator.model import AttemptStatus
from resumable_training.contract.assignment import membership_digest

LARGEST_INCARNATION = 10**8  # no place has seen so many workers


def mend(draft: Draft) -> None:
    _raise_incarnations(draft)
    _mend_end(draft)
    if draft.attempt.state != "ended" and not (_is_whole(draft.attempt) and _is_as_reserved(draft)):
        settled = ledger.enter(draft.status.ledger, ledger.RECOVERING, draft.now_ms)
        draft.set(attempt=AttemptStatus(number=max(0, draft.attempt.number)), ledger=settled)
        text = "status.attempt was changed by another hand and makes no sense: the next attempt starts"
        draft.tell("Warning", "StatusMended", text)


def _raise_incarnations(draft: Draft) -> None:
    """A worker that exists was reserved, whatever status says. A number that no name can hold never was."""
    known = draft.status.incarnations
    if not all(0 <= number <= LARGEST_INCARNATION for number in known.values()):
        known = {place: number for place, number in known.items() if 0 <= number <= LARGEST_INCARNATION}
        draft.set(incarnations=known)
    lost: dict[str, int] = {}
    for worker in draft.observation.workers:
        place = str(worker.place)
        if worker.incarnation > lost.get(place, known.get(place, 0)):
            lost[place] = worker.incarnation
    for member in draft.attempt.members:
        place = str(member.place)
        if member.incarnation > lost.get(place, known.get(place, 0)):
            lost[place] = member.incarnation
    if lost:
        draft.set(incarnations={**known, **lost})


def _mend_end(draft: Draft) -> None:
    """The phase alone neither ends a job nor brings one back."""
    finished_at, phase = draft.status.finished_at, draft.status.phase
    if draft.finished and finished_at is None:
        draft.set(phase="Pending")
        draft.tell("Warning", "StatusMended", f"status.phase {phase} was written by another hand; undone")
    elif not draft.finished and finished_at is not None:
        failed = condition(draft.status, "Failed")
        draft.set(phase="Failed" if failed is not None and failed.status == "True" else "Succeeded")
        draft.tell("Warning", "StatusMended", f"status.phase {phase} was written by another hand; undone")


def _is_as_reserved(draft: Draft) -> bool:
    """What is still to be sent is what was reserved: one attempt has one membership."""
    attempt = draft.attempt
    if attempt.state != "forming":
        return True
    members = assigned_members(draft)
    return attempt.digest == membership_digest(draft.observation.job.uid, attempt.number, members)


def _is_whole(attempt: AttemptStatus) -> bool:
    """Every rank has exactly one place in it."""
    expected = 0
    for member in attempt.members:
        if member.first_rank != expected or member.ranks < 1:
            return False
        expected += member.ranks
    return attempt.number > 0 and expected == attempt.world_size > 0
