"""The end of a job: success or failure, and the cleaning up after it."""

from __future__ import annotations

from typing import Literal

from resumable_operator.decide import ledger
from resumable_operator.decide.actions import DeleteJob, DeleteWorker
from resumable_operator.decide.conditions import condition, set_condition, set_if_known
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.requests import send_shutdown
from resumable_operator.decide.views import ended, heard_state, known_state

_CONDITION_REASON = {"user": "UserError", "budget": "BudgetSpent", "deadline": "DeadlineExceeded"}
SHUTDOWN_SECONDS = 10.0  # agents may take this long to end by themselves, and pods to go
NO_EFFECT = (
    "the spec was changed after the job had ended, which has no effect, but for ttlSecondsAfterFinished: "
    "delete the job and create it again, and it continues its checkpoints"
)
DELETE_SECONDS = 5.0  # grace of an agent that does not


def succeed(draft: Draft) -> None:
    """Every rank returned 0."""
    message = f"attempt {draft.attempt.number} finished all its work"
    _finish(draft, "Succeeded", message)
    set_condition(draft, "Succeeded", "True", "AllRanksReturnedZero", message)
    draft.tell("Normal", "Succeeded", message)


def fail(draft: Draft, failure_class: Literal["user", "budget", "deadline"], message: str) -> None:
    """Give up. ``message`` says what a person has to know."""
    _finish(draft, "Failed", message)
    draft.set(failure_class=failure_class, ledger=ledger.give_up(draft.status.ledger))
    set_condition(draft, "Failed", "True", _CONDITION_REASON[failure_class], message)
    draft.tell("Warning", "Failed", message)


def _finish(draft: Draft, phase: Literal["Succeeded", "Failed"], message: str) -> None:
    settled = ledger.settle(draft.status.ledger, _last_phase(draft, phase), draft.now_ms)
    draft.set_attempt(state="ended")
    draft.set(phase=phase, reason=message, finished_at=draft.now, size=0, ledger=settled, backoff_until=None)
    draft.note(message)
    draft.reserve()


def _last_phase(draft: Draft, phase: Literal["Succeeded", "Failed"]) -> str:
    """Where time since the last report goes. Ranks that all returned 0 were closing: part of saving."""
    reported = draft.status.ledger.open_phase == ledger.UNACCOUNTED
    return ledger.CHECKPOINTING if phase == "Succeeded" and reported else draft.status.ledger.open_phase


def clean_up(draft: Draft) -> None:
    """After the end no worker goes on. Ended ones keep their logs as long as the job is there: until
    ``ttlSecondsAfterFinished`` is over, if that is given."""
    _note_change(draft)
    finished_at = draft.status.finished_at if draft.status.finished_at is not None else draft.now
    ttl = draft.spec.ttl_seconds_after_finished
    if ttl is not None:
        draft.wake(finished_at + ttl)
    if ttl is not None and draft.now >= finished_at + ttl and not draft.observation.job.deleting:
        draft.act(DeleteJob(f"ttlSecondsAfterFinished ({ttl:g} s) is over"))
    for worker in draft.observation.workers:
        if not ended(worker):
            _clean(draft, worker, finished_at + SHUTDOWN_SECONDS)
    draft.note(draft.status.reason)


def effective_generation(draft: Draft) -> int:
    """Of the newest spec that had an effect: of a job that has ended, the one that it ended with."""
    before = draft.observation.job.status
    ended_before = draft.finished and before.finished_at is not None and before.observed_generation > 0
    return before.observed_generation if ended_before else draft.observation.job.generation


def _note_change(draft: Draft) -> None:
    """Whoever mends the spec of a job that was given up is to hear that nothing follows."""
    changed = effective_generation(draft) != draft.observation.job.generation
    if changed and condition(draft.status, "SpecChangeIgnored") is None:
        draft.tell("Warning", "SpecChangeIgnored", NO_EFFECT)
    set_if_known(draft, "SpecChangeIgnored", changed, "JobHasEnded", NO_EFFECT)


def _clean(draft: Draft, worker: Worker, late_at: float) -> None:
    """Ask, then delete, then force."""
    if worker.deleting:
        asked_at = worker.deleting_since if worker.deleting_since is not None else late_at
        if draft.now >= asked_at + SHUTDOWN_SECONDS:
            draft.act(DeleteWorker(worker.name, 0.0, "the job has ended and it does not go"))
        draft.wake(asked_at + SHUTDOWN_SECONDS)
    elif draft.now >= late_at or known_state(draft, worker.name) is None:
        grace = DELETE_SECONDS if worker.phase == "running" else 0.0
        draft.act(DeleteWorker(worker.name, grace, "the job has ended"))
    else:  # one that isn't heard any more is most likely about to be seen as ended: its log is to stay
        if heard_state(draft, worker.name) is not None:
            send_shutdown(draft, worker.name, "the job has ended")
        draft.wake(late_at)
