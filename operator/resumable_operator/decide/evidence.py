"""What workers, nodes and agents show about an attempt now: outcomes, losses, notices.

A worker is lost only on evidence: the API says so, or its agent is silent *and* its ring neighbour can't
reach it or its peers' ranks failed; with no neighbour to ask, after a bounded time. If most look silent at
once, it is more likely the operator's own network: no verdict. A healthy attempt is never ended by our own
trouble.
"""

from __future__ import annotations

from dataclasses import dataclass

from resumable_operator.decide.distrust import ended_instead, goes_instead, knows_no_key
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.fold import note_outcomes, witnessed
from resumable_operator.decide.observation import Node, Worker
from resumable_operator.decide.views import (
    ended,
    heard_state,
    known_state,
    node_gone,
    node_of,
    silent_after,
)
from resumable_operator.decide.why_lost import explain, is_refused
from resumable_operator.model import Evidence, MemberStatus
from resumable_training.contract import events

LOOK_AGAIN_SECONDS = 3.0  # at silence without a verdict
IN_FLIGHT_SECONDS = 2.0  # what an agent has sent has come by then, or its stream is of no use
_SIGTERM_EXITS = (0, 143, -15)
_GOOD = (events.SUCCEEDED, events.DRAINED)


@dataclass(frozen=True)
class Notice:
    """A member will go soon. ``deadline`` in seconds; None: not known."""

    worker: str
    cause: str
    reason: str
    deadline: float | None = None


def gather(draft: Draft) -> None:
    """Bring outcomes and evidence of the living attempt up to what is seen now."""
    _note_outcomes(draft)
    _note_unheard(draft)
    open_members = [
        item for item in draft.attempt.members if draft.attempt.outcomes.get(item.worker) not in _GOOD
    ]
    lost = {}
    for member in open_members:
        witness = _shown_loss(draft, member)
        if witness is not None:
            lost[member.worker] = witness
    for witness in lost.values():
        explain(draft, witness)
        witnessed(draft, witness)
    for member in open_members:
        if member.worker not in lost:
            _note_agent(draft, member)
    going = {item.worker for item in open_members if goes_instead(draft, item.worker)}
    for witness in _silence(draft, [item for item in open_members if item.worker not in going | lost.keys()]):
        witnessed(draft, witness)


def lost_members(draft: Draft) -> set[str]:
    """Members that evidence calls lost."""
    causes = ("preempted", "evicted", "node_lost")
    return {item.worker for item in draft.attempt.evidence if item.cause in causes and item.rank is None}


def notices(draft: Draft) -> list[Notice]:
    """Members that still train but will be gone, soonest first."""
    found = [_notice(draft, member.worker) for member in draft.attempt.members]
    return sorted(
        (item for item in found if item is not None),
        key=lambda item: (item.deadline is None, item.deadline or 0.0, item.worker),
    )


def other_cause(draft: Draft) -> Notice | None:
    """What explains a drain better than what it began with, which may have been a mere SIGTERM: the agent's
    word can come before the API's."""
    workers = [draft.observation.worker(member.worker) for member in draft.attempt.members]
    told = [notice for worker in workers if worker and (notice := _told(draft, worker))]
    known = draft.attempt.drain_cause in {notice.cause for notice in told}
    is_mere = draft.attempt.drain_reason in {_sigterm(notice.worker) for notice in told}
    return None if known and not is_mere else next(iter(told), None)


def _note_outcomes(draft: Draft) -> None:
    attempt = draft.attempt
    found: dict[str, str] = {}
    for member in attempt.members:
        state = known_state(draft, member.worker)
        if state is not None and (state.attempt, state.state) == (attempt.number, "ended") and state.outcome:
            found[member.worker] = state.outcome
        if ended_instead(draft, member.worker):
            found.setdefault(member.worker, events.DRAINED)
    note_outcomes(draft, found)


def _note_unheard(draft: Draft) -> None:
    """Since when this operator waits for a first word of a member's agent; others have ``last_heard``.

    What an operator before it waited, and the time between the two, says nothing about the agent.
    """
    before, agents = draft.attempt.silent_since, draft.observation.agents
    since = {}
    for member in draft.attempt.members:
        agent = agents.get(member.worker)
        if agent is None or agent.last_heard is None:
            known_since = agent.known_since if agent else 0.0
            since[member.worker] = max(before.get(member.worker, draft.now), known_since)
    if since != before:
        draft.set_attempt(silent_since=since)


# ---- what the API shows --------------------------------------------------------------------------------


def _shown_loss(draft: Draft, member: MemberStatus) -> Evidence | None:
    """The API says that the worker is gone, or going and no longer answering."""
    worker = draft.observation.worker(member.worker)
    if worker is None:
        return _vanished(draft, member)
    node = node_of(draft, worker)
    if ended(worker):
        return _ended_worker(draft, member, worker)
    if node_gone(node):
        return _lost(draft, member, _cause_of_node(node), f"node {worker.node} of {worker.name} is gone")
    if not _is_silent(draft, member.worker):
        return None
    if worker.disruption is not None:
        cause, why = worker.disruption.cause, worker.disruption.reason
        return _lost(draft, member, cause, f"{worker.name} is being ended ({why}) and its agent is silent")
    if node is not None and not node.ready:
        message = f"node {node.name} is not ready and {worker.name} is silent"
        return _lost(draft, member, _cause_of_node(node), message)
    if worker.deleting and not goes_instead(draft, worker.name):
        return _lost(draft, member, "evicted", f"{worker.name} is being deleted and its agent is silent")
    return None


def _vanished(draft: Draft, member: MemberStatus) -> Evidence:
    """On a node that is well a pod goes only when somebody deletes it."""
    node = draft.observation.nodes.get(member.node)
    if node is not None and node.ready and not node_gone(node):
        return _lost(draft, member, "evicted", f"pod {member.worker} was deleted while nobody watched")
    return _lost(draft, member, _cause_of_node(node), f"{member.worker} vanished without a trace")


def _ended_worker(draft: Draft, member: MemberStatus, worker: Worker) -> Evidence:
    """Pod conditions, then node, then the reason of the container, then its exit code."""
    node, code = node_of(draft, worker), worker.exit_code
    said = f" ({worker.message})" if worker.message else ""
    if worker.disruption is not None:
        return _lost(
            draft, member, worker.disruption.cause, f"{worker.name}: {worker.disruption.reason}{said}"
        )
    if node_gone(node) or (node is not None and not node.ready):
        return _lost(
            draft, member, _cause_of_node(node), f"node {worker.node} of {worker.name} is lost{said}"
        )
    if worker.reason == "OOMKilled":
        return _lost(draft, member, "oom", f"{worker.name} ran out of memory{said}", code)
    if worker.reason in ("Evicted", "Preempted", "Preempting"):
        cause = "evicted" if worker.reason == "Evicted" else "preempted"
        return _lost(draft, member, cause, f"{worker.name}: {worker.reason}{said}", code)
    if worker.deleting:
        cause = "evicted" if node is None or node.notice_deadline is None else "preempted"
        return _lost(draft, member, cause, f"{worker.name} was deleted{said}", code)
    if code in _SIGTERM_EXITS or _is_doomed(draft, worker.name):
        return _lost(draft, member, "preempted", f"{worker.name} was told to end{said}", code)
    if code in (None, 137, -9):
        return _lost(draft, member, "node_lost", f"{worker.name} was killed from outside{said}", code)
    message = f"agent of {worker.name} ended with exit code {code}{said}"
    return _lost(draft, member, "unknown", message, code)


def _cause_of_node(node: Node | None) -> str:
    """A node that went as it had said it would was taken away."""
    return "node_lost" if node is None or node.notice_deadline is None else "preempted"


def _lost(draft: Draft, member: MemberStatus, cause: str, message: str, code: int | None = None) -> Evidence:
    return Evidence(at=draft.now, cause=cause, worker=member.worker, code=code, message=message)


# ---- what the agents show ------------------------------------------------------------------------------


def _note_agent(draft: Draft, member: MemberStatus) -> None:
    attempt, state = draft.attempt, heard_state(draft, member.worker)
    if state is None:
        return
    if attempt.running_at is None:  # it may not have its assignment yet
        if state.unfit:
            message = f"{member.worker} is unfit: one of its ranks can't be reaped"
            witnessed(draft, _lost(draft, member, "node_lost", message))
        return
    if attempt.state == "draining" and draft.status.uses_library is not True:
        return  # its ranks were ended by SIGTERM, as asked
    if state.attempt < attempt.number:
        if _may_be_from_before(draft, member, attempt.running_at):
            draft.wake(attempt.running_at + IN_FLIGHT_SECONDS)
            return
        message = f"agent of {member.worker} has started anew; its ranks are gone"
        witnessed(draft, Evidence(at=draft.now, cause="unknown", worker=member.worker, message=message))
    elif state.attempt > attempt.number:
        message = f"agent of {member.worker} is at attempt {state.attempt} already"
        witnessed(draft, Evidence(at=draft.now, cause="unknown", worker=member.worker, message=message))
    elif _failed_without_a_word(draft, member) and attempt.state != "ending":
        how = attempt.outcomes[member.worker]
        message = f"the ranks of {member.worker} {how}; what they said is lost"
        witness = Evidence(
            at=draft.now, cause="unknown", worker=member.worker, message=message, primary=False
        )
        witnessed(draft, witness)


def _may_be_from_before(draft: Draft, member: MemberStatus, running_at: float) -> bool:
    """The agent's state was perhaps under way when the attempt began to run: of an operator that has not sent
    the assignments itself (a second one by mistake, or one just started) status is ahead of the streams."""
    agent = draft.observation.agents[member.worker]
    return agent.last_heard is None or agent.last_heard < running_at + IN_FLIGHT_SECONDS


def _failed_without_a_word(draft: Draft, member: MemberStatus) -> bool:
    outcome = draft.attempt.outcomes.get(member.worker)
    return outcome in (events.FAILED, events.STOPPED) and not draft.attempt.evidence


def _notice(draft: Draft, name: str) -> Notice | None:
    worker, state = draft.observation.worker(name), heard_state(draft, name)
    if worker is None or ended(worker):
        return None
    told = _told(draft, worker)
    if told is None and ((state is not None and state.terminating) or _is_doomed(draft, name)):
        return Notice(name, "preempted", _sigterm(name))
    return told


def _sigterm(name: str) -> str:
    return f"{name} got a SIGTERM"


def _told(draft: Draft, worker: Worker) -> Notice | None:
    """By whom it is ended, as the API tells it.

    A deletion is carried out by the node. Of one that is not ready nobody knows whether it will: its worker
    trains on until the agent gets its SIGTERM, or is replaced at a checkpoint.
    """
    name, node = worker.name, node_of(draft, worker)
    by_its_loss = worker.disruption is not None and worker.disruption.cause == "node_lost"
    if (worker.deleting or by_its_loss) and node is not None and node.exists and not node.ready:
        return None
    if worker.disruption is not None:
        disruption = worker.disruption
        return Notice(name, disruption.cause, f"{name}: {disruption.reason}", disruption.deadline)
    if node is not None and node.notice_deadline is not None:
        return Notice(name, "preempted", f"{name}: node {node.name} will be taken away", node.notice_deadline)
    return Notice(name, "evicted", f"{name} is being deleted") if worker.deleting else None


def _is_doomed(draft: Draft, name: str) -> bool:
    state = known_state(draft, name)
    return name in draft.attempt.doomed or (state is not None and state.terminating)


# ---- silence -------------------------------------------------------------------------------------------


def _silent_for(draft: Draft, name: str) -> float:
    """Seconds since the last word of an agent; 0 when never asked."""
    agent = draft.observation.agents.get(name)
    last = agent.last_heard if agent else None
    if last is None:
        last = draft.attempt.silent_since.get(name, draft.now)
    return draft.now - last


def _is_silent(draft: Draft, name: str) -> bool:
    """One that answers, though it does not know our key, is not silent: its ranks may be fine. Where nobody
    listens any more there is nothing to wait for."""
    overdue = _silent_for(draft, name) >= silent_after(draft, name)
    return not knows_no_key(draft, name) and (is_refused(draft, name) or overdue)


def _silence(draft: Draft, members: list[MemberStatus]) -> list[Evidence]:
    """Members lost by silence, with what confirms it."""
    for member in members:
        agent = draft.observation.agents.get(member.worker)
        if agent is None or not agent.connected:
            draft.wake(draft.now + silent_after(draft, member.worker) - _silent_for(draft, member.worker))
    silent = [member for member in members if _is_silent(draft, member.worker)]
    if len(members) > 1 and 2 * len(silent) > len(members):
        draft.note(
            f"{len(silent)} of {len(members)} agents are silent at once: "
            "suspecting the operator's own network, no verdict"
        )
        draft.wake(draft.now + LOOK_AGAIN_SECONDS)
        return []
    witnesses = [_silent_member(draft, member) for member in silent]
    return [witness for witness in witnesses if witness is not None]


def _silent_member(draft: Draft, member: MemberStatus) -> Evidence | None:
    name = member.worker
    neighbour = _watcher(draft, name)
    state = heard_state(draft, neighbour) if neighbour != name else None
    if state is not None and state.unreachable_peer == name:
        return _lost(draft, member, "node_lost", f"{name} is silent and {neighbour} can't reach it")
    if any(item.worker != name and item.rank is not None for item in draft.attempt.evidence):
        return _lost(draft, member, "node_lost", f"{name} is silent and its peers' ranks failed")
    watched = state is not None and draft.attempt.state != "forming"
    if watched or _gets_on(draft):
        draft.note(f"agent of {name} is silent, but its peers see nothing wrong")
        draft.wake(draft.now + LOOK_AGAIN_SECONDS)
        return None
    limit = draft.spec.recovery.silent_seconds
    if _silent_for(draft, name) >= limit:
        message = f"{name} has been silent for {limit:g} s and nobody else can be asked"
        return _lost(draft, member, "node_lost", message)
    draft.wake(draft.now + limit - _silent_for(draft, name))
    return None


def _watcher(draft: Draft, name: str) -> str:
    """The ring neighbour that watches ``name``: the member before it, cyclically."""
    known = draft.memo("watchers", draft.attempt.members)
    if not known:
        workers = [member.worker for member in draft.attempt.members]
        known.update({worker: workers[index - 1] for index, worker in enumerate(workers)})
    return str(known[name])


def _gets_on(draft: Draft) -> bool:
    """Ranks made progress while the agent was silent: no rank of the attempt can be dead."""
    last = draft.attempt.last_progress_at
    return last is not None and draft.now - last < draft.spec.recovery.silent_seconds / 2
