"""PURE: does a rank hang? Policy over what the agent saw of its ranks.

A rank that is stopped (state T) hangs after ``STOPPED_SECONDS``. One that is silent hangs when its silence
passes the limit of its phase: measured steps give a limit of their own, everything else is conservative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

from resumable_training.contract.assignment import Limits
from resumable_training.contract.progress import Progress

STOPPED_SECONDS = 3.0  # a rank that stands still for 2 s is not called hanging
STEP_FACTOR = 10.0  # a step may take this many times the recent step time ...
STEP_FLOOR_SECONDS = 20.0  # ... and never less than this is called a hang
EVALUATING_FACTOR = 10.0  # of ``hang_seconds``: declared phases may be long

BEFORE_FIRST_STEP = ("setup", "rendezvous", "restoring", "warmup")
MEASURED = ("productive", "rework")


@dataclass(frozen=True)
class RankView:
    """One living rank. Times are seconds of the monotonic clock.

    ``progress`` None: it has not written its page, so that it may be a script without the library.
    """

    rank: int
    started: float
    progress: Optional[Progress] = None
    stopped_since: Optional[float] = None


@dataclass(frozen=True)
class Hang:
    """``silent_seconds``: how long without a sign of life, or stopped."""

    rank: int
    phase: str
    silent_seconds: float
    limit_seconds: float
    stopped: bool


def find_hang(
    ranks: Sequence[RankView], limits: Limits, now: float, awake_since: float = 0.0
) -> Optional[Hang]:
    """The rank that hangs, or None.

    Args:
        awake_since: since when this agent has watched without a gap; silence before it is not held against
            a rank, for the whole machine may have been paused.

    Of several silent ranks the one that did the least is named: the others wait for it. Ranks that never
    used the library are judged only when another one did.
    """
    stopped = [hang for hang in (_stopped(view, now, awake_since) for view in ranks) if hang]
    if stopped:
        return max(stopped, key=lambda hang: hang.silent_seconds)
    library = any(view.progress for view in ranks)
    silent = [hang for hang in (_silent(view, limits, now, awake_since, library) for view in ranks) if hang]
    done = {view.rank: _done(view.progress) for view in ranks}
    return min(silent, key=lambda hang: (done[hang.rank], -hang.silent_seconds)) if silent else None


def limit_seconds(progress: Progress, limits: Limits) -> float:
    """Longest acceptable silence in the phase that ``progress`` is in."""
    if progress.phase in BEFORE_FIRST_STEP:
        return limits.start_seconds
    if progress.phase == "evaluating":
        return limits.hang_seconds * EVALUATING_FACTOR
    if progress.phase in MEASURED and progress.step_seconds > 0:
        return min(limits.hang_seconds, max(STEP_FACTOR * progress.step_seconds, STEP_FLOOR_SECONDS))
    return limits.hang_seconds


def _done(progress: Optional[Progress]) -> int:
    return progress.step if progress else -1


def _stopped(view: RankView, now: float, awake_since: float) -> Optional[Hang]:
    if view.stopped_since is None:
        return None
    seconds = now - max(view.stopped_since, awake_since, _last_beat(view))
    if seconds < STOPPED_SECONDS:
        return None
    return Hang(view.rank, _phase(view), seconds, STOPPED_SECONDS, True)


def _last_beat(view: RankView) -> float:
    """It ran then: of two stops, with no look at it in between, only the second lasts."""
    return view.progress.beat_ns / 1e9 if view.progress else 0.0


def _phase(view: RankView) -> str:
    return view.progress.phase if view.progress else "setup"


def _silent(view: RankView, limits: Limits, now: float, awake_since: float, library: bool) -> Optional[Hang]:
    if view.progress is None and not library:
        return None
    limit = limit_seconds(view.progress, limits) if view.progress else limits.start_seconds
    silent = now - max(_last_sign(view), awake_since)
    return Hang(view.rank, _phase(view), silent, limit, False) if silent >= limit else None


def _last_sign(view: RankView) -> float:
    """Before the first step the whole start counts, however often it beats: a limit on getting going."""
    progress = view.progress
    if progress is None or progress.phase in BEFORE_FIRST_STEP:
        return view.started
    return max(progress.beat_ns, progress.phase_since_ns) / 1e9
