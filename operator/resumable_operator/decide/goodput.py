"""Goodput of a job from its ledger, and the formulas that say what it could have been.

Pure. ``goodput = scheduling x runtime``: queueing is the cluster's fault, the rest is ours. Times are seconds
unless a name says ``_ms``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resumable_operator.decide.ledger import (
    PRODUCTIVE,
    QUEUED,
    RUNNING_OPAQUE,
    SUSPENDED,
    age_ms,
    phases_at,
    unsettled_ms,
)
from resumable_operator.model import LedgerStatus
from resumable_training.contract.formulas import daly_interval

PRIOR_MTBF_SECONDS = 3600.0


@dataclass(frozen=True)
class Goodput:
    """The three ratios and what they are made of. A ratio is None while its denominator is zero."""

    age_seconds: float
    unsettled_seconds: float
    suspended_seconds: float
    queued_seconds: float
    productive_seconds: float  # without what was lost for good
    lost_seconds: float  # productive work of a failed job that no checkpoint holds
    opaque_seconds: float  # ran without the library: what it produced is not known
    goodput: float | None
    scheduling: float | None
    runtime: float | None


def goodput(ledger: LedgerStatus, now_ms: int) -> Goodput:
    """Goodput at ``now_ms``. Unsettled time is in the denominators, never yet productive."""
    phases = phases_at(ledger, now_ms)
    age, suspended, queued = age_ms(ledger, now_ms), phases[SUSPENDED], phases[QUEUED]
    productive = phases[PRODUCTIVE] - ledger.lost
    return Goodput(
        age_seconds=age / 1000,
        unsettled_seconds=unsettled_ms(ledger, now_ms) / 1000,
        suspended_seconds=suspended / 1000,
        queued_seconds=queued / 1000,
        productive_seconds=productive / 1000,
        lost_seconds=ledger.lost / 1000,
        opaque_seconds=phases[RUNNING_OPAQUE] / 1000,
        goodput=_ratio(productive, age - suspended),
        scheduling=_ratio(age - suspended - queued, age - suspended),
        runtime=_ratio(productive, age - suspended - queued),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def mtbf_seconds(
    training_seconds: float, interruptions: int, prior_seconds: float = PRIOR_MTBF_SECONDS
) -> float:
    """Mean time between interruptions, with a prior worth one interruption in ``prior_seconds``.

    The posterior mean for a gamma prior on the rate: starts at the prior and forgets it as evidence comes in.
    """
    return (prior_seconds + max(0.0, training_seconds)) / (1 + max(0, interruptions))


def failure_probability(gpus: int, annual_rate: float, years: float) -> float:
    """Chance of at least one failure among ``gpus`` in ``years``: ``1 - exp(-n a t)``."""
    return -math.expm1(-gpus * annual_rate * years)


def lost_work_goodput(interval: float, mtbf: float) -> float:
    """First order, lost work only: ``1 - (T/2)/M``. Charges nothing for saves and restarts."""
    return 1 - interval / 2 / mtbf


def first_order_goodput(interval: float, mtbf: float, blocking: float, restart: float) -> float:
    """First order with costs: ``1 - d/T - (R + T/2)/M``."""
    return 1 - blocking / interval - (restart + interval / 2) / mtbf


def exact_goodput(interval: float, mtbf: float, blocking: float = 0.0, restart: float = 0.0) -> float:
    """Exact for Poisson failures and a restart that does not fail: ``T / ((M + R)(exp((T + d)/M) - 1))``."""
    exponent = (interval + blocking) / mtbf
    if exponent > 700:  # exp overflows a double; a save is practically never reached
        return 0.0
    return interval / ((mtbf + restart) * math.expm1(exponent))


def best_goodput(mtbf: float, blocking: float, restart: float) -> float:
    """What the exact formula gives at Daly's interval; with free saves, its limit ``M / (M + R)``."""
    if blocking <= 0:
        return mtbf / (mtbf + restart)
    return exact_goodput(daly_interval(blocking, mtbf), mtbf, blocking, restart)
