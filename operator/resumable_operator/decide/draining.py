"""State ``draining``: a planned end. All ranks commit at one step and stop, or the deadline ends it."""

from __future__ import annotations

from resumable_operator.decide.actions import DeleteWorker
from resumable_operator.decide.distrust import distrust_of
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.ending import begin_ending, finalize
from resumable_operator.decide.evidence import notices, other_cause
from resumable_operator.decide.failure import WORKER_LOST
from resumable_operator.decide.planned import Change
from resumable_operator.decide.requests import send_drain
from resumable_operator.decide.success import excused, has_succeeded
from resumable_operator.decide.terminal import succeed
from resumable_operator.decide.views import heard_state
from resumable_training.contract import events

SLACK_SECONDS = 1.0  # agents keep the window themselves; the operator steps in a little later


def begin_draining(draft: Draft, change: Change) -> None:
    draft.set_attempt(
        state="draining",
        draining_since=draft.now,
        drain_cause=change.cause,
        drain_reason=change.reason,
        drain_deadline=draft.now + change.window_seconds,
        asked=draft.attempt.asked or change.asked,
    )
    if change.cause == "scale":
        draft.set(last_grow_at=draft.now)
    text = f"attempt {draft.attempt.number} drains within {change.window_seconds:.1f} s: {change.reason}"
    draft.tell("Normal", "Draining", text)


def step(draft: Draft) -> None:
    if has_succeeded(draft):
        succeed(draft)
        return
    _explain(draft)
    if all(_is_done(draft, member.worker) for member in draft.attempt.members):
        finalize(draft)
        return
    if draft.attempt.evidence:
        if not excused(draft):
            begin_ending(draft)
        return
    deadline = _shorten(draft)
    if draft.now >= deadline + SLACK_SECONDS or _none_is_left(draft) or _waits_for_nothing(draft):
        begin_ending(draft)
        return
    for member in draft.attempt.members:
        _ask(draft, member.worker, max(0.0, deadline - draft.now))
    draft.wake(deadline + SLACK_SECONDS)
    draft.note(f"attempt {draft.attempt.number} is draining: {draft.attempt.drain_reason}")


def _explain(draft: Draft) -> None:
    """Who ends a worker may be known a moment after its SIGTERM."""
    notice = other_cause(draft) if draft.attempt.drain_cause in WORKER_LOST else None
    if notice is not None:
        draft.set_attempt(drain_cause=notice.cause, drain_reason=notice.reason)


def _ask(draft: Draft, name: str, seconds: float) -> None:
    """A request, or for an agent that takes none from us the signal that the end of its pod brings."""
    state = heard_state(draft, name)
    if state is not None and (state.attempt, state.state) == (draft.attempt.number, "running"):
        send_drain(draft, name, seconds)
    elif distrust_of(draft, name) is not None:
        worker = draft.observation.worker(name)
        if worker is not None and not worker.deleting:
            draft.act(DeleteWorker(name, seconds, "it is to drain and takes no requests"))


def _is_done(draft: Draft, worker: str) -> bool:
    outcome = draft.attempt.outcomes.get(worker)
    if draft.status.uses_library is not True:
        return outcome is not None  # it knows no drain: however it ended, it was asked to
    return outcome in (events.SUCCEEDED, events.DRAINED)


def _none_is_left(draft: Draft) -> bool:
    """All members have ended, though not all as they were asked to: their window was over."""
    return all(member.worker in draft.attempt.outcomes for member in draft.attempt.members)


def _waits_for_nothing(draft: Draft) -> bool:
    """Ranks that have connected wait for one that the drain ended before it had: there is nothing to save."""
    attempt = draft.attempt
    return attempt.not_begun and attempt.first_step_at is None and draft.status.uses_library is True


def _shorten(draft: Draft) -> float:
    """The deadline; a notice that comes during the drain can only make it earlier."""
    deadline = draft.attempt.drain_deadline if draft.attempt.drain_deadline is not None else draft.now
    earliest = min((item.deadline for item in notices(draft) if item.deadline is not None), default=deadline)
    if earliest < deadline:
        deadline = max(earliest, draft.now)
        draft.set_attempt(drain_deadline=deadline)
        draft.reserve()
    return deadline
