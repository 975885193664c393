"""The save interval: Young, Daly, and `auto` within its bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resumable_training.contract.formulas import (
    CAP,
    DURABLE,
    FIRST,
    FIRST_SAVE_SECONDS,
    OPTIMUM,
    AutoInterval,
    auto_interval,
    daly_interval,
    young_interval,
)

seconds = st.floats(0, 1e6)
positive = st.floats(1e-3, 1e7)


@pytest.mark.parametrize(("mtbf_minutes", "expected"), [(24 * 60, 116.7), (6 * 60, 56.7), (15, 9.1)])
def test_dalys_own_numbers(mtbf_minutes: float, expected: float) -> None:
    """A save of 5 minutes; M of a day, six hours and a quarter of an hour; all in minutes."""
    assert daly_interval(5, mtbf_minutes) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("blocking", [30.0, 31.0, 1000.0])
def test_saves_dearer_than_twice_the_time_between_failures(blocking: float) -> None:
    """Beyond d = 2M Daly's series no longer holds; the interval is M."""
    assert daly_interval(blocking, 15.0) == 15.0


@given(st.floats(1e-6, 1.0), st.floats(1e4, 1e6))
def test_daly_agrees_with_young_when_saves_are_cheap(blocking: float, mtbf: float) -> None:
    """The higher terms matter only when d is not small against M."""
    assert daly_interval(blocking, mtbf) == pytest.approx(young_interval(blocking, mtbf), rel=0.01)


@pytest.mark.parametrize(
    ("blocking", "mtbf"),
    [(-1.0, 10.0), (1.0, 0.0), (1.0, -5.0), (math.nan, 10.0), (1.0, math.inf), (1.0, math.nan)],
)
def test_times_that_mean_nothing_are_refused(blocking: float, mtbf: float) -> None:
    """A bad measurement is an error, not an interval of NaN that never comes due."""
    with pytest.raises(ValueError, match="mean time between interruptions"):
        daly_interval(blocking, mtbf)


@given(seconds, seconds, positive, st.none() | positive)
@example(5e-324, 0.0, 0.25, None)
def test_auto_lies_between_durability_and_the_cap(
    blocking: float, durable: float, mtbf: float, cap: float | None
) -> None:
    """Never below the time one save needs to become durable; above a user's cap only for that."""
    interval = auto_interval(
        blocking_seconds=blocking, durable_seconds=durable, mtbf_seconds=mtbf, cap_seconds=cap
    ).seconds
    assert interval >= durable
    assert cap is None or interval <= max(cap, durable)
    if cap is None and durable == 0:
        assert interval == daly_interval(blocking, mtbf)


def test_auto_before_anything_is_measured() -> None:
    """The first save comes early, and the cap holds for it too."""
    first = auto_interval(blocking_seconds=None, durable_seconds=0, mtbf_seconds=1e6)
    assert first == AutoInterval(FIRST_SAVE_SECONDS, FIRST)
    capped = auto_interval(blocking_seconds=None, durable_seconds=0, mtbf_seconds=1e6, cap_seconds=7)
    assert capped == AutoInterval(7, CAP)


@pytest.mark.parametrize(
    ("durable", "cap", "bound"), [(1, None, OPTIMUM), (900, None, DURABLE), (1, 60, CAP), (900, 60, DURABLE)]
)
def test_auto_says_what_bound_it(durable: float, cap: float | None, bound: str) -> None:
    """People who wonder about the interval are told whether it is the optimum, the store or their own cap."""
    found = auto_interval(blocking_seconds=9, durable_seconds=durable, mtbf_seconds=10_000, cap_seconds=cap)
    assert found.bound == bound


@pytest.mark.parametrize(("durable", "cap"), [(-1.0, None), (1.0, 0.0), (1.0, -2.0)])
def test_auto_refuses_bounds_that_mean_nothing(durable: float, cap: float | None) -> None:
    """A cap of zero would mean saving for ever."""
    with pytest.raises(ValueError, match="cap_seconds"):
        auto_interval(blocking_seconds=1, durable_seconds=durable, mtbf_seconds=60, cap_seconds=cap)
