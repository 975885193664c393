"""Wishes at the edge of sense: a sane life or a clear end, never an endless or a contradictory one."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from resumable_operator.cli.simulate_input import Wish, cells_of
from resumable_operator.decide.goodput import exact_goodput
from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Trace
from resumable_operator.simulate.grid import live

FREE = dict.fromkeys(("detect", "setup", "rendezvous", "restore", "warmup", "reschedule"), "0")
FIELDS = ("spec", "least", "in_place", "shape", "racks", "spot", "trace")  # of a wish
MANY = {"budgets": {"infrastructure": {"limit": 10_000}, "withoutProgress": 10_000}}


def lived(days: float = 1.0, costs: dict[str, str] | None = None, **more: Any) -> Outcome:
    """The life of the one cell of this wish; ``axes`` as on the command line."""
    fields = {name: more.pop(name) for name in FIELDS if name in more}
    (cell,) = cells_of(Wish(axes={"workers": "4", **more}, costs=costs or {}, days=days, **fields))
    found = live(cell, 0, Random)
    ratios = (found.goodput, found.scheduling, found.runtime, found.work, found.gpu_goodput)
    assert all(0 <= ratio <= 1.0001 for ratio in ratios), found
    assert math.isclose(found.goodput, found.scheduling * found.runtime, abs_tol=1e-6)
    assert all(hours >= 0 for hours in found.lost_gpu_hours.values())
    assert found.phases.get("unaccounted", 0.0) == 0.0
    return found


def test_nothing_costs_anything() -> None:
    """No save, no restart and no start takes time: all of it is productive, with losses or without."""
    free = {"costs": FREE, "blocking": "0", "durable": "0", "replace": "0", "interval": "1m"}
    assert lived(machine_mtbf="100000d", **free).goodput == pytest.approx(1.0, abs=1e-6)
    lossy = lived(machine_mtbf="1d", in_place=0.5, spec={"recovery": MANY}, **free)
    assert sum(lossy.interruptions.values()) > 0
    assert lossy.goodput == pytest.approx(1.0, abs=0.01)


def test_without_failures_only_saves_and_the_start_cost() -> None:
    """An empty trace of this job's machines is a life without failures."""
    found = lived(trace=Trace(()), interval="10m", blocking="6s")
    assert (found.interruptions, found.failed) == ({}, "")
    assert found.goodput == pytest.approx(600 / 606, abs=0.002)
    assert exact_goodput(600, 1e12, 6, 100) == pytest.approx(600 / 606, abs=1e-6)


def test_failures_that_come_faster_than_a_restart() -> None:
    """It gives up by its budget, and has made next to nothing."""
    found = lived(mtbf="30s", restart="5m", in_place=1.0)
    assert found.failed
    assert found.goodput < 0.05


def test_an_interval_longer_than_the_time_between_failures() -> None:
    """Little is ever saved; what is agrees with the formula."""
    found = lived(
        days=20,
        workers="1",
        mtbf="1h",
        interval="4h",
        restart="1m",
        blocking="1s",
        durable="1s",
        in_place=1.0,
        spec={"recovery": MANY},
    )
    assert not found.failed
    assert found.runtime == pytest.approx(exact_goodput(4 * 3600, 3600, 1, 60), abs=0.04)


def test_more_spares_than_sense() -> None:
    """They are paid for, and help no more than enough of them."""
    few, many = (
        lived(days=5, spares=count, machine_mtbf="2d", replace="1h", interval="10m") for count in ("4", "40")
    )
    assert many.goodput == pytest.approx(few.goodput, abs=0.02)
    assert many.gpu_goodput < few.gpu_goodput / 3
    assert many.lost_gpu_hours["idle"] > 0.85 * many.gpu_hours


def test_every_machine_at_once_again_and_again() -> None:
    """Waves that take all there is, racks as large as the job: it waits, and goes on."""
    wave = lived(days=3, spot="6h:1:1h", notice="1m", spec={"recovery": MANY})
    assert wave.interruptions.get("preempted", 0) >= 5
    assert 0.3 < wave.goodput < 0.99
    rack = lived(days=3, racks="1000:8h", replace="30m", spec={"recovery": MANY})
    assert set(rack.interruptions) == {"node_lost"}
    assert 0.3 < rack.goodput < 0.99


@pytest.mark.parametrize("interval", ["1ms", "10000d", "auto"])
def test_any_interval(interval: str) -> None:
    """One that no save can follow is bounded by it; one longer than the life saves never."""
    found = lived(machine_mtbf="1000d", interval=interval)
    assert found.goodput > 0.5
    assert found.interval_seconds > 0


def test_a_life_shorter_than_its_start() -> None:
    """Nothing is done yet, and nothing divides by it."""
    found = lived(days=0.01, costs={"setup": "1h"})
    assert (found.goodput, found.work) == (0.0, 0.0)
