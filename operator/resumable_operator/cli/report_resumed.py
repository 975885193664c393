"""PURE: what a recovery went on from, where that was still in the memory of the job's workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from resumable_operator.cli.report_facts import whole
from resumable_operator.cli.units import byte_size
from resumable_operator.model import Model
from resumable_training.contract import events

if TYPE_CHECKING:
    from resumable_operator.cli.run_history import HistoryEvent


class Resumed(Model):
    """Where an attempt began.

    ``memory_bytes`` came from its workers' memory, ``storage_bytes`` from storage. ``told_late``: the ranks
    that made the checkpoint did not live to tell that it was stored: a copy that they held between saves, a
    save in flight, or one that was stored just before they died.
    """

    step: int
    checkpoint: str
    memory_bytes: int
    storage_bytes: int
    told_late: bool


def resumed_by_attempt(history: Iterable[HistoryEvent]) -> dict[int, Resumed]:
    """Of each attempt that told it; what was replayed counts once.

    Of what its ranks did not live to tell the next attempt tells, right before it has restored it.
    """
    made: set[tuple[int, str]] = set()
    found: dict[int, Resumed] = {}
    for event in history:
        name = str(event.data.get("checkpoint") or "")
        if event.kind == events.CHECKPOINT:
            made.add((event.attempt, name))
        elif event.kind == events.RESTORED and name:
            found[event.attempt] = Resumed(
                step=whole(event.data.get("step")),
                checkpoint=name,
                memory_bytes=whole(event.data.get("memory_bytes")),
                storage_bytes=whole(event.data.get("storage_bytes")),
                told_late=(event.attempt, name) in made,
            )
    return found


def resumed_told(resumed: Resumed | None) -> str:
    """``resumed step 20 from memory (117.4 MB)``, and whether its ranks told that it was stored; empty:
    nothing to tell."""
    if resumed is None or not (resumed.memory_bytes or resumed.told_late):
        return ""
    rest = f", {byte_size(resumed.storage_bytes)} from storage" if resumed.storage_bytes else ""
    part = "in part " if resumed.storage_bytes > resumed.memory_bytes else ""
    where = f" {part}from memory ({byte_size(resumed.memory_bytes)}{rest})" if resumed.memory_bytes else ""
    late = "; its ranks did not live to tell that it was stored" if resumed.told_late else ""
    return f"resumed step {resumed.step}{where}{late}"
