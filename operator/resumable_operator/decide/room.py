"""Where another worker may find room soon: what the scheduler says, and which machines lost workers leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.silence import silent_nodes
from resumable_operator.decide.views import members, node_gone

NO_ROOM = "Unschedulable"  # the reason of a pod for which the scheduler has found no node


def unplaceable(draft: Draft, queued: Iterable[Worker], going: Iterable[Worker]) -> int:
    """How many of the ``queued`` have no machine to wait for, as far as is known now.

    The scheduler looks again when a pod has gone, and does not say so when it finds nothing: while one that
    is ``going``, or gone, may leave its room, the scheduler's word is not the last one.
    """
    told = sum(worker.reason == NO_ROOM for worker in queued)
    return told if told and not _may_be_left(draft, going) else 0


def _may_be_left(draft: Draft, going: Iterable[Worker]) -> bool:
    """Some lost worker's node takes workers, as far as is known, and has given its room to no other."""
    here = {worker.name for worker in draft.observation.workers}
    lost = [member for name, member in members(draft).items() if name not in here]
    left = Counter(member.node for member in lost)
    left.update(
        worker.node for worker in going if worker.disruption is None or worker.disruption.cause != "preempted"
    )
    left.subtract(_retaken(draft, {member.place: member.incarnation for member in lost}))
    return any(_takes_workers(draft, node) for node, count in left.items() if node and count > 0)


def _retaken(draft: Draft, lost: dict[int, int]) -> Iterator[str]:
    """Where the successors of members that have gone are; ``lost``: place -> incarnation of those."""
    for worker in draft.observation.workers:
        if worker.node and worker.incarnation > lost.get(worker.place, worker.incarnation):
            yield worker.node


def _takes_workers(draft: Draft, name: str) -> bool:
    """Of a node that can't be looked at nothing is known."""
    if name in silent_nodes(draft):
        return False
    node = draft.observation.nodes.get(name)
    if node is None:
        return True
    return node.ready and not node_gone(node) and not node.cordoned and node.notice_deadline is None
