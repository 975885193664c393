"""Where another worker may find room soon: what the scheduler says, and which machines lost workers leave."""

from __future__ import annotations

from collections.abc import Iterable

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.views import heard, members, node_gone, silent_after

NO_ROOM = "Unschedulable"  # the reason of a pod for which the scheduler has found no node


def silent_nodes(draft: Draft) -> frozenset[str]:
    """Nodes whose workers have said nothing for long, while nothing says that only an agent is gone.

    Kubernetes calls such a node ready for most of a minute. Empty where all nodes are one machine.
    """
    known = draft.memo("silent nodes")
    if not known:
        workers = draft.observation.workers if draft.observation.capacity is None else ()
        silent = {worker.node for worker in workers if _is_silent(draft, worker)}
        agents = draft.observation.agents
        known["nodes"] = frozenset(
            silent - {worker.node for worker in workers if heard(agents.get(worker.name), draft.now)}
        )
    nodes: frozenset[str] = known["nodes"]
    return nodes


def unplaceable(draft: Draft, queued: Iterable[Worker], going: Iterable[Worker]) -> int:
    """How many of the ``queued`` have no machine to wait for, as far as is known now.

    The scheduler looks again when a pod has gone, and does not say so when it finds nothing: while one that
    is ``going``, or gone, may leave its room, the scheduler's word is not the last one.
    """
    told = sum(worker.reason == NO_ROOM for worker in queued)
    return told if told and not _may_be_left(draft, going) else 0


def _may_be_left(draft: Draft, going: Iterable[Worker]) -> bool:
    """Some lost worker's node takes workers, as far as is known, and it has not given way to another pod."""
    here = {worker.name for worker in draft.observation.workers}
    nodes = {member.node for name, member in members(draft).items() if name not in here}
    for worker in going:
        if worker.disruption is None or worker.disruption.cause != "preempted":
            nodes.add(worker.node)
    return any(_takes_workers(draft, node) for node in nodes)


def _takes_workers(draft: Draft, name: str) -> bool:
    """Of a node that can't be looked at nothing is known."""
    if name in silent_nodes(draft):
        return False
    node = draft.observation.nodes.get(name)
    if node is None:
        return True
    return node.ready and not node_gone(node) and not node.cordoned and node.notice_deadline is None


def _is_silent(draft: Draft, worker: Worker) -> bool:
    agent = draft.observation.agents.get(worker.name)
    if worker.phase != "running" or agent is None or agent.last_heard is None or agent.refused:
        return False
    return draft.now - agent.last_heard >= silent_after(draft, worker.name)
