"""The ledger: exclusive phases whose milliseconds sum to the settled age, whatever events come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.ledger import (
    CLOCKS_DIFFER_MS,
    STARTING,
    UNACCOUNTED,
    age_ms,
    declare_failure,
    enter,
    fold_progress,
    milliseconds,
    open_ledger,
    phases_at,
    settle,
    unsettled_ms,
)
from resumable_operator.model import LedgerStatus
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.metrics import LEDGER_PHASES
from resumable_training.contract.progress import PHASES


def report(
    settled_ms: int = 0, rework_steps: int = 0, uses_library: bool = True, **phase_ms: int
) -> ProgressReport:
    return ProgressReport(
        rank=0,
        started_ms=settled_ms - sum(phase_ms.values()),
        settled_ms=settled_ms,
        phase="productive",
        step=0,
        samples=0,
        phase_ms=phase_ms,
        rework_steps=rework_steps,
        uses_library=uses_library,
    )


def running(**phase_ms: int) -> LedgerStatus:
    """A ledger that began at 0 and has folded one report of attempt 1 that fills the time exactly."""
    begun = enter(open_ledger(0), "starting", 0)
    return fold_progress(begun, report(**phase_ms), 1, sum(phase_ms.values()))


def test_a_new_ledger_is_queued_and_empty() -> None:
    """A job's time begins when it is first seen, and it waits for room."""
    ledger = open_ledger(5000)
    assert (ledger.started_at, ledger.settled_at, ledger.open_phase, ledger.phases) == (
        5000,
        5000,
        "queued",
        {},
    )
    assert age_ms(ledger, 5700) == unsettled_ms(ledger, 5700) == 700
    assert phases_at(ledger, 5700)["queued"] == 700


def test_entering_a_phase_settles_the_one_before() -> None:
    """Control phases follow one another without a gap."""
    ledger = enter(enter(open_ledger(0), "starting", 300), "suspended", 1000)
    assert ledger.phases == {"queued": 300, "starting": 700}
    assert ledger.open_phase == "suspended"


def test_entering_an_unknown_phase_is_our_bug() -> None:
    """Phases are a closed list: metrics export every one of them."""
    with pytest.raises(ValueError, match="napping"):
        enter(open_ledger(0), "napping", 1)


def test_time_that_waits_for_a_report_is_not_taken_from_it() -> None:
    """Entering `unaccounted` at every pass must not eat the time that the next report explains."""
    ledger = running(setup=100)
    for at in (200, 500, 900):
        ledger = enter(ledger, "unaccounted", at)
    ledger = fold_progress(ledger, report(setup=100, productive=900), 1, 1000)
    assert ledger.phases == {"starting": 100, "productive": 900}


@pytest.mark.parametrize("control", ["starting", "recovering", "resizing"])
def test_a_ranks_setup_belongs_to_the_reason_it_was_started_for(control: str) -> None:
    """Imports after a failure are recovery, after a resize resizing, also once ranks were said to run."""
    ledger = enter(open_ledger(0), control, 0)
    ledger = enter(ledger, "unaccounted", 500)
    ledger = fold_progress(ledger, report(setup=1500, rendezvous=200, restoring=300), 1, 2500)
    assert ledger.phases == {control: 2000, "rendezvous": 200, "restoring": 300}


def test_the_time_before_a_ranks_start_stays_with_the_control_phase() -> None:
    """What the first report does not cover is the wait for its process."""
    ledger = fold_progress(enter(open_ledger(0), "recovering", 0), report(setup=400, warmup=100), 3, 2000)
    assert ledger.phases == {"recovering": 1900, "warmup": 100}
    assert ledger.attempt == 3


def test_deltas_that_leave_a_gap_are_unaccounted() -> None:
    """A gap between two reports is shown, not guessed away: of any length where totals are not whole."""
    ledger = fold_progress(running(setup=100), report(setup=100, productive=600), 1, 1300)
    assert ledger.phases == {"starting": 100, "productive": 600, "unaccounted": 600}
    torn = replace(report(setup=100, productive=600), started_ms=-710)
    ledger = fold_progress(running(setup=100), torn, 1, 710)
    assert ledger.phases == {"starting": 100, "productive": 600, "unaccounted": 10}


def test_a_clock_that_is_mapped_anew_makes_no_gap() -> None:
    """After an operator's restart reports seem to be late by what its first news took. The rank's totals are
    whole, so nothing is missing: the difference stays unsettled until it is gone again."""
    ledger = fold_progress(running(setup=100), report(setup=100, productive=600), 1, 1000)
    assert ledger.phases == {"starting": 100, "productive": 600}
    assert phases_at(ledger, 1000)["unaccounted"] == unsettled_ms(ledger, 1000) == 300
    ledger = fold_progress(ledger, report(setup=100, productive=900), 1, 1000)
    assert ledger.phases == {"starting": 100, "productive": 900}
    assert declare_failure(ledger, 1400).phases["detecting"] == 400


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, CLOCKS_DIFFER_MS)), min_size=1, max_size=30),
    st.integers(0, CLOCKS_DIFFER_MS),
)
def test_no_mapping_of_clocks_makes_time_that_nobody_can_account_for(
    reports: list[tuple[int, int]], first: int
) -> None:
    """Whatever each report's delay is taken for: what a rank did is credited as what it was."""
    at, ledger = 100, fold_progress(enter(open_ledger(0), "starting", 0), report(setup=100), 1, 100 + first)
    for lasted, late in reports:
        at += lasted
        ledger = fold_progress(ledger, report(setup=100, productive=at - 100), 1, at + late)
        assert sum(ledger.phases.values()) == ledger.settled_at
        assert unsettled_ms(ledger, at + late) <= CLOCKS_DIFFER_MS
    assert set(ledger.phases) <= {"starting", "productive"}


def test_deltas_that_overflow_are_scaled_down() -> None:
    """Two clocks that disagree can't make a second last longer than a second."""
    ledger = fold_progress(running(setup=100), report(setup=100, productive=1500, data_stall=500), 1, 1100)
    assert ledger.phases == {"starting": 100, "productive": 750, "data_stall": 250}


def test_what_was_settled_already_comes_off_a_ranks_first_phases() -> None:
    """Overlap with time settled before is set-up, never the steps that came later."""
    ledger = enter(enter(open_ledger(0), "starting", 0), "unaccounted", 800)
    ledger = fold_progress(ledger, report(setup=600, rendezvous=300, warmup=100, productive=50), 1, 1000)
    assert ledger.phases == {"starting": 800, "rendezvous": 50, "warmup": 100, "productive": 50}


def test_closing_counts_as_checkpointing_and_unknown_phases_as_unaccounted() -> None:
    """A newer rank's word can't break an older operator's sum."""
    ledger = fold_progress(running(setup=10), report(setup=10, closing=30, daydreaming=20), 1, 60)
    assert ledger.phases == {"starting": 10, "checkpointing": 30, "unaccounted": 20}


def test_a_failure_makes_all_unexplained_time_detecting() -> None:
    """A hang is unsettled until it is declared; then all of it was detection."""
    ledger = fold_progress(running(setup=100), report(setup=100, productive=900), 1, 1000)
    ledger = declare_failure(ledger, 31_000)
    assert ledger.phases == {"starting": 100, "productive": 900, "detecting": 30_000}
    assert ledger.open_phase == "recovering"


def test_a_report_that_arrives_after_the_failure_changes_nothing() -> None:
    """A partitioned old rank 0 that trains on does not turn recovery into work."""
    failed = declare_failure(running(setup=100, productive=900), 2000)
    assert fold_progress(failed, report(setup=100, productive=5000), 1, 5100) == failed


def test_reports_of_older_attempts_change_nothing() -> None:
    """Replayed events of attempt 1 can't be charged to attempt 2."""
    ledger = fold_progress(declare_failure(running(setup=100), 200), report(setup=50), 2, 400)
    assert fold_progress(ledger, report(setup=100, productive=9000), 1, 9200) == ledger


def test_the_same_report_twice_adds_nothing() -> None:
    """Replay after a lost answer is harmless."""
    once = running(setup=100, productive=900)
    assert fold_progress(once, report(setup=100, productive=900), 1, 1000) == once


def test_rework_steps_add_up_over_attempts() -> None:
    """Each attempt reports its own total from zero; the ledger keeps the job's."""
    ledger = enter(open_ledger(0), "starting", 0)
    for attempt, at, steps in ((1, 10, 2), (1, 20, 5), (1, 20, 5), (2, 30, 3)):
        ledger = fold_progress(ledger, report(rework_steps=steps), attempt, at)
    assert ledger.rework_steps == 8


def test_a_script_without_the_library_is_running_opaque() -> None:
    """Time of a script that reports nothing is shown apart from time that we failed to explain."""
    ledger = enter(open_ledger(0), "starting", 0)
    ledger = fold_progress(ledger, report(uses_library=False), 1, 300)
    ledger = fold_progress(ledger, report(uses_library=False), 1, 1300)
    assert ledger.phases == {"starting": 300, "running_opaque": 1000}
    ledger = declare_failure(ledger, 2000)
    assert ledger.phases["detecting"] == 700


def test_a_rank_that_is_slow_to_connect_is_not_opaque() -> None:
    """A job whose ranks have reported phases before uses the library: its next start is still recovery."""
    ledger = declare_failure(running(setup=100, warmup=100), 200)
    ledger = fold_progress(ledger, report(uses_library=False, setup=6000), 2, 6200)
    ledger = fold_progress(ledger, report(setup=8000, warmup=500), 2, 8700)
    assert ledger.phases == {"starting": 100, "warmup": 600, "recovering": 8000}


def test_a_clock_that_steps_backwards_is_ignored() -> None:
    """After an operator restart with an older wall clock nothing is uncounted."""
    ledger = enter(enter(open_ledger(1000), "starting", 2000), "recovering", 500)
    assert (ledger.settled_at, ledger.phases) == (2000, {"queued": 1000})
    assert age_ms(ledger, 700) == 1000


def test_milliseconds_rounds() -> None:
    """Seconds on the operator's clock become the ledger's integers."""
    assert milliseconds(1.2346) == 1235


Step = Callable[[LedgerStatus], LedgerStatus]
moments = st.integers(-2_000, 20_000)
totals = st.dictionaries(st.sampled_from([*PHASES, "from_the_future"]), st.integers(0, 6_000), max_size=6)
reports = st.builds(
    lambda phase_ms, steps, library: report(rework_steps=steps, uses_library=library, **phase_ms),
    totals,
    st.integers(0, 50),
    st.booleans(),
)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda phase, at: lambda ledger: enter(ledger, phase, at), st.sampled_from(LEDGER_PHASES), moments
    ),
    st.builds(lambda at: lambda ledger: declare_failure(ledger, at), moments),
    st.builds(
        lambda phase, at: lambda ledger: settle(ledger, phase, at), st.sampled_from(LEDGER_PHASES), moments
    ),
    st.builds(
        lambda told, attempt, at: lambda ledger: fold_progress(ledger, told, attempt, at),
        reports,
        st.integers(1, 4),
        moments,
    ),
)


@given(st.lists(steps, max_size=30), moments, st.randoms(use_true_random=False))
def test_phases_always_sum_to_the_settled_age_and_never_shrink(
    history: list[Step], begin: int, chance: object
) -> None:
    """Any events in any order, with repeats and clocks that step back: exclusive, complete, monotone."""
    chance.shuffle(history)  # type: ignore[attr-defined]
    ledger = open_ledger(begin)
    for step in [again for once in history for again in (once, once)]:
        before, ledger = ledger, step(ledger)
        assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at
        assert set(ledger.phases) <= set(LEDGER_PHASES)
        assert all(amount >= before.phases.get(phase, 0) for phase, amount in ledger.phases.items())
        assert before.phases.keys() <= ledger.phases.keys()
        assert ledger.settled_at >= before.settled_at
        assert ledger.rework_steps >= before.rework_steps
        assert all(amount > 0 for amount in ledger.phases.values())


@given(st.lists(steps, max_size=15), moments)
def test_phases_at_any_moment_sum_to_the_age(history: list[Step], now: int) -> None:
    """What is shown to people adds up too, with every phase present."""
    ledger = open_ledger(0)
    for step in history:
        ledger = step(ledger)
    shown = phases_at(ledger, now)
    assert sum(shown.values()) == age_ms(ledger, now)
    assert list(shown) == list(LEDGER_PHASES)


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 900)), min_size=1, max_size=25), st.data())
def test_a_rank_that_is_heard_of_rarely_or_often_is_credited_the_same(
    life: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Reports are totals: losing some of them in between changes no credit."""
    kept = data.draw(st.lists(st.booleans(), min_size=len(life), max_size=len(life)))
    kept[-1] = True
    often = rarely = enter(open_ledger(0), "recovering", 0)
    done: dict[str, int] = {}
    clock = 0
    for (phase, amount), keep in zip(life, kept, strict=True):
        clock += amount
        done[phase] = done.get(phase, 0) + amount
        often = fold_progress(often, report(**done), 1, clock)
        rarely = fold_progress(rarely, report(**done), 1, clock) if keep else rarely
    assert often.phases == rarely.phases
    assert often.settled_at == rarely.settled_at == clock


def test_phases_that_an_agent_makes_up_do_not_fill_the_status() -> None:
    """However many names it tells, they are one; and none of them is a phase that only the operator gives."""
    made_up = {f"phase-{number}": 1 for number in range(10_000)}
    report = ProgressReport(0, 0, 0, "productive", 1, 1, {"productive": 50, "suspended": 7, **made_up})
    after = fold_progress(enter(open_ledger(0), STARTING, 0), report, 1, 20_000)
    assert set(after.folded) == {"productive", UNACCOUNTED}
    assert after.folded[UNACCOUNTED] == 10_007
    assert after.phases.get("suspended", 0) == 0
    assert fold_progress(after, report, 1, 20_000) == after


def test_a_script_is_opaque_from_its_start() -> None:
    """When it becomes known that a script uses no library, all the time that it ran is shown as such."""
    ledger = enter(open_ledger(0), "starting", 0)
    ledger = fold_progress(ledger, report(8000, uses_library=False, setup=8000), 1, 8800)
    assert ledger.phases == {"starting": 800, "running_opaque": 8000}
    ledger = fold_progress(ledger, report(9000, uses_library=False, setup=9000), 1, 9800)
    assert ledger.phases == {"starting": 800, "running_opaque": 9000}
    assert sum(ledger.phases.values()) == age_ms(ledger, 9800)
