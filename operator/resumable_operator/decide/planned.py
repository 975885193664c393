"""Reasons to end an attempt on purpose: each is one function, the first that holds wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resumable_operator.decide import ledger
from resumable_operator.decide.assign import processes_per_worker, template_digest
from resumable_operator.decide.distrust import distrust_of, given_up
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.evidence import notices
from resumable_operator.decide.grow import growth
from resumable_operator.decide.health import ready_workers, warming
from resumable_operator.decide.size import largest_allowed
from resumable_operator.decide.validity import blocked
from resumable_operator.decide.views import UNREADY_SECONDS, heard_state, is_member, node_of, unready_since

SHORTEST_WINDOW_SECONDS = 0.5
JUST_SAVED_SECONDS = 10.0  # a checkpoint this fresh is "at the next checkpoint"


@dataclass(frozen=True)
class Change:
    """End the attempt with this cause, within the window. ``asked`` False: it may be the ranks' own idea."""

    cause: str
    reason: str
    window_seconds: float
    asked: bool = True


def unavoidable_change(draft: Draft) -> Change | None:
    """A reason that holds whatever the attempt is doing; also while it is forming."""
    change = _first(draft, _deleted, _suspended, _overdue, _notice)
    if change is None and not blocked(draft):  # what a bad spec asks for waits until it is mended
        change = _first(draft, _template, _processes, _size)
    return change


def planned_change(draft: Draft) -> Change | None:
    """A reason to end a running attempt."""
    change = unavoidable_change(draft) or _first(draft, _distrusted, _not_ready_node, _has_successor, _cordon)
    if change is None and not blocked(draft):
        change = _growth(draft)
    return change


def _first(draft: Draft, *checks: Callable[[Draft], Change | None]) -> Change | None:
    return next((change for check in checks if (change := check(draft)) is not None), None)


def overdue(draft: Draft) -> bool:
    """The job is older than ``activeDeadlineSeconds``, time in which it was suspended left out."""
    limit, started = draft.spec.active_deadline_seconds, draft.status.started_at
    if limit is None or started is None:
        return False
    suspended = ledger.phases_at(draft.status.ledger, draft.now_ms)[ledger.SUSPENDED] / 1000
    draft.wake(started + limit + suspended)
    return draft.now >= started + limit + suspended


def _window(draft: Draft) -> float:
    return draft.spec.recovery.drain_seconds


def _deleted(draft: Draft) -> Change | None:
    if not draft.observation.job.deleting:
        return None
    return Change("drained", "the job is being deleted", _window(draft))


def _suspended(draft: Draft) -> Change | None:
    if not draft.spec.suspend:
        return None
    return Change("suspend", draft.observation.job.suspended_by or "spec.suspend is set", _window(draft))


def _overdue(draft: Draft) -> Change | None:
    if not overdue(draft):
        return None
    limit = draft.spec.active_deadline_seconds
    return Change("deadline", f"spec.activeDeadlineSeconds ({limit:g} s) is over", _window(draft))


def _notice(draft: Draft) -> Change | None:
    """A member will be gone soon: the window is the smallest of its notice and ``drainSeconds``."""
    for notice in notices(draft):
        window = _window(draft)
        if notice.deadline is not None:
            window = min(window, max(SHORTEST_WINDOW_SECONDS, notice.deadline - draft.now))
        return Change(notice.cause, notice.reason, window)
    return None


def _template(draft: Draft) -> Change | None:
    if not draft.status.template_digest or template_digest(draft.spec) == draft.status.template_digest:
        return None
    return Change("config", "spec.template changed", _window(draft))


def _processes(draft: Draft) -> Change | None:
    before, wanted = draft.attempt.processes, processes_per_worker(draft.spec)
    if before in (0, wanted):
        return None
    return Change("config", f"processesPerWorker changed from {before} to {wanted}", _window(draft))


def _size(draft: Draft) -> Change | None:
    """The size is not allowed any more, or above what is desired. Growing obeys the cool-down instead."""
    size = len(draft.attempt.members)
    if size in draft.spec.workers.allowed_sizes() and size <= draft.spec.workers.replicas:
        return None
    wanted = largest_allowed(draft.spec.workers, size)
    target = f" to {wanted}" if wanted is not None else ""
    return Change("scale", f"spec.workers changed: size {size}{target}", _window(draft))


def _just_saved(draft: Draft) -> bool:
    made = draft.status.checkpoint
    return made is not None and draft.now - made.at <= JUST_SAVED_SECONDS


def _distrusted(draft: Draft) -> Change | None:
    """An agent that nobody could believe for long: replace its worker."""
    for name in sorted(draft.status.distrusted):
        distrust = distrust_of(draft, name)
        if distrust is not None and is_member(draft, name) and given_up(draft, name):
            return Change("drained", f"{name} is replaced: {distrust.message}", _window(draft))
    return None


def _not_ready_node(draft: Draft) -> Change | None:
    """A node that is NotReady although its agent reports: replace it at the next checkpoint.

    Not when that holds for most: then it is the control plane that does not hear the nodes. Nor at once: it
    may be a moment's trouble, or the first node of many.
    """
    unheard = [member.worker for member in draft.attempt.members if _reports_unready(draft, member.worker)]
    size = len(draft.attempt.members)
    if not unheard or (size > 1 and 2 * len(unheard) > size):
        return None
    name = min(unheard, key=lambda worker: _unready_since(draft, worker))
    until = _unready_since(draft, name) + UNREADY_SECONDS
    if draft.now < until:
        draft.wake(until)
        return None
    if not _just_saved(draft):
        return None
    worker = draft.observation.worker(name)
    node = worker.node if worker else ""
    return Change("drained", f"node {node} is not ready; {name} is replaced", _window(draft))


def _has_successor(draft: Draft) -> Change | None:
    """A member whose successor is there and warm, as that of a node that came back after all: replace it at
    the next checkpoint, or a machine would stand idle until the attempt ends."""
    newest = draft.status.incarnations
    old = {m.place: m.worker for m in draft.attempt.members if m.incarnation < newest.get(str(m.place), 0)}
    if not old or not _just_saved(draft):
        return None
    cold = warming(draft)
    for worker in ready_workers(draft):
        if worker.place in old and worker.name != old[worker.place] and worker.name not in cold:
            return Change("drained", f"{old[worker.place]} is replaced by {worker.name}", _window(draft))
    return None


def _reports_unready(draft: Draft, name: str) -> bool:
    worker = draft.observation.worker(name)
    node = node_of(draft, worker) if worker else None
    return node is not None and not node.ready and heard_state(draft, name) is not None


def _unready_since(draft: Draft, name: str) -> float:
    worker = draft.observation.worker(name)
    node = node_of(draft, worker) if worker else None
    return unready_since(node) if node is not None else 0.0


def _cordon(draft: Draft) -> Change | None:
    if not draft.spec.recovery.drain_on_cordon:
        return None
    for member in draft.attempt.members:
        worker = draft.observation.worker(member.worker)
        node = node_of(draft, worker) if worker else None
        if node is not None and node.cordoned:
            return Change("drained", f"node {node.name} is cordoned (drainOnCordon)", _window(draft))
    return None


def _growth(draft: Draft) -> Change | None:
    reason = growth(draft)
    return Change("scale", reason, _window(draft)) if reason is not None else None
