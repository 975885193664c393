"""State ``running``: watch for evidence, for success, and for reasons to end the attempt on purpose."""

from __future__ import annotations

from resumable_operator.decide.assign import settings_digest
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.draining import begin_draining
from resumable_operator.decide.ending import begin_ending
from resumable_operator.decide.planned import Change, planned_change
from resumable_operator.decide.requests import send_settings
from resumable_operator.decide.success import excused, has_succeeded
from resumable_operator.decide.terminal import succeed
from resumable_operator.decide.views import heard_state
from resumable_operator.words import counted
from resumable_training.contract import events

LOOK_AGAIN_SECONDS = 30.0  # whatever nothing told of; a stream that hangs is ended and told of
SETTINGS_RESEND_SECONDS = 5.0  # agents do not say which settings they have; sending twice is harmless


def step(draft: Draft) -> None:
    draft.look_again(draft.now + LOOK_AGAIN_SECONDS)
    if has_succeeded(draft):
        succeed(draft)
        return
    if draft.attempt.evidence:
        if not excused(draft):
            begin_ending(draft)
        return
    change = planned_change(draft) if not _all_done_soon(draft) else None
    change = change or _draining_by_itself(draft)
    if change is not None:
        begin_draining(draft, change)
        return
    _push_settings(draft)
    workers = counted(len(draft.attempt.members), "worker")
    draft.notes.insert(0, f"attempt {draft.attempt.number} is running with {workers}")  # trouble is told last


def _all_done_soon(draft: Draft) -> bool:
    """Rank 0 has returned 0: there is nothing left to drain."""
    return draft.attempt.rank0_returned_at is not None and draft.status.uses_library is True


def _draining_by_itself(draft: Draft) -> Change | None:
    """An agent began a drain that nobody here asked for: it was alone for too long, say.

    Ranks that have ended as drained may have done so unasked; who asked is known when all have ended.
    """
    for member in draft.attempt.members:
        state = heard_state(draft, member.worker)
        drains = state is not None and (state.attempt, state.state) == (draft.attempt.number, "draining")
        if drains or draft.attempt.outcomes.get(member.worker) == events.DRAINED:
            window = draft.spec.recovery.drain_seconds
            return Change("drained", f"{member.worker} began to drain by itself", window, asked=drains)
    return None


def _push_settings(draft: Draft) -> None:
    """Limits and save settings are changed live."""
    wanted = settings_digest(draft.spec)
    if wanted != draft.attempt.settings_digest:
        draft.set_attempt(settings_digest=wanted, settings_at=draft.now)
        draft.tell(
            "Normal", "SettingsPushed", "recovery limits and save settings are changed without a restart"
        )
    sent_at = draft.attempt.settings_at
    if sent_at is None or draft.now >= sent_at + SETTINGS_RESEND_SECONDS:
        return
    for member in draft.attempt.members:
        if heard_state(draft, member.worker) is not None:
            send_settings(draft, member.worker)
    draft.wake(draft.now + 1.0)
