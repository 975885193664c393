"""When a status is written that nothing obliges to write."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.status_times import (
    LEAST_SHARE,
    PROGRESS_SHARE,
    SOON_SECONDS,
    StatusTimes,
    share_of_interval,
    status_seconds,
)

KEY = "team/gpt"


def times(training: int = 1) -> StatusTimes:
    return StatusTimes(30.0, lambda: training)


def test_a_job_that_was_never_written_is_due() -> None:
    """Also after an operator's restart, which remembers nothing."""
    assert times().wait(KEY, 1000.0) <= 0


def test_a_routine_write_is_followed_by_another_after_the_interval() -> None:
    """Counted from the write; another job's writes are its own."""
    due = times()
    due.written(KEY, 1000.0, for_a_reason=False)
    assert due.wait(KEY, 1012.0) == pytest.approx(18.0)
    assert due.wait("team/other", 1012.0) <= 0


def test_a_write_for_a_reason_is_followed_after_a_share_of_it() -> None:
    """Which differs from job to job."""
    due = times()
    due.written(KEY, 1000.0, for_a_reason=True)
    assert due.wait(KEY, 1000.0) == pytest.approx(30.0 * share_of_interval(KEY))


@given(st.floats(0.0, 100.0), st.booleans())
def test_what_is_for_people_comes_soon_and_never_later_than_it_would(after: float, reason: bool) -> None:
    """At most ``SOON_SECONDS`` from when it changed; an earlier turn is kept."""
    due = times()
    due.written(KEY, 1000.0, for_a_reason=reason)
    before = due.wait(KEY, 1000.0 + after)
    due.soon(KEY, 1000.0 + after)
    assert due.wait(KEY, 1000.0 + after) == pytest.approx(min(before, SOON_SECONDS))


def test_what_is_for_people_makes_no_job_wait_that_is_due() -> None:
    """One that this operator has not written yet stays due, and so does one whose turn has passed."""
    due = times()
    due.soon(KEY, 1000.0)
    assert due.wait(KEY, 1000.0) <= 0
    due.written(KEY, 1000.0, for_a_reason=False)
    due.soon(KEY, 1040.0)
    assert due.wait(KEY, 1040.0) <= 0


def test_progress_of_a_moving_job_waits_for_its_turn() -> None:
    """An attempt that has not told its first step is looked at earlier; none at every report."""
    due = times()
    due.written(KEY, 1000.0, for_a_reason=False)
    assert due.progress_wait(KEY, 1001.0, moving=True) == pytest.approx(29.0)
    assert due.progress_wait(KEY, 1001.0, moving=False) == pytest.approx(30.0 * PROGRESS_SHARE)
    assert due.progress_wait(KEY, 1029.9, moving=True) == pytest.approx(30.0 * PROGRESS_SHARE)


def test_a_job_that_is_gone_is_forgotten() -> None:
    """One that is made anew under its name is written at once."""
    due = times()
    due.written(KEY, 1000.0, for_a_reason=False)
    due.forget(KEY)
    assert due.wait(KEY, 1001.0) <= 0


@pytest.mark.parametrize(
    ("jobs", "seconds"), [(0, 30.0), (1, 30.0), (1000, 30.0), (1200, 30.0), (2400, 60.0)]
)
def test_a_large_fleet_writes_less_often(jobs: int, seconds: float) -> None:
    """So that its routine takes a bounded part of an API server."""
    assert status_seconds(30.0, jobs) == seconds


def test_jobs_write_at_different_times() -> None:
    """What a thousand jobs did at once they write spread evenly, none later than the interval says."""
    shares = [share_of_interval(f"team/gpt-{number:04d}") for number in range(1000)]
    assert min(shares) >= LEAST_SHARE
    assert max(shares) <= 1.0
    width = (1.0 - LEAST_SHARE) / 10
    counts = Counter(int((share - LEAST_SHARE) / width) for share in shares)
    assert max(counts.values()) < 150
