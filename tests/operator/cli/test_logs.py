"""`rtj logs`: raw output of one rank, led lines of several, and following what grows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from resumable_operator.model import AttemptStatus, JobStatus


@pytest.fixture
def logged(run):
    """Two attempts; the second has two ranks."""
    run.log(1, 0, b"old\n")
    run.log(2, 0, b"zero a\nzero b\n")
    run.log(2, 1, b"one a\nno newline at the end")
    return run


def test_the_newest_attempt_is_shown_with_ranks_in_front(logged, rtj) -> None:
    """Several ranks can be told apart, and a last line without newline is not lost."""
    result = rtj("logs", logged.path)
    assert result.exit_code == 0
    assert result.output == "[2:0] zero a\n[2:0] zero b\n[2:1] one a\n[2:1] no newline at the end\n"


def test_one_rank_is_shown_byte_for_byte(run, rtj) -> None:
    """Progress bars, colours and bytes that are no text come through as they were written."""
    raw = b"\x1b[31mred\x1b[0m\r50%\r100%\n\xff\xfe no newline"
    run.log(1, 3, raw)
    assert rtj("logs", run.path, "--rank", 3).stdout_bytes == raw


def test_an_older_attempt_can_be_chosen(logged, rtj) -> None:
    """The attempt that failed is usually not the newest."""
    assert rtj("logs", logged.path, "--attempt", 1, "--rank", 0).output == "old\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attempt", "7"), "attempt 7 left no logs; there are those of 1, 2"),
        (("--rank", "5"), "rank 5 left no log in attempt 2; there are those of 0, 1"),
        (("--rank", "x"), "not a valid integer"),
        (("--attempt", "0"), "0 is not in the range"),
    ],
)
def test_what_is_not_there_is_a_usage_error_that_says_what_is(
    logged, rtj, arguments: tuple[str, ...], message: str
) -> None:
    """A wrong number is answered with the right ones."""
    result = rtj("logs", logged.path, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_run_without_logs_says_so(run, rtj) -> None:
    """No rank was started yet, or never could be."""
    result = rtj("logs", run.path)
    assert (result.exit_code, result.output) == (
        2,
        f"Error: {run.path} has no logs yet: no rank was started\n",
    )


def test_following_a_run_that_nobody_owns_ends_by_itself(logged, rtj) -> None:
    """All that is there is shown, then there is nothing to wait for."""
    assert rtj("logs", logged.path, "-f", "--rank", "0").output == "zero a\nzero b\n"


def test_following_an_attempt_that_is_over_ends_by_itself(logged, rtj) -> None:
    """A later attempt's output does not belong to it, even while the run goes on."""
    with logged.owned():
        logged.status(JobStatus(phase="Running", attempt=AttemptStatus(number=2, state="running")))
        assert rtj("logs", logged.path, "--follow", "--attempt", "1").output == "[1:0] old\n"


def test_following_shows_what_comes_and_later_attempts_until_the_job_ends(logged) -> None:
    """Lines come as they are written, whole, and a new attempt is followed without asking."""
    running = JobStatus(phase="Running", attempt=AttemptStatus(number=2, state="running"))
    logged.status(running)
    with logged.owned():
        command = [sys.executable, "-m", "resumable_operator.cli.main", "logs", str(logged.path), "-f"]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert [follower.stdout.readline() for _ in range(3)][-1] == "[2:1] one a\n"
            with (logged.path / "logs/attempt-00002/rank-00001.log").open("ab") as file:
                file.write(b", now it has one\n")
            assert follower.stdout.readline() == "[2:1] no newline at the end, now it has one\n"
            logged.log(3, 0, b"third attempt\n")
            assert follower.stdout.readline() == "[3:0] third attempt\n"
            logged.log(3, 1, b"last words")
            logged.status(running.model_copy(update={"phase": "Succeeded"}))
            rest, _ = follower.communicate(timeout=30)
            assert rest == "[3:1] last words\n"
            assert follower.returncode == 0
        finally:
            follower.kill()
            follower.wait()
