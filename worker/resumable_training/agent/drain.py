"""PURE: what to do next while ranks are draining.

Ranks with the library are asked on their socket and end by themselves. A script without it gets one SIGTERM,
to local rank 0 alone: what it does then is its own business, and what the others do without it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

WAIT = "wait"
SIGNAL = "signal"  # SIGTERM to the first living rank
KILL = "kill"  # the window is over
END = "end"  # the signalled rank has ended, or nothing has begun: so do all, drained

OPAQUE_SECONDS = 5.0  # a rank that has not connected at this age is taken for one without the library
ORPHANED_SECONDS = 5.0  # for the others, after the signalled rank's end


@dataclass(frozen=True)
class Drain:
    """Times are seconds of the monotonic clock."""

    reason: str
    asked_at: float
    deadline: float
    signalled: bool = False  # we sent SIGTERM
    leader_ended_at: Optional[float] = None  # when the signalled rank ended


def next_step(drain: Drain, now: float, connected: bool, rank_age: float, not_begun: bool = False) -> str:
    """One of the words above.

    Args:
        connected: some rank of this worker uses the library.
        rank_age: seconds since the ranks were started.
        not_begun: some rank has not connected, and none has done a step.

    Ranks that wait for one which has yet to connect have nothing to save, and need not wait. A young rank may
    only not have come to connect yet; it is given time, but not more than half the window.
    """
    if now >= drain.deadline:
        return KILL
    if drain.leader_ended_at is not None:
        return END if now >= drain.leader_ended_at + ORPHANED_SECONDS else WAIT
    if connected and not_begun:
        return END
    if connected or drain.signalled:
        return WAIT
    half = (drain.deadline - drain.asked_at) / 2
    known_opaque = rank_age >= OPAQUE_SECONDS or now >= drain.asked_at + half
    return SIGNAL if known_opaque else WAIT
