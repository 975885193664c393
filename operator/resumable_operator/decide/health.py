"""What each worker is good for: ready, on its way, or to be replaced."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from resumable_operator.decide.distrust import given_up
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Node, Worker
from resumable_operator.decide.refusals import refused
from resumable_operator.decide.room import unplaceable
from resumable_operator.decide.silence import most_are_silent, silent_for, silent_nodes
from resumable_operator.decide.size import Supply
from resumable_operator.decide.validity import blocked
from resumable_operator.decide.views import (
    UNREADY_SECONDS,
    ended,
    heard,
    is_member,
    node_gone,
    node_of,
    placed_at,
    silent_after,
    unready_since,
)

STUCK_START_SECONDS = 120.0  # within it a worker that has a machine is ready, if all goes well

Health = Literal["ready", "starting", "stuck", "queued", "doomed", "dead"]

_CANNOT_START = (  # the kubelet tries again, and may do so for ever
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)


def health(draft: Draft, worker: Worker) -> Health:
    """``doomed``: exists, but is not to be used for another attempt; ``dead``: has ended; ``stuck``: has a
    node and can't start there."""
    return healths(draft)[worker.name]


def healths(draft: Draft) -> dict[str, Health]:
    """The health of every worker, by name."""
    known: dict[str, Health] = draft.memo(
        "health", draft.status.incarnations, draft.attempt.members, draft.alive
    )
    if not known:
        known.update({worker.name: _health(draft, worker) for worker in draft.observation.workers})
    return known


def _health(draft: Draft, worker: Worker) -> Health:
    if ended(worker):
        return "dead"
    if _is_doomed(draft, worker):
        return "doomed"
    if worker.phase == "pending" and worker.reason in _CANNOT_START:
        return "stuck"
    if worker.phase == "pending":
        return "starting" if draft.observation.capacity is not None or _is_coming(draft, worker) else "queued"
    agent = draft.observation.agents.get(worker.name)
    usable = worker.address and worker.agent_port and heard(agent, draft.now)
    return "ready" if usable else "starting"


def _is_coming(draft: Draft, worker: Worker) -> bool:
    """It has a machine, and has not been on its way there for so long that nobody knows when it comes."""
    known = worker.node and worker.node not in silent_nodes(draft)
    return bool(known) and draft.now < placed_at(worker) + STUCK_START_SECONDS


def ready_workers(draft: Draft) -> list[Worker]:
    known = healths(draft)
    return [worker for worker in draft.observation.workers if known[worker.name] == "ready"]


def warming(draft: Draft) -> frozenset[str]:
    """Workers whose agent still imports what ranks are to be forked from."""
    agents = draft.observation.agents.values()
    return frozenset(agent.worker for agent in agents if agent.state is not None and agent.state.warming)


def supply(draft: Draft) -> Supply:
    """The job's workers, counted by what they are good for."""
    known, capacity = healths(draft), draft.observation.capacity
    states = Counter(known.values())
    ready, starting, queued = states["ready"], states["starting"], states["queued"] + states["stuck"]
    room = None if capacity is None else max(0, capacity - ready - starting - queued)
    if blocked(draft) or refused(draft):
        room = 0
    waiting = [worker for worker in draft.observation.workers if known[worker.name] == "queued"]
    going = [worker for worker in draft.observation.workers if known[worker.name] in ("doomed", "dead")]
    return Supply(ready, starting, queued, room, unplaceable(draft, waiting, going))


def creatable(draft: Draft) -> int | None:
    """How many workers can be created now: those on their way out still take room."""
    capacity = draft.observation.capacity
    if capacity is None:
        return None
    return max(0, capacity - sum(not ended(worker) for worker in draft.observation.workers))


def _is_doomed(draft: Draft, worker: Worker) -> bool:
    agent, node = draft.observation.agents.get(worker.name), node_of(draft, worker)
    state = agent.state if agent else None
    return (
        given_up(draft, worker.name)
        or worker.incarnation < draft.status.incarnations.get(str(worker.place), 0)
        or worker.deleting
        or worker.disruption is not None
        or node_gone(node)
        or (node is not None and (node.notice_deadline is not None or _is_unready(draft, worker, node)))
        or (node is not None and node.cordoned and draft.spec.recovery.drain_on_cordon)
        or (state is not None and (state.terminating or state.unfit))
        or _has_fallen_silent(draft, worker)
    )


def _has_fallen_silent(draft: Draft, worker: Worker) -> bool:
    """Silent for ``silentSeconds``; not when most are, for then the operator's own network is suspect."""
    if is_member(draft, worker.name):
        return False  # whether a member is lost is for ``evidence`` to say
    limit = max(draft.spec.recovery.silent_seconds, silent_after(draft, worker.name))
    return worker.phase == "running" and silent_for(draft, worker) >= limit and not most_are_silent(draft)


def _is_unready(draft: Draft, worker: Worker, node: Node) -> bool:
    """Its node is away, and its agent is silent, too, or the node has been away for a while.

    Not when most nodes are, yet its agent is heard: then the control plane does not hear the nodes. An
    operator that has just started has heard nobody yet.
    """
    if node.ready:
        return False
    agent, silent = draft.observation.agents.get(worker.name), silent_after(draft, worker.name)
    until = unready_since(node) + UNREADY_SECONDS
    if agent is not None and agent.last_heard is None:
        until = max(until, agent.known_since + silent)
    if draft.now < until and silent_for(draft, worker) < silent:
        draft.wake(until)
        return False
    return not (heard(agent, draft.now) and _most_are_unready(draft))


def _most_are_unready(draft: Draft) -> bool:
    known = draft.memo("most are unready")
    if not known:
        nodes = [node_of(draft, worker) for worker in draft.observation.workers if worker.phase == "running"]
        unready = sum(node is not None and node.exists and not node.ready for node in nodes)
        known["most"] = len(nodes) > 1 and 2 * unready > len(nodes)
    return bool(known["most"])
