"""Delays between tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.decide.backoff import delay_seconds


@given(uid=st.text(min_size=1), count=st.integers(1, 1000))
def test_bounded_and_fixed(uid: str, count: int) -> None:
    """Never more than 1.5 times the longest, never less than half the first, the same at every pass."""
    delay = delay_seconds(uid, count, 1.0, 60.0)
    assert 0.5 <= delay < 90.0
    assert delay == delay_seconds(uid, count, 1.0, 60.0)


def test_jobs_differ() -> None:
    """Two jobs that block each other come back at different times."""
    assert len({delay_seconds(f"uid-{n}", 1, 30.0, 600.0) for n in range(20)}) == 20
