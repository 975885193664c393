"""Lines of a pod's log: cut, counted, and each seen once however often the reader begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.cli.lines import Cursor, Splitter, is_over
from resumable_operator.model import AttemptStatus, JobStatus


@given(st.lists(st.binary(max_size=5)))
def test_pieces_make_the_same_lines(pieces: list[bytes]) -> None:
    """Wherever the stream is cut, its lines are those of the whole."""
    splitter = Splitter()
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert lines == whole
    assert splitter.rest() == ([rest] if rest else [])
    assert splitter.rest() == []


@given(st.lists(st.integers(0, 3)), st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4))
def test_a_reader_that_begins_anew_sees_each_line_once(
    gaps: list[int], readings: list[tuple[int, int]]
) -> None:
    """The API gives all lines of a second again, many may bear one time; none is lost, none comes twice."""
    times = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    log = [(time, f"line {number}".encode()) for number, time in enumerate(times)]
    cursor, seen = Cursor(), []

    def read(until: int) -> None:
        cursor.begin()
        since = int(cursor.since or 0) // 2 * 2  # the API rounds down
        for time, text in [entry for entry in log[:until] if entry[0] >= since]:
            taken = cursor.take(b"%05d " % time + text)
            seen.extend([] if taken is None else [taken])

    for until, _ in sorted(readings):
        read(until)
    read(len(log))
    assert seen == [text for _, text in log]


def test_lines_out_of_order_are_not_lost() -> None:
    """Two streams of one container may be written down a little out of order; only a new reading skips."""
    cursor = Cursor()
    cursor.begin()
    assert [cursor.take(line) for line in (b"2 b", b"1 a", b"2 c")] == [b"b", b"a", b"c"]
    cursor.begin()
    assert [cursor.take(line) for line in (b"2 b", b"1 a", b"2 c", b"3 d")] == [None, None, None, b"d"]


def test_an_empty_line_is_a_line() -> None:
    """It has a time, and nothing else."""
    cursor = Cursor()
    cursor.begin()
    assert cursor.take(b"2026-11-29T21:10:23.000000001Z ") == b""
    assert cursor.take(b"failed to open log file") == b"to open log file"
    assert cursor.take(b"nonsense") is None


@pytest.mark.parametrize(
    ("phase", "number", "state", "attempt", "over"),
    [
        ("Running", 2, "running", None, False),
        ("Suspended", 2, "ended", None, False),
        ("Succeeded", 2, "ended", None, True),
        ("Failed", 2, "ended", 7, True),
        ("Running", 2, "running", 2, False),
        ("Recovering", 2, "ended", 2, True),
        ("Running", 3, "running", 2, True),
        ("Running", 1, "ended", 2, False),
    ],
)
def test_when_nothing_more_will_be_printed(
    phase: str, number: int, state: str, attempt: int | None, over: bool
) -> None:
    """A job ends for good, an attempt when it ended or another has begun."""
    status = JobStatus.model_validate({"phase": phase, "attempt": AttemptStatus(number=number, state=state)})
    assert is_over(status, attempt) is over
