"""When simulated machines fail: rates, shapes, and the same bad luck for everything that is compared."""

from __future__ import annotations

from itertools import pairwise, takewhile
from random import Random
from statistics import fmean, pstdev

import pytest

from resumable_operator.simulate.failures import (
    Failure,
    Machines,
    Process,
    Racks,
    SpotWaves,
    Trace,
    failures,
)

DAY = 86_400.0


def until(days: float, *processes: Process, slots: int = 8, seed: int = 1) -> list[Failure]:
    found = failures(processes, slots, lambda name: Random(f"{seed}/{name}"))
    return list(takewhile(lambda failure: failure.at < days * DAY, found))


@pytest.mark.parametrize("shape", [0.7, 1.0, 2.0])
def test_the_mean_time_between_failures_is_the_one_asked_for(shape: float) -> None:
    """Whatever the Weibull shape: 8 machines that fail every 4 days, 2 failures a day."""
    assert len(until(1000, Machines(4 * DAY, shape))) == pytest.approx(2000, rel=0.06)


@pytest.mark.parametrize(("shape", "low", "high"), [(0.6, 1.3, 9.0), (1.0, 0.93, 1.07), (3.0, 0.0, 0.5)])
def test_the_shape_makes_bursts_or_regularity(shape: float, low: float, high: float) -> None:
    """Coefficient of variation of one machine's times: 1 is Poisson."""
    times = [failure.at for failure in until(4000, Machines(DAY, shape), slots=1)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert low < pstdev(gaps) / fmean(gaps) < high


def test_a_share_of_the_failures_leaves_the_machine_good() -> None:
    """Crashes of processes, against losses of machines."""
    found = until(1000, Machines(4 * DAY, in_place=0.3))
    assert fmean(failure.in_place for failure in found) == pytest.approx(0.3, abs=0.04)


def test_a_seed_is_the_same_bad_luck_with_more_machines() -> None:
    """Spares and sizes are compared under the same failures of the machines that both have."""
    few, many = until(50, Machines(DAY), slots=4), until(50, Machines(DAY), slots=6)
    assert few == [failure for failure in many if failure.slots[0] < 4]
    assert few != until(50, Machines(DAY), slots=4, seed=2)


def test_racks_fail_together() -> None:
    """The last one may have fewer machines."""
    found = until(400, Racks(3, 10 * DAY), slots=8)
    assert {failure.slots for failure in found} == {(0, 1, 2), (3, 4, 5), (6, 7)}
    assert len(found) == pytest.approx(120, rel=0.25)


def test_waves_take_a_share_with_notice() -> None:
    """And nothing comes back before they are over."""
    found = until(1000, SpotWaves(DAY, 0.25, notice=30.0, lasts=600.0), slots=20)
    assert fmean(len(failure.slots) for failure in found) == pytest.approx(5, rel=0.1)
    assert {(failure.notice, failure.back) for failure in found} == {(30.0, 600.0)}


def test_all_kinds_come_in_order_of_time() -> None:
    """However many there are."""
    trace = Trace((Failure(9.0, (0,), "trace"), Failure(3.0, (1, 99), "trace"), Failure(5.0, (99,), "trace")))
    found = until(30, Machines(DAY), Racks(4, DAY), SpotWaves(DAY, 0.5), trace)
    assert [failure.at for failure in found] == sorted(failure.at for failure in found)
    assert [failure.slots for failure in found if failure.kind == "trace"] == [(1,), (0,)]
