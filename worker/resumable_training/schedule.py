"""When to save and when to speak about it again. Pure.

Rank 0 decides from its own clock and measurements, and announces step numbers, so that all ranks save at the
same step without a collective in each. Announcements are made after each save and, as estimates get better,
at distances that double up to half a minute of steps: early on nothing is known about the length of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from resumable_training.checkpoint.interval import auto_interval
from resumable_training.contract.assignment import CheckpointConfig

NEVER = 1 << 62
MEET_SECONDS = 30.0  # settings that changed live take effect within about this time
_SHORTEST_STEP = 1e-6  # seconds; keeps quotients finite


@dataclass(frozen=True)
class Measured:
    """What rank 0 has measured. ``step_seconds`` 0 and the others None: unknown."""

    step_seconds: float = 0.0
    since_save_seconds: float = 0.0
    blocking_seconds: float | None = None
    durable_seconds: float | None = None


@dataclass(frozen=True)
class Announcement:
    """Save after step ``save_at``; speak again after step ``meet_at``."""

    save_at: int
    meet_at: int


def interval_seconds(config: CheckpointConfig, measured: Measured) -> float | None:
    """The wanted time between saves; None when the interval is in steps."""
    if config.every_steps is not None:
        return None
    if config.every_seconds is not None:
        return config.every_seconds
    return auto_interval(
        blocking_seconds=measured.blocking_seconds,
        durable_seconds=measured.durable_seconds or 0.0,
        mtbf_seconds=config.mtbf_seconds,
    ).seconds


def announce(config: CheckpointConfig, measured: Measured, step: int, steps_here: int) -> Announcement:
    """What follows after ``step``.

    Args:
        step: steps done by the job.
        steps_here: steps done in this attempt.
    """
    save_at = _save_at(config, measured, step)
    ahead = max(1, steps_here)
    if measured.step_seconds > 0:
        ahead = min(ahead, max(1, int(MEET_SECONDS / max(measured.step_seconds, _SHORTEST_STEP))))
    return Announcement(save_at, min(save_at, step + ahead))


def _save_at(config: CheckpointConfig, measured: Measured, step: int) -> int:
    if config.every_steps is not None:
        return (step // config.every_steps + 1) * config.every_steps
    if measured.step_seconds <= 0:
        return NEVER
    seconds = interval_seconds(config, measured)
    assert seconds is not None
    left = seconds - measured.since_save_seconds
    return step + max(1, round(left / max(measured.step_seconds, _SHORTEST_STEP)))
