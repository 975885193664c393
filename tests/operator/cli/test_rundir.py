"""Reading a run directory: wrong ones are named, damaged lines skipped, owners found without locking."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, moment
from resumable_operator.model import JobStatus, LedgerStatus


def test_a_run_directory_gives_back_what_was_written(run) -> None:
    """Job, status and history are read as they were meant."""
    read = RunDir(run.path)
    assert (read.job().namespace, read.job().name, read.job().uid) == ("local", "train", "u-1")
    assert read.spec().workers.max_size == 4
    assert read.status().step == 200
    assert [event.kind for event in read.history().items].count("checkpoint") == 4


def test_a_missing_directory_is_said_so(tmp_path: Path) -> None:
    """The message tells a wrong path from a wrong directory."""
    with pytest.raises(UsageProblem, match="no such directory"):
        RunDir(tmp_path / "nowhere")


def test_a_directory_that_is_no_run_names_what_is_missing_and_what_was_meant(run) -> None:
    """Giving the parent of a run is the common slip: the run is offered."""
    with pytest.raises(UsageProblem, match=rf"no job\.json; did you mean {run.path}\?"):
        RunDir(run.path.parent)


def test_what_lies_inside_a_run_leads_to_the_run(tmp_path: Path) -> None:
    """So does a directory further up."""
    run = tmp_path / "a" / "runs" / "gpt"
    (run / "checkpoints").mkdir(parents=True)
    (run / "job.json").touch()
    for slip in (run / "checkpoints", run.parent, tmp_path / "a"):
        with pytest.raises(UsageProblem, match=rf"no job\.json; did you mean {run}\?"):
            RunDir(slip)


def test_an_empty_directory_says_how_a_run_is_made(bare) -> None:
    """A newcomer is told the command."""
    with pytest.raises(UsageProblem, match="rtj run --dir RUN"):
        RunDir(bare.path)


def test_a_run_without_status_has_none(bare) -> None:
    """Between creation and the first pass there is nothing to tell."""
    assert RunDir(bare.job().path).status() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": 3}', '{"status": {"phase": "Dreaming"}}'])
def test_a_damaged_status_is_an_error_that_names_the_file(run, text: str) -> None:
    """Nobody is shown a made-up status."""
    (run.path / "status.json").write_text(text)
    with pytest.raises(UsageProblem, match=r"status\.json"):
        RunDir(run.path).status()


@pytest.mark.parametrize(
    "text", ["", "nothing", "{}", '{"namespace": "local", "name": "x", "uid": "u", "spec": 3}']
)
def test_a_damaged_job_is_an_error_that_names_the_file(bare, text: str) -> None:
    """So is a job."""
    (bare.path / "job.json").write_text(text)
    with pytest.raises(UsageProblem, match=r"job\.json"):
        RunDir(bare.path).job()


def test_broken_lines_of_the_history_are_skipped_and_counted(run) -> None:
    """A kill or a full disk cuts lines off; the rest still counts."""
    good = '{"at": 1.5, "worker": "w", "kind": "warning", "attempt": 1, "data": {"message": "m"}}'
    run.history(
        good, good[:30], "", "null", '{"at": "x"}', '{"at": 1}', good.replace("1.5", "2.5"), '{"at": 3, '
    )
    history = RunDir(run.path).history()
    assert [event.at for event in history.items] == [1.5, 2.5]
    assert history.damaged == 5


def test_bytes_that_are_no_text_are_a_damaged_line(run) -> None:
    """A hole that a crash left in the file (zeros) is one damaged line."""
    (run.path / "history.jsonl").write_bytes(b"\0\0\0\xff\xfe\n")
    assert RunDir(run.path).history().damaged == 1


def test_a_missing_history_is_empty(bare) -> None:
    """A run that did nothing yet has told nothing."""
    read = RunDir(bare.job().path)
    assert (read.history().items, read.notices().items) == ((), ())


def test_notices_are_read(run) -> None:
    """What people were told can be shown again."""
    (run.path / "events.jsonl").write_text(
        '{"at": 1, "kind": "Normal", "reason": "Grew", "message": "to 3"}\n'
    )
    (notice,) = RunDir(run.path).notices().items
    assert (notice.reason, notice.message) == ("Grew", "to 3")


def test_the_owner_is_who_holds_the_lock(run) -> None:
    """A lock file alone means nothing: its writer may be dead and its number reused."""
    lock = run.path / "lock"
    assert RunDir(run.path).owner() is None
    lock.write_text(f"{os.getpid()}\n")
    assert RunDir(run.path).owner() is None
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert RunDir(run.path).owner() == os.getpid()
    assert RunDir(run.path).owner() is None


@pytest.mark.parametrize("text", ["", "soon", "-"])
def test_a_lock_file_that_says_nothing_is_nobodys(run, text: str) -> None:
    """Between making and filling it there is no owner to name."""
    (run.path / "lock").write_text(text)
    assert RunDir(run.path).owner() is None


def test_the_checkpoints_are_the_runs_own_or_the_specs(bare, tmp_path: Path) -> None:
    """`spec.checkpoint.directory` moves the store out of the run."""
    spec = {"workers": {"replicas": 1}}
    assert RunDir(bare.job(spec).path).checkpoints() == bare.path / "checkpoints"
    elsewhere = {**spec, "checkpoint": {"directory": {"path": str(tmp_path / "far")}}}
    assert RunDir(bare.job(elsewhere).path).checkpoints() == tmp_path / "far"


def test_logs_are_listed_by_number(run) -> None:
    """Other files among the logs are no attempts and no ranks."""
    for attempt, rank in ((1, 0), (10, 2), (10, 0), (2, 0)):
        run.log(attempt, rank, b"")
    (run.path / "logs" / "notes").mkdir()
    (run.path / "logs" / "attempt-00010" / "rank-00001.log.old").touch()
    read = RunDir(run.path)
    assert read.attempts() == (1, 2, 10)
    assert read.ranks(10) == (0, 2)
    assert read.ranks(7) == ()


@pytest.mark.parametrize(
    ("finished_at", "owned", "expected"),
    [(50.0, True, 50.0), (50.0, False, 50.0), (None, True, 99.0), (None, False, 7.0)],
)
def test_a_job_that_nobody_runs_does_not_age(finished_at: float | None, owned: bool, expected: float) -> None:
    """An ended job's clock stopped at its end, an abandoned one's at its last word."""
    status = JobStatus(finished_at=finished_at, ledger=LedgerStatus(settled_at=7000))
    assert moment(status, owned, 99.0) == expected
