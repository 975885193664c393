"""PURE: how a job stands, for status, report and page alike: in its phase, or cut off in it."""

from __future__ import annotations

from resumable_operator.model import JobStatus

ENDED = ("Succeeded", "Failed", "Suspended")  # phases in which nothing more will happen by itself
CUT_OFF = "Cut off"


def is_cut_off(status: JobStatus, runs: bool) -> bool:
    """Its `rtj run` was killed: the status is its last word, and nothing of it is so any more.

    Args:
        runs: somebody looks after it now: an `rtj run`, or a cluster.
    """
    return not runs and status.phase not in ENDED and status.finished_at is None


def standing(phase: str, reason: str, cut_off: bool) -> tuple[str, str]:
    """How it stands, in a word or two, and why; the latter may be empty."""
    if not cut_off:
        return phase, reason
    return CUT_OFF, f"its last word was {phase}" + (f": {reason}" if reason else "")
