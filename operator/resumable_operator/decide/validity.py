"""Whether the job's spec can be run, as far as only the cluster can tell. Nothing is created before it can.

A problem found later, in a changed spec, harms nothing that runs: the living attempt goes on with the workers
that it has, and what the new spec asks for waits until it is mended.
"""

from __future__ import annotations

from resumable_operator.decide.conditions import condition, set_condition
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Job, Problem
from resumable_operator.model import Condition

CONDITION = "Valid"
FIRST_RECHECK_SECONDS = 2.0  # a claim that is created later is seen by looking again: right after the job,
BLOCKED_RECHECK_SECONDS = 30.0  # most likely, so at first often
WARNED_RECHECK_SECONDS = 300.0
UNCHECKED_RETRY_SECONDS = 2.0
_FINE = "Checked"
_LONGEST_MESSAGE = 1000


def check_due(job: Job, now: float) -> bool:
    """Whether the cluster is to be asked about the spec in this pass. ``now`` in seconds."""
    status = job.status
    if job.deleting or status.finished_at is not None:
        return False
    known = condition(status, CONDITION)
    if known is None or status.checked_generation != job.generation or status.checked_at is None:
        return True
    if known.status == "True" and known.reason == _FINE:
        return False
    wait = WARNED_RECHECK_SECONDS if known.status == "True" else _blocked_wait(known, status.checked_at)
    return now >= status.checked_at + wait


def _blocked_wait(known: Condition, checked_at: float) -> float:
    """As long as it was blocked when it was looked at last: the waits double."""
    blocked_for = checked_at - known.last_transition
    return min(max(FIRST_RECHECK_SECONDS, blocked_for), BLOCKED_RECHECK_SECONDS)


def note_problems(draft: Draft) -> None:
    """Bring the condition up to what the cluster said, if it was asked in this pass."""
    problems, job = draft.observation.problems, draft.observation.job
    if problems is not None:
        before, generation = _verdict(draft), draft.status.checked_generation
        _judge(draft, problems)
        draft.set(checked_generation=job.generation, checked_at=draft.now)
        news = _verdict(draft) != before or generation != job.generation
        if news or draft.alive or draft.status.phase == "Recovering":
            draft.reserve()  # until that is written each pass would ask again, also those of a recovery
    if blocked(draft) and not draft.finished:
        at, known = draft.status.checked_at, condition(draft.status, CONDITION)
        if at is not None and known is not None and is_checked(draft):
            draft.wake(at + _blocked_wait(known, at))
        else:
            draft.wake(draft.now + UNCHECKED_RETRY_SECONDS)


def _verdict(draft: Draft) -> tuple[str, str, str] | None:
    known = condition(draft.status, CONDITION)
    return (known.status, known.reason, known.message) if known is not None else None


def is_checked(draft: Draft) -> bool:
    """The cluster was asked about this very spec."""
    return draft.status.checked_generation == draft.observation.job.generation


def blocked(draft: Draft) -> bool:
    """Nothing may be created from this spec: it is known to be wrong, or nobody has looked yet."""
    known = condition(draft.status, CONDITION)
    return known is None or known.status != "True" or not is_checked(draft)


def why_blocked(draft: Draft) -> str:
    known = condition(draft.status, CONDITION)
    if known is None or not is_checked(draft):
        return "the spec is not checked yet"
    return f"the spec cannot be run: {known.message}"


def _judge(draft: Draft, problems: tuple[Problem, ...]) -> None:
    fatal = [problem for problem in problems if problem.fatal]
    before = condition(draft.status, CONDITION)
    shown = fatal or list(problems)
    reason = shown[0].reason if shown else _FINE
    message = "; ".join(f"{problem.field}: {problem.message}" for problem in shown)[:_LONGEST_MESSAGE]
    if fatal:
        set_condition(draft, CONDITION, "False", reason, message)
    else:
        set_condition(draft, CONDITION, "True", reason, message)
    if before is not None and (before.reason, before.message) == (reason, message):
        return
    if fatal:
        draft.tell("Warning", "SpecInvalid", message)
    elif problems:
        draft.tell("Warning", "SpecQuestionable", message)
    elif before is not None and before.status != "True":
        draft.tell("Normal", "SpecValid", "the spec can be run now")
