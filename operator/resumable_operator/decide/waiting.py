"""State ``ended``: no attempt lives. Start the next one, wait for workers, or have a reason for neither."""

from __future__ import annotations

from resumable_operator.decide.actions import DeleteWorker
from resumable_operator.decide.backoff import delay_seconds
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.health import ready_workers, supply
from resumable_operator.decide.kept import suspended_text
from resumable_operator.decide.membership import reserve_attempt
from resumable_operator.decide.pending import why_waiting
from resumable_operator.decide.planned import overdue
from resumable_operator.decide.restart import weighed
from resumable_operator.decide.size import Start, choose_start
from resumable_operator.decide.terminal import fail
from resumable_operator.decide.validity import blocked, why_blocked
from resumable_operator.decide.views import ended
from resumable_operator.decide.workers import GRACE_SECONDS, apply_template

LOOK_AGAIN_SECONDS = 2.0  # at first: most is told by events, workers that come and agents that speak
LONGEST_LOOK_SECONDS = 30.0
_LOOK_SHARE = 0.25  # of the time waited so far
_FIRST_BACKOFF_SECONDS = 30.0
_LONGEST_BACKOFF_SECONDS = 600.0


def step(draft: Draft) -> None:
    if draft.observation.job.deleting:
        draft.note("the job is being deleted: nothing is started for it")
        return
    if overdue(draft):
        fail(
            draft,
            "deadline",
            f"spec.activeDeadlineSeconds ({draft.spec.active_deadline_seconds:g} s) is over",
        )
        return
    if draft.spec.suspend:
        _suspend(draft)
        return
    if not blocked(draft):
        apply_template(draft)
    if _backing_off(draft):
        return
    start = _choose(draft)
    if start.size is not None:
        reserve_attempt(draft, ready_workers(draft), start.size, start.reason)
        draft.note(start.reason)
    elif blocked(draft):
        draft.note(why_blocked(draft))
    else:
        _wait(draft, start)


def _suspend(draft: Draft) -> None:
    """Nothing of the job stays; its storage may be changed now."""
    draft.set(store="", below_min_since=None, below_target_since=None, backoff_until=None, backoff_count=0)
    draft.note(suspended_text(draft.status, draft.observation.job.suspended_by))


def _backing_off(draft: Draft) -> bool:
    until = draft.status.backoff_until
    if until is None:
        return False
    if draft.now >= until:
        draft.set(backoff_until=None, below_min_since=None)
        return False
    draft.note("waiting before the next try")
    if draft.status.below_min_since is not None:
        _delete_waiting(draft, "given back: below the smallest size for too long")
    draft.wake(until)
    return True


def _choose(draft: Draft) -> Start:
    status, recovery = draft.status, draft.spec.recovery
    since = status.below_target_since if status.below_target_since is not None else draft.now
    waited, patience = draft.now - since, recovery.shrink_after_seconds
    return choose_start(draft.spec.workers, supply(draft), waited, patience, weighed(status))


def _wait(draft: Draft, start: Start) -> None:
    draft.note("; ".join(filter(None, [start.reason, why_waiting(draft)])))
    draft.look_again(draft.now + _look_again_seconds(draft))
    if start.below_min:
        _wait_below_min(draft)
        return
    if draft.status.below_target_since is None or draft.status.below_min_since is not None:
        since = draft.status.below_target_since
        draft.set(below_target_since=draft.now if since is None else since, below_min_since=None)
        draft.reserve()
    if start.wait_seconds is not None:
        draft.wake(draft.now + start.wait_seconds)


def _look_again_seconds(draft: Draft) -> float:
    """Ever more seldom: hundreds of jobs may wait for room at the same time, some for days."""
    if draft.observation.capacity is not None:
        return LOOK_AGAIN_SECONDS
    status = draft.status
    began = [at for at in (status.below_min_since, status.below_target_since) if at is not None]
    waited = draft.now - min(began, default=draft.now)
    return min(LONGEST_LOOK_SECONDS, max(LOOK_AGAIN_SECONDS, _LOOK_SHARE * waited))


def _wait_below_min(draft: Draft) -> None:
    """For too long: give the waiting workers back, so that two half-placed jobs do not block each other.

    Where the room is known (one machine) nobody else waits for it.
    """
    if draft.status.below_min_since is None or draft.status.below_target_since is not None:
        since = draft.status.below_min_since
        draft.set(below_min_since=draft.now if since is None else since, below_target_since=None)
        draft.reserve()
    since = draft.status.below_min_since if draft.status.below_min_since is not None else draft.now
    until = since + draft.spec.recovery.forming_timeout_seconds
    if draft.observation.capacity is not None:
        return
    until = max(until, _heard_by(draft))
    if draft.now < until:
        draft.wake(until)
        return
    _give_back(draft)


def _heard_by(draft: Draft) -> float:
    """When running workers will have been heard, if they can be: this operator may have just started."""
    agents = draft.observation.agents.values()
    unheard = [agent for agent in agents if agent.last_heard is None and agent.distrust is None]
    return max((agent.known_since + agent.silent_after for agent in unheard), default=draft.now)


def _give_back(draft: Draft) -> None:
    count = draft.status.backoff_count + 1
    uid = draft.observation.job.uid
    wait = delay_seconds(uid, count, _FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
    draft.set(backoff_count=count, backoff_until=draft.now + wait)  # ``below_min_since`` says what for
    draft.wake(draft.now + wait)
    limit = draft.spec.recovery.forming_timeout_seconds
    reason = f"below the smallest size for {limit:g} s: the waiting workers are given back for {wait:.0f} s"
    _delete_waiting(draft, reason)
    draft.tell("Warning", "FormingTimeout", reason)
    draft.note(reason)


def _delete_waiting(draft: Draft, reason: str) -> None:
    for worker in draft.observation.workers:
        if not ended(worker) and not worker.deleting:
            draft.act(DeleteWorker(worker.name, GRACE_SECONDS if worker.node else 0.0, reason))
