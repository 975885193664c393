"""Look-ups that several policies share: which agents are heard, what they say, who is a member."""

from __future__ import annotations

from resumable_operator.decide.assign import contract_members
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Agent, Node, Worker
from resumable_operator.model import MemberStatus
from resumable_training.contract.assignment import Member
from resumable_training.contract.events import SILENT_SECONDS, AgentState

UNREADY_SECONDS = 10.0  # a node may take this long to be ready again before its worker is replaced


def heard(agent: Agent | None, now: float) -> bool:
    """The agent spoke just now, so that what it says holds now."""
    if agent is None or not agent.connected or agent.state is None or agent.last_heard is None:
        return False
    if agent.refused:
        return False
    return now - agent.last_heard < agent.silent_after


def silent_after(draft: Draft, worker: str) -> float:
    """Seconds without a word after which its agent counts as silent."""
    agent = draft.observation.agents.get(worker)
    return agent.silent_after if agent else SILENT_SECONDS


def known_state(draft: Draft, worker: str) -> AgentState | None:
    """The newest state of an agent, however old."""
    agent = draft.observation.agents.get(worker)
    return agent.state if agent else None


def heard_state(draft: Draft, worker: str) -> AgentState | None:
    """The state of an agent that is heard now."""
    agent = draft.observation.agents.get(worker)
    return agent.state if agent is not None and heard(agent, draft.now) else None


def has_assignment(draft: Draft, state: AgentState | None) -> bool:
    """The agent has the current attempt's assignment."""
    attempt = draft.attempt
    return state is not None and (state.attempt, state.digest) == (attempt.number, attempt.digest)


def has_live_ranks(state: AgentState | None) -> bool:
    return state is not None and state.state in ("running", "draining")


def ended(worker: Worker) -> bool:
    return worker.phase in ("failed", "succeeded")


def placed_at(worker: Worker) -> float:
    """When it was given a node, as far as that is known."""
    return worker.schedulable_since if worker.schedulable_since is not None else worker.created_at


def node_of(draft: Draft, worker: Worker) -> Node | None:
    return draft.observation.nodes.get(worker.node) if worker.node else None


def node_gone(node: Node | None) -> bool:
    return node is not None and (not node.exists or node.out_of_service)


def unready_since(node: Node) -> float:
    """Of a node that is not ready. One of which that is not known has been away for long."""
    return node.unready_since if node.unready_since is not None else 0.0


def is_member(draft: Draft, worker: str) -> bool:
    """It takes part in an attempt that has not ended."""
    return draft.alive and took_part(draft, worker)


def took_part(draft: Draft, worker: str) -> bool:
    """It takes part in the newest attempt, or did."""
    return worker in members(draft)


def members(draft: Draft) -> dict[str, MemberStatus]:
    """Those of the newest attempt, by worker; in order of rank."""
    attempt = draft.attempt
    known: dict[str, MemberStatus] = draft.memo("members", attempt.members)
    if not known:
        known.update({member.worker: member for member in attempt.members})
    return known


def living_members(draft: Draft) -> dict[str, MemberStatus]:
    """Those of an attempt that has not ended; else empty."""
    return members(draft) if draft.alive else {}


def assigned_members(draft: Draft) -> tuple[Member, ...]:
    """The members as agents are told: one tuple for all assignments of a pass."""
    known = draft.memo("assigned members", draft.attempt.members)
    if not known:
        known["members"] = contract_members(draft.attempt.members)
    members: tuple[Member, ...] = known["members"]
    return members


def rank_zero(draft: Draft) -> MemberStatus:
    return next(member for member in draft.attempt.members if member.first_rank == 0)
