"""Nodes where workers of this job failed again and again get new ones only if there is no other, for a while.

Soft, because nobody knows whether the node is to blame: a preference when pods are placed and when members
are chosen among more workers than are needed. Where the room is known all places are one machine.
"""

from __future__ import annotations

from resumable_operator.decide.conditions import set_if_known
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.failure import first_witness
from resumable_operator.decide.silence import silent_nodes
from resumable_operator.decide.views import members
from resumable_operator.model import Evidence

TROUBLES = 2  # failures on one node within the window
WINDOW_SECONDS = 3600.0
AVOID_SECONDS = 3600.0
MOST_NODES = 64  # kept in status, and silent or leaving ones in a pod
_MOST_NAMES = 16  # in a condition
_NOT_ITS_FAULT = ("preempted", "evicted", "numeric")
_OF_THE_MACHINE = (  # said by a script that ends with an exit code as for an error of its own
    "uncorrectable ECC",
    "CUDA-capable device(s) is/are busy or unavailable",
    "No CUDA GPUs are available",
    "GPU is lost",
    "hardware error",
)


def note_ending(draft: Draft, witness: Evidence) -> None:
    """An attempt ended unplanned, as ``witness`` says."""
    if _may_be_the_nodes(draft, witness):
        note_trouble(draft, node_of_worker(draft, witness.worker))


def _may_be_the_nodes(draft: Draft, witness: Evidence) -> bool:
    """Not a script's own error, which any node would see, nor what several workers met at the same time."""
    if witness.cause in _NOT_ITS_FAULT:
        return False
    if witness.cause == "crash" and witness.code is not None and witness.code >= 0:
        return any(word in line for line in witness.tail for word in _OF_THE_MACHINE)
    return witness.rank is None or not any(
        item.primary and item.worker != witness.worker and _what(item) == _what(witness)
        for item in draft.attempt.evidence
        if item.rank is not None
    )


def _what(witness: Evidence) -> tuple[str, int | None]:
    return witness.cause, witness.code


def node_of_worker(draft: Draft, name: str) -> str:
    """Where a worker is, or a member that is gone was; empty: not known."""
    worker, member = draft.observation.worker(name), members(draft).get(name)
    return (worker.node if worker else "") or (member.node if member else "")


def note_trouble(draft: Draft, node: str) -> None:
    """A worker failed on ``node``, in an attempt or before it took part in one."""
    if not node or draft.observation.capacity is not None:
        return
    times = (*_recent(draft.status.node_troubles.get(node, ()), draft.now), draft.now)
    _remember(draft, node, times[-TROUBLES:])
    if len(times) >= TROUBLES:
        avoid_node(draft, node, f"{len(times)} failures within {WINDOW_SECONDS / 60:.0f} min")


def avoid_node(draft: Draft, node: str, why: str) -> None:
    """Place nothing on ``node`` for a while if there is another."""
    known = draft.status.avoided
    all_of_them = {**known, node: draft.now + AVOID_SECONDS}
    newest = sorted(all_of_them, key=lambda name: all_of_them[name])[-MOST_NODES:]
    draft.set(avoided={name: all_of_them[name] for name in newest})
    draft.reserve()
    if node not in known:
        text = f"{node} gets new workers only if there is no other for {AVOID_SECONDS / 60:.0f} min: {why}"
        draft.tell("Warning", "NodeAvoided", text)


def avoided(draft: Draft) -> tuple[str, ...]:
    """Nodes to avoid now, by name: also that of an ending which is not settled yet, silent ones, and those
    that are about to go: a pod that tolerates everything would come to them again and again."""
    known = {node for node, until in draft.status.avoided.items() if draft.now < until}
    others = sorted((silent_nodes(draft) | _leaving(draft)) - known)[:MOST_NODES]
    return tuple(sorted(known.union(_about_to_be(draft), others)))


def _leaving(draft: Draft) -> set[str]:
    """As far as workers are there. A cordoned one is left where that drains it."""
    drains = draft.spec.recovery.drain_on_cordon
    nodes = draft.observation.nodes.values() if draft.observation.capacity is None else ()
    return {node.name for node in nodes if node.notice_deadline is not None or (drains and node.cordoned)}


def _about_to_be(draft: Draft) -> set[str]:
    """A replacement is created at once, before the attempt's end is written down."""
    witness = first_witness(draft.attempt.evidence) if draft.alive else None
    if witness is None or draft.observation.capacity is not None or not _may_be_the_nodes(draft, witness):
        return set()
    node = node_of_worker(draft, witness.worker)
    earlier = _recent(draft.status.node_troubles.get(node, ()), draft.now)
    return {node} if node and len(earlier) + 1 >= TROUBLES else set()


def forget_old(draft: Draft) -> None:
    """Drop what is over, and show the rest as a condition; a job that has ended avoids nothing."""
    current = {node: until for node, until in draft.status.avoided.items() if draft.now < until}
    current = {} if draft.finished else current
    if current != draft.status.avoided:
        draft.set(avoided=current)
    more = f" and {len(current) - _MOST_NAMES} more" if len(current) > _MOST_NAMES else ""
    names = ", ".join(sorted(current)[:_MOST_NAMES]) + more
    text = f"new workers go to {names} only if there is no other node" if current else ""
    set_if_known(draft, "NodeAvoided", bool(current), "RepeatedFailures", text)


def _recent(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(at for at in times if now - at < WINDOW_SECONDS)


def _remember(draft: Draft, node: str, times: tuple[float, ...]) -> None:
    """Bounded: of too many nodes those with the oldest trouble are forgotten."""
    known = {**draft.status.node_troubles, node: times}
    fresh = {name: at for name, at in known.items() if _recent(at, draft.now)}
    newest = sorted(fresh, key=lambda name: fresh[name][-1])[-MOST_NODES:]
    draft.set(node_troubles={name: fresh[name] for name in newest})
