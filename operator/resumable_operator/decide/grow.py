"""When a running attempt is ended to go on larger: one batch, after a cool-down, after a checkpoint."""

from __future__ import annotations

from resumable_operator.decide.assign import mtbf_seconds
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.health import ready_workers, supply, warming
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.size import growth_pays, largest_allowed
from resumable_operator.words import counted


def growth(draft: Draft) -> str | None:
    """The reason to grow now; None: not now (a note says why, when workers for it are ready)."""
    size = len(draft.attempt.members)
    larger = _reachable_size(draft)
    if larger is None or larger <= size:
        if draft.attempt.grow_ready_since is not None:
            draft.set_attempt(grow_ready_since=None)
        return None
    if draft.attempt.grow_ready_since is None:
        draft.set_attempt(grow_ready_since=draft.now)
        draft.reserve()  # a checkpoint that is made from now on is one to grow after
    for check in (_worth_it, _cooled_down, _batch_complete, _saved, _warm):
        why_not = check(draft, size, larger)
        if why_not is not None:
            draft.note(f"could grow from {size} to {larger} workers: {why_not}")
            return None
    return f"growing from {size} to {larger} workers"


def _reachable_size(draft: Draft) -> int | None:
    """Members and ready others. A member needs no second look: a bad one would end the attempt."""
    return largest_allowed(draft.spec.workers, len(draft.attempt.members) + len(_others(draft)))


def _others(draft: Draft) -> list[Worker]:
    members = {member.worker for member in draft.attempt.members}
    return [worker for worker in ready_workers(draft) if worker.name not in members]


def _worth_it(draft: Draft, size: int, larger: int) -> str | None:
    made = draft.status.checkpoint
    save_seconds = (made.blocking_ms + made.durable_ms) / 1000 if made else 0.0
    if growth_pays(size, larger, draft.status.restart_seconds, save_seconds, mtbf_seconds(draft.status)):
        return None
    return f"a restart ({draft.status.restart_seconds:.0f} s) would cost more than it gains"


def _cooled_down(draft: Draft, _size: int, _larger: int) -> str | None:
    """Counted from the ranks' last start, whatever it was for: a growth costs another one."""
    started = draft.attempt.running_at if draft.attempt.running_at is not None else draft.now
    since = max(started, draft.status.last_grow_at or started)
    until = since + draft.spec.recovery.grow_cooldown_seconds
    draft.wake(until)
    if draft.now >= until:
        return None
    what = "last restart" if draft.attempt.number > 1 else "start"
    return f"cooling down for {draft.spec.recovery.grow_cooldown_seconds:g} s since the {what}"


def _batch_complete(draft: Draft, _size: int, larger: int) -> str | None:
    """Others that have a machine are on their way: take them along, for a bounded wait."""
    have = supply(draft)
    if larger == draft.spec.workers.replicas or have.starting == 0:
        return None
    until = _ready_since(draft) + draft.spec.recovery.shrink_after_seconds
    draft.wake(until)
    return None if draft.now >= until else f"{have.starting} more are on their way"


def _saved(draft: Draft, _size: int, _larger: int) -> str | None:
    """Right after a checkpoint, so that little is lost should the drain fail; but not for ever: with long
    save intervals the drain's own checkpoint is cheaper than running small."""
    made, since = draft.status.checkpoint, _ready_since(draft)
    if made is not None and made.at >= since:
        return None
    until = since + draft.spec.recovery.grow_cooldown_seconds
    draft.wake(until)
    return (
        None if draft.attempt.first_step_at is not None and draft.now >= until else "waiting for a checkpoint"
    )


def _warm(draft: Draft, _size: int, larger: int) -> str | None:
    """Ranks of a worker that still imports would let all others wait, which can train as well meanwhile."""
    others, cold = _others(draft), warming(draft)
    have = len(draft.attempt.members) + sum(worker.name not in cold for worker in others)
    return None if have >= larger else f"{counted(larger - have, 'worker')} must first import what ranks need"


def _ready_since(draft: Draft) -> float:
    since = draft.attempt.grow_ready_since
    return since if since is not None else draft.now
