"""Goodput and its formulas, with the numbers that GOODPUT promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.goodput import (
    best_goodput,
    exact_goodput,
    failure_probability,
    first_order_goodput,
    goodput,
    lost_work_goodput,
    mtbf_seconds,
)
from resumable_operator.decide.ledger import commit, give_up, go_on, open_ledger, settle
from resumable_operator.model import LedgerStatus
from resumable_training.contract.formulas import daly_interval, young_interval
from resumable_training.contract.metrics import LEDGER_PHASES

DAY = 86_400.0
MTBF = DAY / 8.6
RESTART = 300.0


def ledger(open_phase: str = "unaccounted", **phases: int) -> LedgerStatus:
    return LedgerStatus(started_at=0, settled_at=sum(phases.values()), open_phase=open_phase, phases=phases)


@pytest.mark.parametrize(("gpus", "percent"), [(256, 18.97), (1024, 56.90)])
def test_chance_of_a_failure_in_a_month(gpus: int, percent: float) -> None:
    """30 days at 1 % a year per GPU: certain enough to plan for."""
    assert failure_probability(gpus, 0.01, 30 / 365) * 100 == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize(
    ("minutes", "lost_hours", "first_order", "exact"), [(120, 8.6, 64.17, 68.4), (30, 2.15, 91.04, 91.3)]
)
def test_lost_work_alone(minutes: float, lost_hours: float, first_order: float, exact: float) -> None:
    """8.6 interruptions a day with free saves and free restarts."""
    interval = minutes * 60
    assert 8.6 * interval / 2 / 3600 == pytest.approx(lost_hours)
    assert lost_work_goodput(interval, MTBF) * 100 == pytest.approx(first_order, abs=0.005)
    assert first_order_goodput(interval, MTBF, 0, 0) == lost_work_goodput(interval, MTBF)
    assert exact_goodput(interval, MTBF) * 100 == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize(
    ("blocking", "at_30_minutes", "young_minutes", "at_young", "digits"),
    [(522, 66.9, 54, 68.9, 0.05), (9, 88.2, 7.1, 93.05, 0.05)],
)
def test_with_the_cost_of_saves_and_restarts(
    blocking: float, at_30_minutes: float, young_minutes: float, at_young: float, digits: float
) -> None:
    """A cheap save is worth more than a well chosen interval."""
    young = young_interval(blocking, MTBF)
    assert young / 60 == pytest.approx(young_minutes, abs=0.05)
    assert exact_goodput(1800, MTBF, blocking, RESTART) * 100 == pytest.approx(at_30_minutes, abs=digits)
    assert exact_goodput(young, MTBF, blocking, RESTART) * 100 == pytest.approx(at_young, abs=digits)


@pytest.mark.parametrize(("blocking", "minutes", "percent"), [(522, 48.3, 69.07), (9, 7.0, 93.05)])
def test_dalys_optimum(blocking: float, minutes: float, percent: float) -> None:
    """Daly's interval and the goodput it gives."""
    assert daly_interval(blocking, MTBF) / 60 == pytest.approx(minutes, abs=0.05)
    assert best_goodput(MTBF, blocking, RESTART) * 100 == pytest.approx(percent, abs=0.005)


@given(st.floats(1, 1000), st.floats(1.2, 50), st.floats(0, 600), st.floats(0.3, 3))
def test_no_interval_beats_dalys_by_much(
    blocking: float, scale: float, restart: float, factor: float
) -> None:
    """Daly's closed form is within a thousandth of any other interval where d < 2M."""
    mtbf = blocking * 2 * scale
    other = exact_goodput(daly_interval(blocking, mtbf) * factor, mtbf, blocking, restart)
    assert other <= best_goodput(mtbf, blocking, restart) + 0.001


def test_an_absurd_interval_gives_nothing_instead_of_an_error() -> None:
    """An interval of a thousand mean times between failures is never survived."""
    assert exact_goodput(1e6, 1000.0) == 0.0
    assert best_goodput(1000.0, 0.0, 250.0) == pytest.approx(0.8)


def test_the_two_factors_and_their_product() -> None:
    """Queueing is the cluster's fault, the rest is ours; suspension is nobody's."""
    result = goodput(ledger(suspended=1000, queued=1000, starting=500, productive=2500), 5000)
    assert (result.scheduling, result.runtime, result.goodput) == (0.75, pytest.approx(2500 / 3000), 0.625)
    assert (result.age_seconds, result.suspended_seconds, result.queued_seconds) == (5, 1, 1)


def test_a_hang_lowers_goodput_before_it_is_declared() -> None:
    """Unsettled time is in the denominator and never called productive."""
    result = goodput(ledger(productive=1000), 4000)
    assert (result.unsettled_seconds, result.productive_seconds, result.goodput) == (3, 1, 0.25)


def test_unsettled_waiting_counts_as_what_it_is() -> None:
    """A job that is still queued or suspended has that time in the right factor at once."""
    assert goodput(ledger("queued"), 1000).scheduling == 0
    assert goodput(ledger("suspended", productive=1000), 9000).goodput == 1


def test_ratios_without_a_denominator_are_not_numbers() -> None:
    """A job of age zero, or always suspended, has no goodput rather than a perfect or a zero one."""
    for at in (0, 1000):
        result = goodput(ledger("suspended"), at)
        assert (result.goodput, result.scheduling, result.runtime) == (None, None, None)
    assert goodput(ledger("queued"), 1000).runtime is None


@given(st.dictionaries(st.sampled_from(LEDGER_PHASES), st.integers(0, 10**9)), st.integers(0, 10**9))
def test_goodput_is_the_product_of_its_factors(phases: dict[str, int], later: int) -> None:
    """For every ledger the published product and factors agree and lie in 0..1."""
    told = ledger(**phases)
    result = goodput(told, told.settled_at + later)
    ratios = [ratio for ratio in (result.goodput, result.scheduling, result.runtime) if ratio is not None]
    assert all(0 <= ratio <= 1 for ratio in ratios)
    if len(ratios) == 3:
        assert result.goodput == pytest.approx(result.scheduling * result.runtime)


def test_mean_time_between_interruptions_starts_at_a_prior_and_follows_the_evidence() -> None:
    """No interruption yet is no reason to believe in none; many of them outweigh any prior."""
    assert mtbf_seconds(0, 0, 3600) == 3600
    assert mtbf_seconds(3600, 0, 3600) == 7200
    assert mtbf_seconds(1_000_000, 1000, 3600) == pytest.approx(1000, rel=0.01)


def test_work_that_no_checkpoint_holds_is_lost_when_the_job_dies() -> None:
    """8 s productive, 5 s committed: a job that dies produced 5; started again, it may redo the rest."""
    ledger = commit(settle(open_ledger(0), "productive", 5000))
    ledger = settle(ledger, "productive", 8000)
    assert goodput(ledger, 10_000).goodput == 0.8
    dead = give_up(ledger)
    assert (goodput(dead, 10_000).goodput, goodput(dead, 10_000).lost_seconds) == (0.5, 3.0)
    assert sum(dead.phases.values()) == dead.settled_at - dead.started_at
    assert goodput(go_on(dead), 10_000) == goodput(ledger, 10_000)
