"""Which operator looks after a job: the one whose master key its status names.

Two installations that see the same jobs would work against each other: each is heard only by agents that it
gave their key. So the first to write a job's status names itself in that write, and says so again now and
then while there is something to look after. Any other leaves the job alone until that has ceased for a while:
then its operator is gone for good, or was installed anew without its master key.
"""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.model import JobStatus

RENEW_SECONDS = 60.0
TAKE_OVER_SECONDS = 180.0
CLOCKS_DIFFER_SECONDS = 60.0  # a time further ahead was written by nobody who works


def hands_off_seconds(status: JobStatus, operators: tuple[str, ...], now: float) -> float:
    """How long another operator is still believed to look after the job; 0: this one does.

    Args:
        operators: names of this operator, by its current and its previous master key; none: no other can
            exist.
    """
    if not operators or status.operator in ("", *operators) or status.operator_at is None:
        return 0.0
    left = status.operator_at + TAKE_OVER_SECONDS - now
    return left if 0.0 < left <= TAKE_OVER_SECONDS + CLOCKS_DIFFER_SECONDS else 0.0


def hands_off_text(status: JobStatus, operators: tuple[str, ...]) -> str:
    """What people are told."""
    return (
        f"operator {status.operator} looks after this job, and {operators[0]} sees it, too: it leaves the "
        "job alone as long as the first one works. Uninstall one of them, or limit it to other namespaces"
    )


def note_operator(draft: Draft) -> None:
    """Name the operator that decides here, and say again that it is there.

    A finished or suspended job needs nobody, and is not written without end.
    """
    own, at = draft.observation.operator, draft.status.operator_at
    if not own or draft.finished or (draft.spec.suspend and not draft.alive):
        return
    if own != draft.status.operator or at is None or draft.now >= at + RENEW_SECONDS:
        draft.set(operator=own, operator_at=draft.now)
        draft.reserve()
        at = draft.now
    draft.wake(at + RENEW_SECONDS)
