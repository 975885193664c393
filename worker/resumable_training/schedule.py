"""When to save and when to speak about it again. Pure.

Rank 0 decides from its own clock and measurements, and announces step numbers, so that all ranks save at the
same step without a collective in each. Announcements are made after each save and, as estimates get better,
at distances that double up to half a minute of steps: early on nothing is known about the length of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.formulas import CAP, DURABLE, FIRST, OPTIMUM, auto_interval

NEVER = 1 << 62
MEET_SECONDS = 30.0  # settings that changed live take effect within about this time
POSTPONED_SECONDS = 0.1
FIXED = "fixed"  # what bounds an interval that the user has set
_SHORTEST_STEP = 1e-6  # seconds; keeps quotients finite
_MEMORY = 0.3  # weight of the newest save in the mean cost
COPY_SHARE = 0.01  # of training that copies in memory may take where they are made as often as that
_UNSEEN_STEPS = 100  # between copies that GPUs make, until one was seen whole: each then costs a step at most
_WORTH_TELLING = 0.1  # a change of the interval by a tenth
_WHY = {
    OPTIMUM: "Daly's optimum",
    FIRST: "until a save has been measured",
    DURABLE: "one save has to be durable before the next",
    CAP: "the longest that checkpoint.maxIntervalSeconds allows",
}


@dataclass(frozen=True)
class Measured:
    """What rank 0 has measured. ``step_seconds`` 0 and the others None: unknown.

    ``settings_seconds``: since the settings, and the operator's estimate in them, came.
    """

    step_seconds: float = 0.0
    since_save_seconds: float = 0.0
    blocking_seconds: float | None = None
    durable_seconds: float | None = None
    settings_seconds: float = 0.0
    copy_seconds: float | None = None
    on_gpus: bool = False  # these copy while the loop goes on: its stall tells nothing of what that costs


@dataclass(frozen=True)
class Wanted:
    """The time between two saves, in steps too when their length is known, and where it comes from."""

    seconds: float
    steps: int | None
    bound: str  # FIXED, or as of ``contract.formulas``
    mtbf_seconds: float


@dataclass(frozen=True)
class Announcement:
    """Save after step ``save_at``; speak again after step ``meet_at``."""

    save_at: int
    meet_at: int


def mtbf_seconds(config: CheckpointConfig, measured: Measured) -> float:
    """M by now: the operator's estimate, and the time since then without an interruption."""
    return config.mtbf_seconds + measured.settings_seconds / (1 + config.interruptions)


def wanted(config: CheckpointConfig, measured: Measured) -> Wanted:
    """The interval in force."""
    mtbf, length = mtbf_seconds(config, measured), measured.step_seconds
    if config.every_steps is not None or config.every_seconds is not None:
        by_steps = None if config.every_steps is None else config.every_steps * length
        given = (by_steps, config.every_seconds, config.longest_seconds)
        seconds, bound = min(seconds for seconds in given if seconds is not None), FIXED
    else:
        found = auto_interval(
            blocking_seconds=measured.blocking_seconds,
            durable_seconds=measured.durable_seconds or 0.0,
            mtbf_seconds=mtbf,
            cap_seconds=config.longest_seconds,
        )
        seconds, bound = found.seconds, found.bound
    steps = max(1, round(seconds / max(length, _SHORTEST_STEP))) if length > 0 else config.every_steps
    return Wanted(seconds, steps, bound, mtbf)


def mean_cost(before: float | None, newest: float) -> float:
    """Seconds that a save costs: an exponential mean, since one slow save says little about the next."""
    return newest if before is None else before + _MEMORY * (newest - before)


class IntervalLog:
    """Says when the interval ``auto`` has moved by more than a tenth since it was told last, and why."""

    def __init__(self) -> None:
        self._told: float | None = None

    def news(self, config: CheckpointConfig, measured: Measured) -> str | None:
        """One line with the numbers that led to it; None when there is nothing to tell."""
        now = wanted(config, measured)
        if now.bound == FIXED:
            self._told = None
            return None
        before = self._told
        if before is not None and abs(now.seconds - before) <= _WORTH_TELLING * before:
            return None
        self._told = now.seconds
        was = "" if before is None else f" instead of {before:.1f} s"
        costs = ""
        if measured.blocking_seconds is not None:
            costs = (
                f"; a save costs {measured.blocking_seconds:.3f} s (d) and is durable after"
                f" {measured.durable_seconds or 0.0:.1f} s,"
                f" an interruption every {now.mtbf_seconds:.0f} s (M)"
            )
        return f"saving every {now.seconds:.1f} s{was}: {_WHY[now.bound]}{costs}"


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


def copy_every(config: CheckpointConfig, measured: Measured) -> int:
    """Steps between copies in memory; 0: none are made.

    Where copies cost as much as they may: COPY_SHARE of the steps' time. Before one was measured, a save's
    stall stands for it, which is no shorter where the loop itself copies; before that nothing is known.
    """
    if config.memory_every_steps is not None or not config.memory_auto:
        return config.memory_every_steps or 0
    cost = measured.copy_seconds if measured.copy_seconds is not None else measured.blocking_seconds
    if cost is None or measured.step_seconds <= 0:
        return 0
    least = _UNSEEN_STEPS if measured.on_gpus and measured.copy_seconds is None else 1
    return max(least, math.ceil(cost / (COPY_SHARE * max(measured.step_seconds, _SHORTEST_STEP))))


def postponed(measured: Measured, step: int) -> Announcement:
    """A save is wanted as soon as the one before is stored: speak again soon, in whole steps."""
    ahead = max(1, int(POSTPONED_SECONDS / max(measured.step_seconds, _SHORTEST_STEP)))
    return Announcement(NEVER, step + (ahead if measured.step_seconds > 0 else 1))


def _save_at(config: CheckpointConfig, measured: Measured, step: int) -> int:
    by_steps = NEVER if config.every_steps is None else (step // config.every_steps + 1) * config.every_steps
    bounds = [limit for limit in (config.every_seconds, config.longest_seconds) if limit is not None]
    if measured.step_seconds <= 0 or (config.every_steps is not None and not bounds):
        return by_steps
    fixed = config.every_steps is not None or config.every_seconds is not None
    seconds = min(bounds) if fixed else wanted(config, measured).seconds
    left = seconds - measured.since_save_seconds
    return min(by_steps, step + max(1, round(left / max(measured.step_seconds, _SHORTEST_STEP))))
