"""When a job's status is written that nothing obliges to write: progress, and what people like to see.

A status is what a write to the API server costs most for, so that what may wait does: for a write that has to
be, or for its turn. Pure but for what it remembers; a new operator remembers nothing, and writes at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

SOON_SECONDS = 2.0  # what is for people alone waits so long for a write that has to be
PROGRESS_SHARE = 1 / 6  # of the time until status is written anyway: an attempt's first step is told earlier
LEAST_SHARE = 0.25  # of that time, until the first write after one that had a reason
ROUTINE_WRITES_A_SECOND = 40  # of all jobs that train: less than half a core of an API server


class StatusTimes:
    """Of all jobs, by key; times in seconds on the clock whose readings are passed in.

    Args:
        wanted_seconds: between two writes that have no reason, while there are not too many jobs.
        training: how many jobs train.
    """

    def __init__(self, wanted_seconds: float, training: Callable[[], int]) -> None:
        self._wanted_seconds = wanted_seconds
        self._training = training
        self._due_at: dict[str, float] = {}

    def wait(self, key: str, now: float) -> float:
        """Until the job's next write for no reason; negative or 0: it is due."""
        return self._due_at.get(key, float("-inf")) - now

    def progress_wait(self, key: str, now: float, *, moving: bool) -> float:
        """Until a job that reports progress is worth a look. ``moving``: its attempt's first step is told."""
        earliest = self._wanted_seconds * PROGRESS_SHARE
        return max(earliest, self.wait(key, now)) if moving else earliest

    def soon(self, key: str, now: float) -> None:
        """Something has changed that is for people alone."""
        self._due_at[key] = now + min(self.wait(key, now), SOON_SECONDS)

    def written(self, key: str, now: float, *, for_a_reason: bool) -> None:
        """The status was written at ``now``."""
        share = share_of_interval(key) if for_a_reason else 1.0
        self._due_at[key] = now + share * status_seconds(self._wanted_seconds, self._training())

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._due_at.pop(key, None)


def status_seconds(wanted: float, jobs: int) -> float:
    """Between two writes of a job that have no reason: a very large fleet writes each status less often, so
    that recoveries find an API server that has time for them.

    Args:
        jobs: that train. Others have nothing to write now and then.
    """
    return max(wanted, jobs / ROUTINE_WRITES_A_SECOND)


def share_of_interval(key: str) -> float:
    """After a write for a reason the next one for none comes sooner, by a share that differs from job to job:
    what all jobs did together once, start or lose a zone, they would otherwise write together ever after."""
    return LEAST_SHARE + (1.0 - LEAST_SHARE) * zlib.crc32(key.encode()) / 2**32
