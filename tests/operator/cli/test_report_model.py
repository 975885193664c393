"""The report's numbers, built from a status and a history."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.cli.report import seen_told
from resumable_operator.cli.report_checkpoints import used_seconds
from resumable_operator.cli.report_model import (
    Report,
    build_report,
    evidence,
    phase_shares,
    restart_seconds,
    sighting,
)
from resumable_operator.cli.run_history import HistoryEvent, Lines
from resumable_operator.cli.rundir import JobFile
from resumable_operator.decide.observation import Job
from resumable_operator.metrics import _recommended_interval
from resumable_operator.model import CheckpointStatus, Interruption, JobSpec, JobStatus, LedgerStatus
from resumable_training.contract.formulas import daly_interval
from resumable_training.contract.metrics import LEDGER_PHASES

JOB = JobFile("local", "train", "u-1", 0.0, {})
AGE = 1000


def ledger(**phases: int) -> LedgerStatus:
    return LedgerStatus(
        started_at=0, settled_at=sum(phases.values()), open_phase="unaccounted", phases=phases
    )


def status(**changes: object) -> JobStatus:
    base = JobStatus(
        phase="Succeeded",
        step_seconds=0.5,
        ledger=ledger(queued=100_000, productive=900_000),
        checkpoint=CheckpointStatus(name="step-00000020.1", step=20, samples=1, at=1, bytes=500),
        interruption_counts={"node_lost": 2, "hang": 1, "scale": 4},
    )
    return base.model_copy(update=changes)


def event(kind: str, at: float, attempt: int = 1, **data: object) -> HistoryEvent:
    return HistoryEvent(at, "train-0-1", kind, attempt, dict(data))


def save(
    step: int, at: float, attempt: int = 1, blocking_ms: int = 2000, durable_ms: int = 3000
) -> HistoryEvent:
    name = f"step-{step:08d}.{attempt}"
    costs = {"blocking_ms": blocking_ms, "durable_ms": durable_ms, "bytes": 500}
    return event("checkpoint", at, attempt, step=step, checkpoint=name, **costs)


def report(*history: HistoryEvent, of: JobStatus | None = None, damaged: int = 0) -> Report:
    return build_report(JOB, of or status(), Lines(history, damaged), AGE)


@given(st.dictionaries(st.sampled_from(LEDGER_PHASES), st.integers(0, 10**7)), st.integers(0, 10**6))
def test_seconds_by_phase_sum_to_the_age(phases: dict[str, int], unsettled: int) -> None:
    """Exactly, to the millisecond, with what is not settled yet, which is never called unaccounted for."""
    told = status(ledger=ledger(**phases))
    age = sum(phases.values()) + unsettled
    shares = phase_shares(told, age / 1000)
    assert {item.phase: round(item.seconds * 1000) for item in shares} == {
        k: v for k, v in phases.items() if v
    }
    assert sum(item.share * age for item in shares) == pytest.approx(age - unsettled)
    assert [item.seconds for item in shares] == sorted((item.seconds for item in shares), reverse=True)


def test_unsettled_time_of_a_job_that_waits_is_what_it_is() -> None:
    """Only training ranks have something to report that may change what the time was."""
    waiting = LedgerStatus(started_at=0, settled_at=1000, open_phase="queued", phases={"starting": 1000})
    shares = {item.phase: item.seconds for item in phase_shares(status(ledger=waiting), 5.0)}
    assert shares == {"queued": 4.0, "starting": 1.0}


def test_goodput_and_its_factors_are_in_the_report() -> None:
    """The product and its two factors stand side by side."""
    numbers = report().goodput
    assert (numbers.goodput, numbers.scheduling, numbers.runtime) == (0.9, 0.9, 1.0)


def test_saves_are_counted_once_with_their_mean_cost() -> None:
    """An event that was replayed after a restart of the operator is one save."""
    numbers = report(save(10, 10), save(20, 20, blocking_ms=4000), save(20, 21, blocking_ms=4000)).checkpoints
    assert (numbers.made, numbers.blocking_seconds, numbers.durable_seconds) == (2, 3.0, 3.0)
    assert (numbers.blocking_total_seconds, numbers.total_bytes, numbers.newest_bytes) == (6.0, 1000, 500)
    assert numbers.newest == "step-00000020.1"


def test_failed_saves_and_fallbacks_are_told() -> None:
    """A save that failed and a damaged checkpoint that was passed over are visible afterwards."""
    fallback = [{"checkpoint": "step-00000020.1", "why": "hash differs"}, "nonsense"]
    told = report(
        event("checkpoint_failed", 5, step=10, message="disk full"),
        event("restored", 9, attempt=2, fallback=fallback),
        event("restored", 9, attempt=3, fallback=None),
    ).checkpoints
    assert told.failed == 1
    assert [(item.attempt, item.checkpoint, item.why) for item in told.fallbacks] == [
        (2, "step-00000020.1", "hash differs")
    ]


def test_events_with_wrong_fields_do_not_break_a_report() -> None:
    """Another version's event costs its number, not the report."""
    told = report(event("checkpoint", 1, blocking_ms="fast"), event("checkpoint", 2), event("unknown", 3))
    assert told.checkpoints.made == 1
    assert told.interval is None


def test_the_interval_that_daly_gives_for_the_measured_costs() -> None:
    """d from the saves; M as the operator has it, from training time, interruptions, and one assumed."""
    advice = report(save(10, 100), save(20, 152), save(30, 214, durable_ms=4000)).interval
    assert advice.interruptions == 3
    assert advice.mtbf_seconds == (3600 + 900) / 4
    assert advice.blocking_seconds == 2.0
    assert advice.recommended_seconds == pytest.approx(daly_interval(2.0, 1125.0))
    assert advice.recommended_steps == round(advice.recommended_seconds / 0.5)
    assert (advice.used_seconds, advice.used_steps) == (55.0, 110)
    assert advice.expected_goodput_recommended > advice.expected_goodput_used


def test_the_interval_is_never_shorter_than_a_save_takes_to_become_durable() -> None:
    """Advice that cannot be followed is no advice."""
    advice = report(save(10, 10, blocking_ms=1, durable_ms=60_000)).interval
    assert advice.recommended_seconds == 60.0


def test_without_interruptions_an_hour_is_assumed_to_begin_with() -> None:
    """A job that ran undisturbed for a minute is not told to save all the time; the count says so."""
    advice = report(save(10, 10), of=status(interruption_counts={"scale": 2})).interval
    assert (advice.interruptions, advice.mtbf_seconds) == (0, 3600 + 900)
    short = status(interruption_counts={}, ledger=ledger(productive=60_000))
    cheap = save(10, 10, blocking_ms=20, durable_ms=30)
    advice = build_report(JOB, short, Lines((cheap,), 0), 60).interval
    assert advice.recommended_seconds > 10
    assert "none yet: an hour to start with" in seen_told(advice)


def test_what_is_recommended_is_what_the_operator_recommends() -> None:
    """The report, the metric and the library: one estimate of M, one cap, and for `auto` one word."""
    newest = CheckpointStatus(
        name="step-00000020.1", step=20, samples=1, at=1, bytes=500, blocking_ms=2000, durable_ms=3000
    )
    word = newest.model_copy(update={"interval_seconds": 77.0})
    for made, saving in itertools.product(
        (newest, word),
        ({}, {"interval": {"steps": 9}}, {"interval": {"seconds": 5}}, {"maxIntervalSeconds": 20}),
    ):
        spec = JobSpec.model_validate({"workers": {"replicas": 1}, "checkpoint": saving})
        of = status(checkpoint=made)
        advice = build_report(JOB, of, Lines((save(20, 20),), 0), AGE, spec.checkpoint).interval
        job = Job("local", "train", "u-1", 1, spec, of)
        assert advice.recommended_seconds == _recommended_interval(job, AGE)


@pytest.mark.parametrize(
    ("history", "changes"),
    [
        ((), {}),
        ((save(10, 10, blocking_ms=0, durable_ms=0),), {}),
        ((save(10, 10),), {"ledger": ledger(queued=1_000_000)}),
    ],
)
def test_nothing_is_recommended_without_a_measurement(
    history: tuple[HistoryEvent, ...], changes: dict[str, object]
) -> None:
    """No save, a save that cost nothing, or no training: no advice rather than an invented one."""
    assert report(*history, of=status(**changes)).interval is None


def test_the_used_interval_is_the_median_gap_within_attempts() -> None:
    """A restart between two saves is not training time; the cost of the save itself is not either."""
    history = [
        save(10, 10),
        save(20, 22),
        save(30, 100, attempt=2),
        save(40, 112, attempt=2),
        save(50, 142, attempt=2),
    ]
    assert used_seconds(history) == 10.0
    assert used_seconds(history[:1]) is None
    assert used_seconds([save(10, 10), save(20, 11)]) is None


def test_the_cost_of_a_restart_is_measured_from_interruptions() -> None:
    """Detection and recovery together; planned endings and unfinished recoveries are left out."""
    endings = (
        Interruption(attempt=1, cause="oom", detect_seconds=1, recover_seconds=5),
        Interruption(attempt=2, cause="hang", detect_seconds=9, recover_seconds=5),
        Interruption(attempt=3, cause="scale", planned=True, recover_seconds=100),
        Interruption(attempt=4, cause="crash", detect_seconds=1),
    )
    assert restart_seconds(status(interruptions=endings)) == 10.0
    assert restart_seconds(status(restart_seconds=7.0)) == 7.0


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        ("worker is gone", -9, "worker is gone (killed by SIGKILL)"),
        ("rank 1 was killed by SIGKILL", -9, "rank 1 was killed by SIGKILL"),
        ("", 1, "exit code 1"),
        ("", 81, "user error, explained in its output"),
        ("no heartbeat", None, "no heartbeat"),
        ("", None, "no details"),
    ],
)
def test_evidence_tells_the_exit_status_once(message: str, code: int | None, text: str) -> None:
    """Message and exit status together, without saying a thing twice."""
    assert evidence(Interruption(attempt=1, cause="crash", message=message, code=code)) == text


@pytest.mark.parametrize(
    ("worker", "rank", "message", "text"),
    [
        ("train-1-1", 1, "no heartbeat", "train-1-1 rank 1: no heartbeat"),
        ("train-1-1", None, "no heartbeat", "train-1-1: no heartbeat"),
        ("train-1-1", 1, "rank 1 on train-1-1: gone", "rank 1 on train-1-1: gone"),
        ("", None, "grow", "grow"),
    ],
)
def test_the_place_of_a_failure_is_told_once(worker: str, rank: int | None, message: str, text: str) -> None:
    """Worker and rank are always named, never twice."""
    ending = Interruption(attempt=1, cause="crash", worker=worker, rank=rank, message=message)
    (item,) = report(of=status(interruptions=(ending,))).endings
    assert sighting(item) == text


def test_endings_are_told_in_the_jobs_own_time() -> None:
    """A table of clock times would need the reader to subtract."""
    ending = Interruption(
        attempt=1, cause="hang", at=120.5, tail=("last line",), rework_steps=3, size_before=2
    )
    told = report(
        of=status(ledger=LedgerStatus(started_at=100_000, settled_at=200_000), interruptions=(ending,))
    )
    (item,) = told.endings
    assert (item.at_seconds, item.rework_steps, item.tail) == (20.5, 3, ("last line",))


def test_endings_that_are_no_longer_kept_are_counted() -> None:
    """Status keeps the newest 50; the report says how many it cannot show."""
    kept = (Interruption(attempt=9, cause="hang"),)
    assert report(of=status(interruptions=kept)).endings_not_shown == 6


def test_a_report_survives_json() -> None:
    """`--json` loses nothing and uses the job's own spelling."""
    told = report(
        save(10, 10), save(20, 30), of=status(interruptions=(Interruption(attempt=1, cause="hang"),))
    )
    plain = told.plain()
    assert Report.model_validate(plain) == told
    assert plain["goodput"]["ageSeconds"] == 1000
    assert report(damaged=3).plain()["damagedLines"] == 3
