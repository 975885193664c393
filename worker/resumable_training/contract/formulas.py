"""When to save: the two classical answers. The library saves by them, the report judges by them."""

from __future__ import annotations

import math


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
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - blocking_seconds


def _check(blocking_seconds: float, mtbf_seconds: float) -> None:
    if not (0 <= blocking_seconds < math.inf and 0 < mtbf_seconds < math.inf):
        raise ValueError(
            "need a blocking cost >= 0 and a mean time between interruptions > 0, both finite; got %r and %r"
            % (blocking_seconds, mtbf_seconds)
        )
