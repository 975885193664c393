"""At which size to start, when to wait for more, and when growing pays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resumable_operator.model import Workers
from resumable_operator.words import workers_are

PLACING_SECONDS = 3.0  # for a lost worker to leave its room, and for a scheduler to find it


@dataclass(frozen=True)
class Supply:
    """Workers of a job, counted."""

    ready: int  # could start now
    starting: int  # have a machine, will be ready soon
    queued: int  # wait for a machine
    creatable: int | None  # more that have room, once those on their way out are gone; None: unknown
    unplaceable: int = 0  # of the queued: no machine has room for them, and none is about to


@dataclass(frozen=True)
class Start:
    """``size`` None: wait, at most ``wait_seconds`` more (None: until something changes)."""

    size: int | None
    reason: str
    wait_seconds: float | None = None
    below_min: bool = False


def largest_allowed(workers: Workers, available: int) -> int | None:
    """The largest allowed size not above ``available`` and not above ``replicas``."""
    fitting = [size for size in workers.allowed_sizes() if size <= min(available, workers.replicas)]
    return max(fitting, default=None)


def choose_start(
    workers: Workers, supply: Supply, waited: float, patience: float, restart_seconds: float
) -> Start:
    """Start now, and at which size, or wait.

    A missing worker that has a machine is worth ``patience`` (``shrinkAfterSeconds``). One that has none may
    never come; nobody knows when. Waiting until the wait has cost as much as the restart that growing later
    would cost is never worse than twice the best choice in hindsight (the ski-rental rule), whatever comes.
    Not less than ``PLACING_SECONDS``: the room may be the very one that a lost worker is about to leave. One
    for which there is no room, and none to be left, is not waited for by a job that can go on: new machines
    take minutes, if they come.

    Args:
        waited: seconds since an allowed size was ready.
        restart_seconds: what a restart costs; ``inf`` when nothing runs yet that could go on.
    """
    best = largest_allowed(workers, supply.ready)
    if best is None:
        smallest = workers.allowed_sizes()[0]
        return Start(None, f"{supply.ready} of at least {workers_are(smallest)} ready", below_min=True)
    if best == workers.replicas:
        return Start(best, f"{'all ' if best > 1 else ''}{workers_are(best)} ready")
    goes_on = restart_seconds < math.inf
    possible = _possible(workers, supply, supply.unplaceable if goes_on else 0)
    reachable = workers.replicas if possible is None else largest_allowed(workers, possible) or best
    if reachable <= best:
        return Start(best, f"{best} of {workers.replicas} workers: there is no room for more now")
    on_their_way = supply.ready + supply.starting >= reachable
    limit = patience if on_their_way else min(patience, max(PLACING_SECONDS, restart_seconds))
    if waited >= limit:
        return Start(best, f"{best} of {workers.replicas} workers: waited {waited:.1f} s for more")
    return Start(None, f"{supply.ready} of {workers_are(reachable)} ready", wait_seconds=limit - waited)


def growth_pays(
    size: int, larger: int, restart_seconds: float, save_seconds: float, mtbf_seconds: float
) -> bool:
    """The gain beats the restart.

    In worker-seconds, until the next interruption that is expected anyway: ``larger - size`` more workers
    work for M seconds; the restart and the save before it idle all ``larger`` of them. Speed is taken to be
    proportional to size.
    """
    return (larger - size) * mtbf_seconds > larger * (restart_seconds + save_seconds)


def _possible(workers: Workers, supply: Supply, hopeless: int) -> int | None:
    """How many could be had; None: not known."""
    there = supply.ready + supply.starting + supply.queued
    creatable = supply.creatable
    if creatable is None and hopeless and there >= workers.replicas:
        creatable = 0
    return None if creatable is None else there - hopeless + creatable
