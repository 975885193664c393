"""Agents that say nothing: for how long, on which machines, and when it is the operator that hears nobody.

Whether a member is lost is for ``evidence`` to say, which asks its peers, too.
"""

from __future__ import annotations

from resumable_operator.decide.distrust import knows_no_key
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.observation import Worker
from resumable_operator.decide.views import heard, silent_after


def silent_for(draft: Draft, worker: Worker) -> float:
    """Seconds since the last word; an agent that was never heard is starting, not silent."""
    agent = draft.observation.agents.get(worker.name)
    if agent is None or agent.last_heard is None or knows_no_key(draft, worker.name):
        return 0.0
    return draft.now - agent.last_heard


def most_are_silent(draft: Draft) -> bool:
    """The operator's own network is suspect then. Where a machine answers that nobody listens, it is not."""
    known = draft.memo("most are silent")
    if not known:
        running = _running(draft)
        known["most"] = len(running) > 1 and 2 * len(_silent(draft, running)) > len(running)
    return bool(known["most"])


def silent_nodes(draft: Draft) -> frozenset[str]:
    """Nodes whose workers have said nothing for long, while nothing says that only an agent is gone.

    Kubernetes calls such a node ready for most of a minute. Empty where all nodes are one machine, and where
    most workers are silent.
    """
    known = draft.memo("silent nodes")
    if not known:
        known["nodes"] = frozenset(_silent_nodes(draft))
    nodes: frozenset[str] = known["nodes"]
    return nodes


def _silent_nodes(draft: Draft) -> set[str]:
    if draft.observation.capacity is not None or most_are_silent(draft):
        return set()
    agents, running = draft.observation.agents, _running(draft)
    heard_of = {worker.node for worker in running if heard(agents.get(worker.name), draft.now)}
    return {worker.node for worker in _silent(draft, running)} - heard_of


def _running(draft: Draft) -> list[Worker]:
    return [worker for worker in draft.observation.workers if worker.phase == "running"]


def _silent(draft: Draft, workers: list[Worker]) -> list[Worker]:
    agents = draft.observation.agents
    return [
        worker
        for worker in workers
        if silent_for(draft, worker) >= silent_after(draft, worker.name) and not agents[worker.name].refused
    ]
