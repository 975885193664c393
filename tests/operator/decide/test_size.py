"""Which size to start at, whether to wait for more, and when growing pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.size import (
    PLACING_SECONDS,
    Supply,
    choose_start,
    growth_pays,
    largest_allowed,
)
from resumable_operator.model import Workers

INF = float("inf")
PLACING = PLACING_SECONDS


@pytest.mark.parametrize(
    ("workers", "available", "size"),
    [
        (Workers(replicas=4, min=1), 3, 3),
        (Workers(replicas=4, min=1), 9, 4),
        (Workers(replicas=4, min=2), 1, None),
        (Workers(replicas=4, min=2, multiple_of=2), 3, 2),
        (Workers(replicas=8, min=1, sizes=(1, 4, 8)), 7, 4),
        (Workers(replicas=2, min=1, max=6), 5, 2),
    ],
)
def test_largest_allowed(workers: Workers, available: int, size: int | None) -> None:
    """The largest allowed size that is there, never more than desired."""
    assert largest_allowed(workers, available) == size


FOUR = Workers(replicas=4, min=2)


@pytest.mark.parametrize(
    ("supply", "waited", "restart", "size", "wait"),
    [
        pytest.param(Supply(4, 0, 0, None), 0, 10, 4, None, id="all there"),
        pytest.param(Supply(5, 0, 0, None), 0, 10, 4, None, id="a ready spare fills the gap"),
        pytest.param(Supply(1, 3, 0, None), 99, 10, None, None, id="never below min"),
        pytest.param(Supply(3, 0, 1, None), 0, 10, None, 10, id="wait while it costs less than a restart"),
        pytest.param(Supply(3, 0, 1, None), 10, 10, 3, None, id="then go on smaller"),
        pytest.param(Supply(3, 0, 1, None), 10, INF, None, 20, id="the first start waits the whole patience"),
        pytest.param(Supply(3, 0, 1, None), 30, INF, 3, None, id="and not longer"),
        pytest.param(Supply(3, 1, 0, None), 12, 10, None, 18, id="one with a machine is worth waiting for"),
        pytest.param(Supply(3, 1, 0, None), 30, 10, 3, None, id="but not for ever"),
        pytest.param(Supply(3, 0, 0, 0), 0, 10, 3, None, id="no room for more: at once"),
        pytest.param(Supply(3, 0, 0, 1), 0, 10, None, 10, id="room for one more: wait for it"),
        pytest.param(Supply(2, 0, 0, 1), 0, 10, None, 10, id="three can be had of four"),
        pytest.param(Supply(3, 0, 1, None), 1, 1, None, PLACING - 1, id="room may be found, or be left"),
        pytest.param(Supply(3, 0, 0, None), 1, 1, None, PLACING - 1, id="also for one to be made"),
        pytest.param(Supply(3, 0, 1, None), PLACING, 1, 3, None, id="which does not take long"),
        pytest.param(Supply(3, 0, 1, None, 1), 0, 10, 3, None, id="the scheduler has found no room: at once"),
        pytest.param(Supply(3, 0, 1, None, 1), 0, INF, None, 30, id="but a first start waits"),
        pytest.param(Supply(2, 0, 2, None, 1), 0, 10, None, 10, id="it has not said so of the other one"),
        pytest.param(Supply(3, 0, 0, None, 0), 0, 10, None, 10, id="nor of one that is still to be made"),
        pytest.param(Supply(2, 1, 1, None, 1), 0, 10, None, 30, id="three can be had, one has a machine"),
    ],
)
def test_start_or_wait(
    supply: Supply, waited: float, restart: float, size: int | None, wait: float | None
) -> None:
    """Start now at a size, or wait, and for how long."""
    start = choose_start(FOUR, supply, waited, patience=30, restart_seconds=restart)
    assert (start.size, start.wait_seconds) == (size, wait)
    assert start.reason


@given(
    ready=st.integers(0, 9),
    starting=st.integers(0, 9),
    queued=st.integers(0, 9),
    unplaceable=st.integers(0, 9),
    creatable=st.none() | st.integers(0, 9),
    waited=st.floats(0, 100),
    restart=st.floats(0, 100),
)
def test_a_start_is_allowed_and_a_wait_ends(
    ready: int,
    starting: int,
    queued: int,
    unplaceable: int,
    creatable: int | None,
    waited: float,
    restart: float,
) -> None:
    """Whatever is there: the size is allowed and there, and a wait at a possible size has an end."""
    workers = Workers(replicas=6, min=2, max=8, multiple_of=2)
    supply = Supply(ready, starting, queued, creatable, min(queued, unplaceable))
    start = choose_start(workers, supply, waited, 30, restart)
    if start.size is not None:
        assert start.size in workers.allowed_sizes()
        assert start.size <= min(ready, workers.replicas)
    elif not start.below_min:
        assert start.wait_seconds is not None
        assert 0 < start.wait_seconds <= 30 - waited
    else:
        assert ready < 2


@pytest.mark.parametrize(
    ("size", "larger", "restart", "mtbf", "pays"),
    [(3, 4, 10, 3600, True), (3, 4, 1000, 3600, False), (1, 2, 10, 15, False), (1, 2, 10, 25, True)],
)
def test_growth_pays(size: int, larger: int, restart: float, mtbf: float, pays: bool) -> None:
    """Grow only when the work gained until the next interruption is more than what the restart idles."""
    assert growth_pays(size, larger, restart, 0.0, mtbf) is pays
