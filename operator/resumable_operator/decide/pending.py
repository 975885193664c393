"""Why workers that are wanted are not there: the scheduler's words, the kubelet's, or our own."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from resumable_operator.decide.avoid import avoid_node
from resumable_operator.decide.conditions import condition, set_condition
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.health import STUCK_START_SECONDS, health
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.refusals import CONDITION as CREATABLE
from resumable_operator.decide.refusals import refused
from resumable_operator.decide.validity import blocked, why_blocked
from resumable_operator.decide.views import heard, is_member, placed_at
from resumable_operator.words import workers_are

CONDITION = "WorkersReady"
STARTING = "Starting"
_SPEC_NOT_VALID = "SpecNotValid"  # told by ``validity``
_ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")  # the kubelet is at it
_LONGEST_MESSAGE = 600
# Between which kubelets go to and fro for ever.
_SAME_TROUBLE = {"ErrImagePull": "ImagePullBackOff", "ImagePullBackOff": "ErrImagePull"}


def why_waiting(draft: Draft) -> str:
    """Of a worker that waits, in the words of who keeps it waiting; empty when none does."""
    reason, worker = _commonest(draft)
    if worker is None or not reason:
        return _why_not_created(draft)
    said = f": {worker.message}" if worker.message else ""
    return f"{worker.name}: {reason}{said}"[:_LONGEST_MESSAGE]


def show_readiness(draft: Draft, wanted: int) -> None:
    """Condition ``WorkersReady``: every wanted worker can take part.

    In a recovery it changes to and fro, beside writes that must be: they have it in them, mostly.

    Args:
        wanted: replicas and spares; 0 while nothing is wanted.
    """
    ready = sum(_is_there(draft, worker) for worker in draft.observation.workers)
    if not wanted:
        _set(draft, "False", "NoneWanted", "no workers are wanted now")
        return
    if ready >= wanted:
        _set(draft, "True", "AllReady", f"{wanted} of {workers_are(wanted)} ready")
        return
    reason = _reason(draft)
    before = condition(draft.status, CONDITION)
    why = why_waiting(draft)
    text = f"{ready} of {workers_are(wanted)} ready" + (f"; {why}" if why else "")
    _set(draft, "False", reason, text)
    known = before.reason if before else ""
    if reason not in (STARTING, _SPEC_NOT_VALID, known, _SAME_TROUBLE.get(known)):
        draft.tell("Warning", "WorkersWaiting", text)


def _set(draft: Draft, value: Literal["True", "False"], reason: str, text: str) -> None:
    set_condition(draft, CONDITION, value, reason, text, urgent=False)


def give_up_stuck(draft: Draft) -> None:
    """A worker that can't start on its node, or be reached there, although others of the job are elsewhere:
    try another node."""
    if not any(worker.phase == "running" for worker in draft.observation.workers):
        return  # the image or the configuration is wrong, not the node
    for worker in draft.observation.workers:
        trouble = _trouble(draft, worker)
        if trouble is None:
            continue
        since, what, why = trouble
        if draft.now < since + STUCK_START_SECONDS:
            draft.wake(since + STUCK_START_SECONDS)
            continue
        place = str(worker.place)
        draft.set(incarnations={**draft.status.incarnations, place: worker.incarnation + 1})
        avoid_node(draft, worker.node, f"{worker.name} could not {what} there")
        text = f"{worker.name} could not {what} for {STUCK_START_SECONDS:g} s ({why}) and is replaced"
        draft.tell("Warning", "WorkerStuck", text)


def _trouble(draft: Draft, worker: Worker) -> tuple[float, str, str] | None:
    """Since when it can't do what, and why; None: it can, or it is too early to say."""
    state, agent = health(draft, worker), draft.observation.agents.get(worker.name)
    if state == "stuck":
        return placed_at(worker), "start", worker.reason
    if state != "starting" or worker.phase != "running" or agent is None or is_member(draft, worker.name):
        return None  # whether a member is lost is for ``evidence`` to say
    unheard = agent.last_heard is None and agent.distrust is None
    if not unheard or not any(heard(other, draft.now) for other in draft.observation.agents.values()):
        return None
    return max(agent.known_since, placed_at(worker)), "be reached", "its agent has never answered"


def _is_there(draft: Draft, worker: Worker) -> bool:
    return worker.phase == "running" and health(draft, worker) in ("ready", "starting")


def _commonest(draft: Draft) -> tuple[str, Worker | None]:
    """The commonest reason of waiting workers, and the first that has it."""
    waiting = [
        worker
        for worker in draft.observation.workers
        if worker.phase == "pending"
        and worker.reason not in _ON_ITS_WAY
        and health(draft, worker) != "doomed"
    ]
    if not waiting:
        return "", None
    reason, _ = Counter(worker.reason for worker in waiting).most_common(1)[0]
    return reason, next(worker for worker in waiting if worker.reason == reason)


def _reason(draft: Draft) -> str:
    if blocked(draft):
        return _SPEC_NOT_VALID
    reason, _ = _commonest(draft)
    if reason:
        return reason
    return "Refused" if refused(draft) else STARTING


def _why_not_created(draft: Draft) -> str:
    if blocked(draft):
        return why_blocked(draft)
    known = condition(draft.status, CREATABLE)
    return f"{known.reason}: {known.message}" if known is not None and refused(draft) else ""
