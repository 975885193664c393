"""Why a worker is gone whose loss the agents saw first: the API's word is waited for where it may come.

A machine that refuses connections is there, and so is its kubelet, which soon tells how the pod ended: out of
memory, evicted, preempted. A machine that is silent tells nothing, and is not waited for.
"""

from __future__ import annotations

from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Node
from resumable_operator.decide.views import node_gone, node_of
from resumable_operator.model import Evidence

WHY_SECONDS = 1.5  # in which a kubelet tells how a pod ended


def why_may_come(draft: Draft) -> float | None:
    """Until when the API may still say why a worker is gone; None: there is nothing to wait for."""
    times = [
        witness.at + WHY_SECONDS
        for witness in draft.attempt.evidence
        if _is_bare(witness) and is_refused(draft, witness.worker) and _seems_fine(draft, witness.worker)
    ]
    return min(times, default=None)


def explain(draft: Draft, told: Evidence) -> None:
    """The API's word for a loss takes the place, and the time, of the bare fact that others saw."""
    known = draft.attempt.evidence
    bare = next((item for item in known if _is_bare(item) and item.worker == told.worker), None)
    if bare is not None and not _is_bare(told):
        dated = told.model_copy(update={"at": bare.at, "last_progress": bare.last_progress})
        draft.set_attempt(evidence=tuple(dated if item is bare else item for item in known))


def is_refused(draft: Draft, worker: str) -> bool:
    """Nobody listens any more where its agent did."""
    agent = draft.observation.agents.get(worker)
    return agent is not None and agent.refused


def _is_bare(witness: Evidence) -> bool:
    return witness.cause == "node_lost" and witness.rank is None


def _seems_fine(draft: Draft, name: str) -> bool:
    """As far as the API tells."""
    worker = draft.observation.worker(name)
    node = node_of(draft, worker) if worker is not None else None
    return worker is not None and worker.phase == "running" and (node is None or _is_well(node))


def _is_well(node: Node) -> bool:
    return node.ready and not node_gone(node)
