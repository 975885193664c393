"""How long to train between saves when the user says ``auto``. Pure; torch-free.

The library measures what a save costs, the operator estimates how often the job is interrupted; Daly's
interval follows, within what is possible and what the user allows.
"""

from __future__ import annotations

from resumable_training.contract.formulas import daly_interval, young_interval

__all__ = ["FIRST_SAVE_SECONDS", "auto_interval", "daly_interval", "young_interval"]

FIRST_SAVE_SECONDS = 10.0  # until one save has been measured


def auto_interval(
    *,
    blocking_seconds: float | None,
    durable_seconds: float,
    mtbf_seconds: float,
    cap_seconds: float | None = None,
) -> float:
    """Seconds from the end of one save to the start of the next.

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
            f"durable_seconds must be >= 0 and cap_seconds > 0; got {durable_seconds}, {cap_seconds}"
        )
    wanted = daly_interval(blocking_seconds or 0.0, mtbf_seconds)
    if blocking_seconds is None:
        wanted = FIRST_SAVE_SECONDS
    if cap_seconds is not None:
        wanted = min(wanted, cap_seconds)
    return max(wanted, durable_seconds)
