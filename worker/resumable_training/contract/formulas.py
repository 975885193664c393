"""When to save: the two classical answers, and the interval ``auto`` that follows from them.

The library saves by it, the operator recommends by it, the report and the simulator judge by it: one formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

FIRST_SAVE_SECONDS = 10.0  # until one save has been measured

# What an ``AutoInterval`` was bound by.
OPTIMUM = "optimum"  # nothing: it is Daly's
FIRST = "first"  # nothing is measured yet
DURABLE = "durable"  # the time that one save needs to become durable
CAP = "cap"  # the user's longest interval


def young_interval(blocking_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between saves by Young (1974): ``sqrt(2 d M)``.

    Args:
        blocking_seconds: d, time that one save takes from training.
        mtbf_seconds: M, mean time between interruptions.
    """
    _check(blocking_seconds, mtbf_seconds)
    return math.sqrt(2 * blocking_seconds * mtbf_seconds)


def daly_interval(blocking_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between saves by Daly (2006), eq. 37; better than Young's where d is not small.

    ``sqrt(2 d M) [1 + sqrt(d / 2M) / 3 + (d / 2M) / 9] - d`` if d < 2M, else M.
    """
    young = young_interval(blocking_seconds, mtbf_seconds)
    if blocking_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = blocking_seconds / (2 * mtbf_seconds)
    product = young * (1 + math.sqrt(ratio) / 3 + ratio / 9)
    return max(0.0, product - blocking_seconds)  # of the smallest numbers the root is 0


@dataclass(frozen=True)
class AutoInterval:
    """Seconds of work from the end of one save to the start of the next, and what set them."""

    seconds: float
    bound: str  # OPTIMUM, FIRST, DURABLE or CAP


def auto_interval(
    *,
    blocking_seconds: Optional[float],
    durable_seconds: float,
    mtbf_seconds: float,
    cap_seconds: Optional[float] = None,
) -> AutoInterval:
    """The interval ``auto``: Daly's, within what is possible and what the user allows.

    Args:
        blocking_seconds: measured time that one save takes from training; None before the first save, which
            then comes early so that there is something to measure.
        durable_seconds: measured time from a save's start until it is committed; the floor, because one save
            must end before the next begins. It wins over ``cap_seconds``.
        mtbf_seconds: mean time between interruptions, a prior updated by what was observed.
        cap_seconds: the user's longest interval; None: no limit.

    Raises:
        ValueError: a time is negative, not finite, or ``mtbf_seconds`` is 0.
    """
    if durable_seconds < 0 or (cap_seconds is not None and cap_seconds <= 0):
        raise ValueError(
            "durable_seconds must be >= 0 and cap_seconds > 0; got %r, %r" % (durable_seconds, cap_seconds)
        )
    best = AutoInterval(daly_interval(blocking_seconds or 0.0, mtbf_seconds), OPTIMUM)
    if blocking_seconds is None:
        best = AutoInterval(FIRST_SAVE_SECONDS, FIRST)
    if cap_seconds is not None and best.seconds > cap_seconds:
        best = AutoInterval(cap_seconds, CAP)
    return best if best.seconds >= durable_seconds else AutoInterval(durable_seconds, DURABLE)


def _check(blocking_seconds: float, mtbf_seconds: float) -> None:
    if not (0 <= blocking_seconds < math.inf and 0 < mtbf_seconds < math.inf):
        raise ValueError(
            "need a blocking cost >= 0 and a mean time between interruptions > 0, both finite; got %r and %r"
            % (blocking_seconds, mtbf_seconds)
        )
