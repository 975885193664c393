"""The simulator against the exact formula, where the formula's assumptions hold."""

from __future__ import annotations

from random import Random

import pytest

from resumable_operator.decide.goodput import exact_goodput
from resumable_operator.simulate.failures import Machines
from resumable_operator.simulate.grid import Cell, Summary, live, summarize
from resumable_operator.simulate.parameters import Costs, Parameters, Restart, make_spec

MTBF = 86_400 / 8.6
RESTART = 300.0


def simulated(interval: float, blocking: float, durable: float) -> Summary:
    """Two lives of one worker that restarts in place."""
    unbounded = {"infrastructure": {"limit": 10_000}, "withoutProgress": 10_000}
    spec = make_spec({"workers": {"replicas": 1}, "recovery": {"budgets": unbounded}})
    costs = Costs(blocking=blocking, durable=durable, restart=Restart().scaled(RESTART))
    cell = Cell({}, Parameters(spec, costs, interval, days=100), (Machines(MTBF, in_place=1.0),), MTBF)
    found = summarize(cell, [live(cell, seed, Random) for seed in range(2)])
    assert found.scheduling.mean == 1.0
    assert sum(found.interruptions.values()) > 1500
    return found


@pytest.mark.parametrize(("interval", "blocking"), [(1800, 522), (3240, 522), (1800, 9), (426, 9)])
def test_it_reproduces_the_exact_formula(interval: float, blocking: float) -> None:
    """Poisson failures and a synchronous save: within 1 % of T / ((M + R)(exp((T + d)/M) - 1))."""
    found = simulated(interval, blocking, durable=blocking)
    assert found.cell.formula() == exact_goodput(interval, MTBF, blocking, RESTART)
    assert found.runtime.mean == pytest.approx(found.cell.formula(), rel=0.01)


def test_an_interval_below_what_a_save_needs_is_not_lived() -> None:
    """The formula takes the T that saves allow: the next one waits until the last is durable."""
    found = simulated(60, 9, durable=522)
    assert found.interval_seconds == 513
    assert found.cell.formula() == exact_goodput(513, MTBF, 9, RESTART + 513)
    assert found.runtime.mean == pytest.approx(found.cell.formula(), rel=0.02)


def test_a_save_in_flight_is_lost_with_the_ranks() -> None:
    """A save that takes long to become durable costs as if the restart took that much longer."""
    found = simulated(1800, 9, durable=522)
    assert found.cell.formula() == exact_goodput(1800, MTBF, 9, RESTART + 513)
    assert found.runtime.mean == pytest.approx(found.cell.formula(), rel=0.01)
