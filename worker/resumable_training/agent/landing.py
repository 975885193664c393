"""PURE: how long a writer may go on storing when its rank is dead.

What it stores was copied whole before the rank died. If it lands, the next attempt resumes there and does
fewer steps again; but the next attempt waits for it before it chooses where to resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

FREE_SECONDS = 0.5  # a new attempt's ranks do not come to ask earlier
MOST_SECONDS = 10.0
MOST_HELD_SECONDS = 120.0  # for a copy of which nothing was stored yet when its rank died
UNKNOWN_SECONDS = 5.0  # for a first save, of which nobody knows how long it takes
FACTOR = 2.0  # on how long it took lately
IDLE_SECONDS = 3.0  # for one that has nothing to store to leave by itself, or to say that it has


@dataclass(frozen=True)
class Flight:
    """A save whose copy is complete. Times in seconds."""

    checkpoint: str
    step: int
    since: float  # monotonic, when it was told of: the copy was complete, or is to be stored from now on
    durable: float  # from copy to commit lately; 0: unknown
    worth: float  # of training, which this checkpoint has more than the one before
    held: bool = False  # a copy between saves
    samples: int = -1  # done by then; -1: a library that does not tell


def patience(flight: Flight, ended_at: float) -> Tuple[float, str]:
    """Seconds that it may take from the end of its ranks on, and why no more.

    Never more than the steps in it are worth: redoing them would cost no more than that. A start costs
    FREE_SECONDS in any case.
    """
    expected = (UNKNOWN_SECONDS, "it is the first save")
    if flight.durable > 0:
        left = FACTOR * flight.durable - max(0.0, ended_at - flight.since)
        expected = (left, "saves took %.1f s lately" % flight.durable)
    worth = (flight.worth, "its steps took %.1f s" % flight.worth)
    most = MOST_HELD_SECONDS if flight.held else MOST_SECONDS
    seconds, why = min(expected, worth, (most, "that is the most"))
    return FREE_SECONDS + max(0.0, seconds), why
