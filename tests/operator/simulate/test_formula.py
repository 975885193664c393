"""The simulator against the exact formula, where the formula's assumptions hold."""

from __future__ import annotations

from random import Random

import pytest

from resumable_operator.decide.goodput import exact_goodput
from resumable_operator.simulate.failures import Machines
from resumable_operator.simulate.grid import Cell, live, summarize
from resumable_operator.simulate.parameters import Costs, Parameters, Restart, make_spec

MTBF = 86_400 / 8.6
RESTART = 300.0


def simulated(interval: float, blocking: float, days: float, seeds: int) -> tuple[float, int]:
    """Runtime goodput, and the number of interruptions it rests on. One worker restarts in place."""
    unbounded = {"infrastructure": {"limit": 10_000}, "withoutProgress": 10_000}
    spec = make_spec({"workers": {"replicas": 1}, "recovery": {"budgets": unbounded}})
    costs = Costs(blocking=blocking, durable=blocking, restart=Restart().scaled(RESTART))
    cell = Cell({}, Parameters(spec, costs, interval, days=days), (Machines(MTBF, in_place=1.0),), MTBF)
    found = summarize(cell, [live(cell, seed, Random) for seed in range(seeds)])
    assert found.scheduling.mean == 1.0
    return found.runtime.mean, sum(found.interruptions.values())


@pytest.mark.parametrize(("interval", "blocking"), [(1800, 522), (3240, 522), (1800, 9), (426, 9)])
def test_it_reproduces_the_exact_formula(interval: float, blocking: float) -> None:
    """Poisson failures and a synchronous save: within 1 % of T / ((M + R)(exp((T + d)/M) - 1))."""
    found, interruptions = simulated(interval, blocking, days=120, seeds=2)
    assert interruptions > 1500
    assert found == pytest.approx(exact_goodput(interval, MTBF, blocking, RESTART), rel=0.01)
