"""One simulated life: the real decisions over simulated machines."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Failure, Trace, failures
from resumable_operator.simulate.job import simulate_job
from resumable_operator.simulate.parameters import Costs, Parameters, Restart, make_spec

HOUR = 3600.0
COSTS = Costs(
    step=1.0,
    blocking=2.0,
    durable=10.0,
    reschedule=20.0,
    replace=400.0,  # less than formingTimeoutSeconds
    restart=Restart(detect=5, setup=10, rendezvous=5, restore=20, warmup=10),
)


def life(
    bad_luck: Iterable[Failure] = (), hours: float = 4, interval: Any = 300.0, gpus: int = 8, **workers: Any
) -> Outcome:
    spec = make_spec({"workers": {"replicas": 4, **workers}})
    parameters = Parameters(spec, COSTS, interval, gpus, hours / 24)
    trace = Trace(tuple(bad_luck))
    return simulate_job(parameters, failures((trace,), parameters.slots, Random), "uid")


def loss(at: float, *slots: int, **changes: Any) -> Failure:
    return Failure(at, slots or (0,), **changes)


def test_a_life_without_failures_pays_for_its_start_and_its_saves() -> None:
    """A start of 65 s (worker, set-up, rendezvous, restore, first step), then 2 s in every 302."""
    found = life()
    assert (found.interruptions, found.failed) == ({}, "")
    assert found.phases["starting"] == 30.0
    assert found.goodput == pytest.approx((4 * HOUR - 65) / (4 * HOUR) * 300 / 302, abs=0.001)
    assert found.work == pytest.approx(found.goodput, abs=0.001)


def test_a_spare_takes_over_at_once() -> None:
    """The loss costs a restart and the steps since the save; without a spare also the wait for a machine."""
    with_spare, without = life([loss(HOUR)], spares=1), life([loss(HOUR)])
    assert with_spare.interruptions == without.interruptions == {"node_lost": 1}
    restart = sum(with_spare.phases[name] for name in ("recovering", "detecting"))
    assert 14 <= restart < 17
    assert with_spare.phases.get("queued", 0.0) == 0.0
    waited = without.phases["queued"] + without.phases["recovering"]
    assert waited == pytest.approx(COSTS.replace + COSTS.reschedule + 10 - 5, abs=2)
    assert with_spare.gpu_goodput == pytest.approx(with_spare.goodput * 4 / 5, abs=0.01)  # all 5 are paid for


def test_without_a_spare_it_shrinks_and_grows_back() -> None:
    """It goes on with three, and with four when there is another machine: less work, no wait."""
    found = life([loss(HOUR)], min=2)
    assert (found.interruptions, found.planned) == ({"node_lost": 1}, {"scale": 1})
    assert found.goodput > life([loss(HOUR)]).goodput
    assert found.work < found.goodput - 0.005


def test_an_announced_loss_costs_no_work() -> None:
    """With notice enough the job drains: preempted, and nothing is done again."""
    told = life([loss(HOUR + 250, notice=120.0)], spares=1)
    untold = life([loss(HOUR + 250)], spares=1)
    assert told.interruptions == {"preempted": 1}
    assert (told.phases.get("rework", 0.0), untold.phases["rework"] > 60) == (0.0, True)
    short = life([loss(HOUR + 250, notice=3.0)], spares=1)
    assert short.phases["rework"] == pytest.approx(untold.phases["rework"], abs=15)


def test_a_process_that_dies_is_restarted_in_place() -> None:
    """Its machine stays, so neither a spare nor another machine is needed."""
    found = life([loss(HOUR, in_place=True)])
    assert found.interruptions == {"crash": 1}
    assert found.phases["recovering"] == 10.0


def test_a_lost_rack_waits_for_its_machines() -> None:
    """Below the smallest size the job is queued: the cluster's fault, in the scheduling factor."""
    found = life([loss(HOUR, 0, 1)], min=3)
    assert found.phases["queued"] > 300
    assert found.scheduling == pytest.approx(1 - found.phases["queued"] / (4 * HOUR))


def test_a_machine_of_nobody_is_no_interruption() -> None:
    """A spare that is lost is replaced while training goes on."""
    assert life([loss(HOUR, 4)], spares=1).interruptions == {}


def test_a_job_that_never_reaches_a_save_gives_up() -> None:
    """The budgets are the real ones: five crashes without a checkpoint between them end it."""
    found = life([loss(200.0 + 400 * number, in_place=True) for number in range(30)], interval=HOUR)
    assert "without a new checkpoint" in found.failed
    assert found.days < 0.1


def test_auto_follows_the_failures() -> None:
    """M starts at an hour; without interruptions the interval grows, with many it shrinks."""
    calm, wild = (
        life(interval="auto", hours=24),
        life([loss(600.0 * number, in_place=True) for number in range(1, 100)], interval="auto", hours=24),
    )
    assert wild.interval_seconds < 80 < 200 < calm.interval_seconds


def test_where_the_gpu_hours_went_adds_up() -> None:
    """What made new steps and what was lost, by cause, is what was paid for."""
    bad_luck = [loss(HOUR), loss(2 * HOUR, 1, in_place=True), loss(3 * HOUR, 2, notice=60.0)]
    found = life(bad_luck, spares=1, hours=8)
    assert set(found.lost_gpu_hours) >= {"node_lost", "crash", "preempted", "start", "saves", "idle"}
    productive = found.gpu_goodput * found.gpu_hours
    assert productive + sum(found.lost_gpu_hours.values()) == pytest.approx(found.gpu_hours, rel=0.001)
    assert found.gpu_hours == pytest.approx(8 * 5 * 8, rel=0.03)


disasters = st.lists(
    st.builds(
        Failure,
        at=st.floats(0, 3 * HOUR),
        slots=st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True).map(tuple),
        kind=st.just("trace"),
        notice=st.sampled_from([0.0, 0.0, 3.0, 100.0]),
        in_place=st.booleans(),
        back=st.none() | st.floats(0, 2000),
    ),
    max_size=12,
)


@given(disasters, st.sampled_from([1, 2, 4]), st.integers(0, 1), st.sampled_from(["auto", 60.0, 900.0]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_trace_is_accounted_for(
    disaster: list[Failure], least: int, spares: int, interval: float | str
) -> None:
    """Phases sum to the age exactly and nothing is unaccounted; the same trace is the same life."""
    ordered = sorted(disaster, key=lambda failure: failure.at)
    found = life(ordered, min=least, spares=spares, interval=interval)
    assert found.phases.get("unaccounted", 0.0) == 0.0
    age, settled = (round(seconds, 3) for seconds in (found.days * 86_400, sum(found.phases.values())))
    assert age - 3 * COSTS.durable <= settled <= age  # the newest stretch is not over yet
    assert all(amount > 0 for amount in found.phases.values())
    assert found == life(ordered, min=least, spares=spares, interval=interval)
    assert found.failed or found.work > 0
