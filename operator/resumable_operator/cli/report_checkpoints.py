"""PURE: how many saves a job made and what they cost, from whatever tells of them.

In a run directory that is what agents told; in a cluster what rank 0 left beside the checkpoints; without
either the status alone, which knows the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

from resumable_operator.cli.run_history import HistoryEvent
from resumable_operator.model import JobStatus, Model
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.contract import events
from resumable_training.contract.manifest import checkpoint_name


class Fallback(Model):
    """A checkpoint that was not resumed from because it was proved damaged."""

    attempt: int
    checkpoint: str
    why: str


class CheckpointNumbers(Model):
    """What only a history of all saves tells is None where none is kept (in a cluster)."""

    made: int | None
    failed: int | None
    newest: str | None
    newest_bytes: int
    total_bytes: int | None
    blocking_seconds: float | None  # mean cost of one save to training; without a history: of the newest
    durable_seconds: float | None  # mean time until a save was committed; likewise
    blocking_total_seconds: float | None
    fallbacks: tuple[Fallback, ...] | None


def checkpoint_numbers(status: JobStatus, history: Iterable[HistoryEvent]) -> CheckpointNumbers:
    """How many saves there were and what they cost."""
    events_seen = list(history)
    saves = _saves(events_seen)
    newest = status.checkpoint
    blocking = [max(0.0, _number(save, "blocking_ms")) / 1000 for save in saves]
    durable = [max(0.0, _number(save, "durable_ms")) / 1000 for save in saves]
    return CheckpointNumbers(
        made=len(saves),
        failed=sum(event.kind == events.CHECKPOINT_FAILED for event in events_seen),
        newest=newest.name if newest else None,
        newest_bytes=newest.bytes if newest else 0,
        total_bytes=int(sum(_number(save, "bytes") for save in saves)),
        blocking_seconds=fmean(blocking) if blocking else None,
        durable_seconds=fmean(durable) if durable else None,
        blocking_total_seconds=sum(blocking),
        fallbacks=tuple(_fallbacks(events_seen)),
    )


def newest_numbers(status: JobStatus) -> CheckpointNumbers:
    """What the status alone tells: the newest checkpoint."""
    newest = status.checkpoint
    return CheckpointNumbers(
        made=None,
        failed=None,
        newest=newest.name if newest else None,
        newest_bytes=newest.bytes if newest else 0,
        total_bytes=None,
        blocking_seconds=newest.blocking_ms / 1000 if newest else None,
        durable_seconds=newest.durable_ms / 1000 if newest else None,
        blocking_total_seconds=None,
        fallbacks=None,
    )


def noted_numbers(status: JobStatus, histories: Sequence[AttemptHistory]) -> CheckpointNumbers:
    """The same from what was left beside the checkpoints, whose totals also count saves told no more."""
    told = checkpoint_numbers(status, noted_events(histories))
    last = [item.saves[-1] for item in histories if item.saves]
    costed = sum(save.made for save in last)
    if not costed:
        newest = newest_numbers(status)
        costs = {"blocking_seconds": newest.blocking_seconds, "durable_seconds": newest.durable_seconds}
        return told.model_copy(update={**costs, "total_bytes": None, "blocking_total_seconds": None})
    return told.model_copy(
        update={
            "made": costed + sum(map(_has_uncosted, histories)),
            "failed": sum(save.failed for save in last),
            "total_bytes": sum(save.total_bytes for save in last),
            "blocking_seconds": sum(save.total_blocking_ms for save in last) / 1000 / costed,
            "durable_seconds": sum(save.total_durable_ms for save in last) / 1000 / costed,
            "blocking_total_seconds": sum(save.total_blocking_ms for save in last) / 1000,
        }
    )


def _has_uncosted(history: AttemptHistory) -> bool:
    """The save that the file came along with: no later file tells what it cost."""
    last = history.committing
    return last is not None and all(save.step != last.step or save.message for save in history.saves[-1:])


def noted_events(histories: Iterable[AttemptHistory]) -> list[HistoryEvent]:
    """Lines of histories as agents would have told them."""
    found = []
    for item in histories:
        attempt, name = item.begin.attempt, "rank 0"
        if item.restored is not None:
            begun = item.restored
            data = {"step": begun.step, "checkpoint": begun.checkpoint, "fallback": list(begun.fallback)}
            data |= {"memory_bytes": begun.memory_bytes, "storage_bytes": begun.storage_bytes}
            found.append(HistoryEvent(item.restored.at, name, events.RESTORED, attempt, data))
        for save in item.saves:
            kind = events.CHECKPOINT_FAILED if save.message else events.CHECKPOINT
            costs = {"bytes": save.bytes, "blocking_ms": save.blocking_ms, "durable_ms": save.durable_ms}
            data = {"step": save.step, "checkpoint": save.checkpoint, "message": save.message, **costs}
            found.append(HistoryEvent(save.at, name, kind, attempt, data))
        if item.committing is not None and not item.saves:
            last = item.committing
            data = {"step": last.step, "checkpoint": checkpoint_name(last.step, item.record)}
            found.append(HistoryEvent(last.at, name, events.CHECKPOINT, attempt, data))
    return found


def used_seconds(history: Iterable[HistoryEvent]) -> float | None:
    """Median training time between two saves of one attempt; None when no attempt saved twice."""
    saves = _saves(history)
    gaps = [
        later.at - earlier.at - _number(later, "blocking_ms") / 1000
        for earlier, later in pairwise(saves)
        if earlier.attempt == later.attempt
    ]
    gaps = [gap for gap in gaps if gap > 0]
    return median(gaps) if gaps else None


def _saves(history: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Events of completed saves; one that was replayed counts once."""
    by_name = {
        str(event.data.get("checkpoint")): event for event in history if event.kind == events.CHECKPOINT
    }
    return sorted(by_name.values(), key=lambda event: event.at)


def _fallbacks(history: Iterable[HistoryEvent]) -> Iterable[Fallback]:
    for event in history:
        skipped = event.data.get("fallback") if event.kind == events.RESTORED else None
        for item in skipped if isinstance(skipped, list) else []:
            if isinstance(item, dict):
                yield Fallback(
                    attempt=event.attempt,
                    checkpoint=str(item.get("checkpoint", "?")),
                    why=str(item.get("why", "?")),
                )


def _number(event: HistoryEvent, key: str) -> float:
    value = event.data.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
