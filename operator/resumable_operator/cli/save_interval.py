"""PURE: how often a job saves, as its spec or the library has it; told alike wherever it is told."""

from __future__ import annotations

from resumable_operator.cli.units import duration
from resumable_operator.model import Checkpoint, JobStatus
from resumable_operator.words import counted

_BOUNDS = {
    "optimum": "auto",
    "first": "auto, nothing measured yet",
    "durable": "auto, as often as a save can be stored",
    "cap": "auto, held down by maxIntervalSeconds",
}


def saves_told(saving: Checkpoint, status: JobStatus) -> str:
    """``every 40 steps (about 16.0 s)``, ``every 12.8 s (auto)``; empty: not known yet."""
    if saving.interval == "auto":
        newest = status.checkpoint
        if newest is None or not newest.interval_seconds:
            return ""
        why = _BOUNDS.get(newest.interval_bound, "auto")
        return f"every {duration(newest.interval_seconds)} ({why})"
    parts = [
        duration(seconds) for seconds in (saving.interval.seconds, saving.max_interval_seconds) if seconds
    ]
    if saving.interval.steps:
        steps, each = saving.interval.steps, status.step_seconds
        about = f" (about {duration(steps * each)})" if each > 0 else ""
        parts.insert(0, f"{counted(steps, 'step')}{about}")
    return f"every {' or '.join(parts)}{', whichever comes first' if len(parts) > 1 else ''}"


def wanted_seconds(saving: Checkpoint, status: JobStatus) -> float | None:
    """The interval that the spec sets, in seconds of training; None: ``auto``, or not known yet."""
    interval = saving.interval
    if interval == "auto":
        return None
    steps = interval.steps * status.step_seconds if interval.steps else None
    given = (interval.seconds, steps, saving.max_interval_seconds)
    return min((seconds for seconds in given if seconds), default=None)
