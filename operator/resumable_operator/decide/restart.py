"""What a restart of the job costs, in seconds: measured as soon as there was one, estimated before.

Used where a restart is weighed: ``waiting`` (for how long a machine that may never come is worth waiting for)
and ``grow`` (whether going on larger pays). Until something is known the status's prior holds.
"""

from __future__ import annotations

from resumable_operator.decide import ledger
from resumable_operator.model import JobStatus

MEMORY = 0.5  # weight of the newest measurement in the exponential mean


def learnt(status: JobStatus, at: float) -> float:
    """``restart_seconds`` after the attempt's first step at ``at``.

    The first start stands in for a restart until there was one. Of it counts rank 0's own time before its
    first step: that is what each attempt has, while the agents' imports before it are not done again. (A
    start from nothing loads nothing; the first restart that is measured mends that.) A script that tells no
    steps shows when it runs, which says nothing about when it is back at work.
    """
    attempt, known = status.attempt, status.restart_seconds
    if status.uses_library is not True:
        return known
    took = max(0.0, at - attempt.reserved_at)
    if attempt.number > 1:
        return known + MEMORY * (took - known)
    own = ledger.before_first_step_ms(status.ledger, attempt.number) / 1000
    return min(took, own) if own else took


def weighed(status: JobStatus) -> float:
    """What going on smaller now, and larger later, would cost; ``inf`` while there is nothing to go on with:
    a job that never ran waits for its machines."""
    return status.restart_seconds if status.attempt.number else float("inf")
