"""Many lives: each cell of a table is one set of parameters, lived once for every seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from resumable_operator.decide.goodput import exact_goodput
from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Process, failures
from resumable_operator.simulate.job import simulate_job
from resumable_operator.simulate.parameters import Parameters

if TYPE_CHECKING:
    from random import Random

Axes = Mapping[str, float | str]  # what is varied, and its value in this cell; in order


@dataclass(frozen=True)
class Cell:
    """One row of the table. ``mtbf_seconds``: of the whole job at full size; None: not known beforehand."""

    axes: Axes
    parameters: Parameters
    processes: tuple[Process, ...]
    mtbf_seconds: float | None = None

    def formula(self) -> float | None:
        """Runtime goodput by the exact formula, for a fixed interval and independent failures.

        The formula knows synchronous saves. Of others a failure takes the one in flight along, and with it
        the work done meanwhile: that counts as a longer restart. It knows no copies in memory.
        """
        interval = self.parameters.interval_in_force
        if self.mtbf_seconds is None or interval is None or self.parameters.memory_every:
            return None
        costs = self.parameters.costs
        lost = costs.restart.total + max(0.0, costs.durable - costs.blocking)
        return exact_goodput(interval, self.mtbf_seconds, costs.blocking, lost)


@dataclass(frozen=True)
class Spread:
    """Over seeds. ``deviation``: standard deviation of one life; 0 of a single one."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Summary:
    """What came of one cell."""

    cell: Cell
    lives: int
    goodput: Spread
    scheduling: Spread
    runtime: Spread
    work: Spread
    gpu_goodput: Spread
    interruptions_a_day: Spread
    interval_seconds: float
    lost_gpu_hours_a_day: dict[str, float]  # by cause, mean over seeds
    interruptions: dict[str, int]  # by cause, over all seeds
    failed: dict[str, int]  # why jobs gave up, without what differs from life to life
    passes: int


def live(cell: Cell, seed: int, chance: Callable[[str], Random]) -> Outcome:
    """One life of a cell. ``chance``: makes a stream from a name; seeded by ``seed`` in it."""
    bad_luck = failures(cell.processes, cell.parameters.slots, lambda name: chance(f"{seed}/{name}"))
    return simulate_job(cell.parameters, bad_luck, f"seed-{seed}")


def summarize(cell: Cell, lives: Sequence[Outcome]) -> Summary:
    """The lives of one cell together."""
    lost: defaultdict[str, float] = defaultdict(float)
    interruptions: Counter[str] = Counter()
    for life in lives:
        for cause, hours in life.lost_gpu_hours.items():
            lost[cause] += hours / life.days / len(lives) if life.days else 0.0
        interruptions.update(life.interruptions)
    return Summary(
        cell=cell,
        lives=len(lives),
        goodput=_spread(life.goodput for life in lives),
        scheduling=_spread(life.scheduling for life in lives),
        runtime=_spread(life.runtime for life in lives),
        work=_spread(life.work for life in lives),
        gpu_goodput=_spread(life.gpu_goodput for life in lives),
        interruptions_a_day=_spread(life.interruptions_a_day for life in lives),
        interval_seconds=fmean(life.interval_seconds for life in lives),
        lost_gpu_hours_a_day=dict(lost),
        interruptions=dict(interruptions),
        failed=dict(Counter(_alike(life.failed) for life in lives if life.failed)),
        passes=sum(life.passes for life in lives),
    )


def _alike(reason: str) -> str:
    """Of the reason of a failed job what other lives may share: not how often, nor by what it was spent."""
    return reason.partition(";")[0].partition(":")[0]


def _spread(values: Iterable[float]) -> Spread:
    found = list(values)
    return Spread(fmean(found), stdev(found) if len(found) > 1 else 0.0)
