"""Which workers to create and which to delete. Names (place, incarnation) are reserved before use."""

from __future__ import annotations

import itertools

from resumable_operator.decide.actions import CreateWorker, DeleteWorker
from resumable_operator.decide.assign import template_digest
from resumable_operator.decide.avoid import avoided, note_trouble
from resumable_operator.decide.backoff import delay_seconds
from resumable_operator.decide.budget import charge, exhausted
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.health import creatable, healths
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.pending import give_up_stuck
from resumable_operator.decide.refusals import note_none_missing, refused
from resumable_operator.decide.requests import send_shutdown
from resumable_operator.decide.terminal import fail
from resumable_operator.decide.validity import blocked
from resumable_operator.decide.views import (
    ended,
    heard_state,
    living_members,
    node_gone,
    node_of,
    took_part,
)
from resumable_operator.words import counted, span
from resumable_training.contract.labels import worker_name

GRACE_SECONDS = 5.0  # for an agent without ranks to end
STUCK_SECONDS = 60.0  # a deletion that takes longer is forced when the node can't do it
ASK_SECONDS = 30.0  # then its agent, if it is heard, is asked to end by itself
UNSEEN_NODE_SECONDS = 300.0  # beyond the grace, when the node can't be looked at
MOST_CREATED = 500  # in one pass: of more, each that comes into being leads to the next pass
ENDINGS_THAT_STOP = ("suspend", "deadline")
_FIRST_DELAY_SECONDS = 1.0
_LONGEST_DELAY_SECONDS = 60.0


def note_arrivals(draft: Draft) -> None:
    """A refusal of workers that all exist by now is over, before anything is decided by it."""
    if refused(draft) and len(_keep(draft)) >= wanted_workers(draft):
        note_none_missing(draft)


def tend_workers(draft: Draft) -> None:
    """Bring the workers that exist closer to the ones that are wanted."""
    give_up_stuck(draft)
    kept = _keep(draft)
    names, members = {worker.name for worker in kept}, living_members(draft)
    for worker in draft.observation.workers:
        if worker.name in members:
            continue
        reason = _why_delete(draft, worker, worker.name in names)
        if reason is not None and not worker.deleting:
            grace = 0.0 if ended(worker) else GRACE_SECONDS
            draft.act(DeleteWorker(worker.name, grace, reason))
        elif worker.deleting:
            _force_if_stuck(draft, worker)
    if len(kept) >= wanted_workers(draft):
        note_none_missing(draft)
    elif _may_create(draft):
        _create_missing(draft, {worker.place for worker in kept})


def apply_template(draft: Draft) -> None:
    """With a new pod template all incarnations are obsolete; only between attempts."""
    wanted = template_digest(draft.spec)
    if wanted == draft.status.template_digest:
        return
    if draft.status.template_digest:
        newer = {place: incarnation + 1 for place, incarnation in draft.status.incarnations.items()}
        draft.set(incarnations=newer, uses_library=None)  # it may be another script
        draft.tell("Normal", "TemplateChanged", "spec.template changed: all workers are replaced")
    draft.set(template_digest=wanted)
    draft.reserve()


def _wants_none(draft: Draft) -> bool:
    leaving = draft.alive and draft.attempt.drain_cause in ENDINGS_THAT_STOP
    return draft.observation.job.deleting or draft.spec.suspend or draft.finished or leaving


def wanted_workers(draft: Draft) -> int:
    """Replicas and spares; 0 while nothing is wanted."""
    workers = draft.spec.workers
    return 0 if _wants_none(draft) else workers.replicas + workers.spares


def _keep(draft: Draft) -> list[Worker]:
    """The workers that fill places: members first, then whoever is furthest."""
    order = {"ready": 1, "starting": 2, "stuck": 3, "queued": 4}
    known, members = healths(draft), living_members(draft)
    useful = [worker for worker in draft.observation.workers if known[worker.name] in order]
    useful.sort(key=lambda worker: (worker.name not in members, order[known[worker.name]], worker.place))
    return useful[: wanted_workers(draft)]


def _why_delete(draft: Draft, worker: Worker, is_kept: bool) -> str | None:
    if _wants_none(draft):
        return "suspended" if draft.spec.suspend else "the job is ending"
    state = healths(draft)[worker.name]
    if state == "dead":
        return "it has ended"
    if state == "doomed":
        return "it is being replaced"
    if not is_kept and draft.attempt.state == "running":
        return "more workers than wanted"
    return None


def _force_if_stuck(draft: Draft, worker: Worker) -> None:
    """A pod on a dead node stays Terminating for ever: nobody is there to end it."""
    if worker.deleting_since is None:
        return
    patience = _patience(draft, worker)
    if patience is None:
        return
    if heard_state(draft, worker.name) is not None and draft.now >= worker.deleting_since + ASK_SECONDS:
        send_shutdown(draft, worker.name, "its node does not carry its deletion out")
    if draft.now < worker.deleting_since + patience:
        draft.wake(worker.deleting_since + patience)
        return
    draft.act(DeleteWorker(worker.name, 0.0, f"still terminating after {patience:g} s"))
    if worker.name not in draft.status.forced:
        existing = {other.name for other in draft.observation.workers}
        forced = tuple(name for name in (*draft.status.forced, worker.name) if name in existing)
        draft.set(forced=forced)
        draft.tell("Warning", "DeletionForced", f"{worker.name} was stuck terminating on node {worker.node}")


def _patience(draft: Draft, worker: Worker) -> float | None:
    """How long a deletion may take; None: for ever, since its node is alive and will do it.

    Without a look at nodes only time can tell that a node is dead: much longer than any grace.
    """
    node = node_of(draft, worker)
    if node is None:
        return draft.spec.recovery.drain_seconds + UNSEEN_NODE_SECONDS if worker.node else STUCK_SECONDS
    return STUCK_SECONDS if node_gone(node) or not node.ready else None


# ---- creating --------------------------------------------------------------------------------------------


def _may_create(draft: Draft) -> bool:
    if _wants_none(draft) or blocked(draft):
        return False
    backoff = draft.status.backoff_until
    if backoff is not None and draft.now < backoff:
        return False
    after = draft.status.create_after
    if after is not None and draft.now < after:
        draft.wake(after)
        return False
    return True


def _create_missing(draft: Draft, filled: set[int]) -> None:
    missing = wanted_workers(draft) - len(filled)
    room = creatable(draft)
    count = min(missing, MOST_CREATED if room is None else room)
    places = itertools.islice((place for place in itertools.count() if place not in filled), max(0, count))
    reserved, avoid, job = dict(draft.status.incarnations), avoided(draft), draft.observation.job.name
    failed = None
    for place in places:
        failed = _reserve_name(draft, reserved, place)
        if failed is not None:
            break
        incarnation = reserved[str(place)]
        draft.act(CreateWorker(worker_name(job, place, incarnation), place, incarnation, avoid))
    if reserved != draft.status.incarnations:
        draft.set(incarnations=reserved)
        draft.reserve()
    if failed is not None:
        _delay(draft, failed)


def _reserve_name(draft: Draft, reserved: dict[str, int], place: int) -> Worker | None:
    """A new name for the worker of a place, unless the reserved one is still unused.

    Returns the worker of that place that failed to start, if so: then nothing is created for a while.
    """
    incarnation = reserved.get(str(place), 0)
    name = worker_name(draft.observation.job.name, place, incarnation)
    worker = draft.observation.worker(name)
    if incarnation == 0 or worker is not None or took_part(draft, name):
        reserved[str(place)] = incarnation + 1
    return worker if worker is not None and _failed_to_start(draft, worker) else None


def _failed_to_start(draft: Draft, worker: Worker) -> bool:
    return worker.phase == "failed" and worker.disruption is None and not took_part(draft, worker.name)


def _delay(draft: Draft, worker: Worker) -> None:
    count = draft.status.start_failures + 1
    uid = draft.observation.job.uid
    wait = delay_seconds(uid, count, _FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS)
    budgets = draft.spec.recovery.budgets
    spent = charge(draft.status.budgets, budgets, "infrastructure", "unknown", draft.now)
    draft.set(start_failures=count, create_after=draft.now + wait, budgets=spent)
    draft.wake(draft.now + wait)
    note_trouble(draft, worker.node)
    why = worker.message or worker.reason or f"exit code {worker.exit_code}"
    text = f"{worker.name} failed before it took part in an attempt ({why}); next try in {wait:.1f} s"
    draft.tell("Warning", "WorkerFailed", text)
    if exhausted(spent, budgets, (), draft.now) is not None and not draft.alive:
        limit = budgets.infrastructure
        endings = counted(limit.limit + 1, "ending")
        message = f"{endings} in {span(limit.window_seconds)}, limit {limit.limit}; last: {text}"
        fail(draft, "budget", f"recovery.budgets.infrastructure is spent: {message}")
