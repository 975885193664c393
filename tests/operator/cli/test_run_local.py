"""What may be continued in a run directory, and in which state a failed job starts again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.run import _resume_point, endings_told, failure_tail
from resumable_operator.cli.run_local import after_a_kill, check_continuation, check_fresh, reopened
from resumable_operator.cli.run_options import Options, Wish, from_options
from resumable_operator.cluster.local_files import holding_store
from resumable_operator.decide.ledger import enter, open_ledger, settle
from resumable_operator.decide.observation import Job
from resumable_operator.errors import UserError
from resumable_operator.model import (
    AttemptStatus,
    BudgetStatus,
    CheckpointStatus,
    Condition,
    Interruption,
    JobStatus,
    parse_spec,
)


def wish(*command: str) -> Wish:
    return from_options(Options(), "train", list(command), Path("/c"), Path("/"))


def job(phase: str, *command: str) -> Job:
    status = JobStatus.model_validate({"phase": phase})
    return Job("local", "train", "uid", 1, wish(*command).spec, status)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, "interruptions: none"),
        ({"hang": 1, "crash": 2}, "interruptions: 2 crash, 1 hang"),
        ({"suspend": 1}, "interruptions: none, planned endings: 1 suspend"),
        ({"suspend": 1, "oom": 1, "scale": 2}, "interruptions: 1 oom, planned endings: 2 scale, 1 suspend"),
    ],
)
def test_what_somebody_planned_is_no_interruption(counts: dict[str, int], told: str) -> None:
    """The line at the end of `rtj run` counts the two apart."""
    assert endings_told(JobStatus(interruption_counts=counts)) == told


@pytest.mark.parametrize("phase", ["Running", "Suspended", "Failed"])
def test_same_script_continues(phase: str) -> None:
    """Whatever state the job was left in, its script goes on, with other arguments too."""
    check_continuation(job(phase, "python", "a.py", "1"), wish("python", "a.py", "2"))


@pytest.mark.parametrize("phase", ["Running", "Suspended", "Failed", "Succeeded"])
def test_other_script_does_not(phase: str) -> None:
    """Another script in the directory is an error that says what to do."""
    with pytest.raises(UsageProblem, match="--fresh"):
        check_continuation(job(phase, "python", "a.py"), wish("python", "b.py"))


def test_finished_with_other_arguments() -> None:
    """A finished job is not trained on by changing its arguments."""
    check_continuation(job("Succeeded", "python", "a.py", "1"), wish("python", "a.py", "1"))
    with pytest.raises(UsageProblem, match="has finished"):
        check_continuation(job("Succeeded", "python", "a.py", "1"), wish("python", "a.py", "2"))


def test_checkpoints_move_only_while_suspended() -> None:
    """A killed run goes on in the store it had; a drained or failed one may get another."""
    for phase, moves in (("Running", False), ("Recovering", False), ("Suspended", True), ("Failed", True)):
        left = job(phase, "python", "a.py")
        left = replace(left, status=left.status.model_copy(update={"store": "/elsewhere"}))
        if moves:
            check_continuation(left, wish("python", "a.py"))
        else:
            with pytest.raises(UsageProblem, match="/elsewhere"):
                check_continuation(left, wish("python", "a.py"))


def test_fresh_does_not_go_on_from_checkpoints_elsewhere(tmp_path: Path) -> None:
    """Starting over moves the run's own store aside; another one that holds something is refused."""
    (tmp_path / "store").mkdir()
    spec = from_options(Options(), "x", ["x"], tmp_path / "store", Path("/")).spec
    check_fresh(spec, tmp_path / "run")
    (tmp_path / "store" / "step-00000010.1").mkdir()
    with pytest.raises(UsageProblem, match="--checkpoint-dir"):
        check_fresh(spec, tmp_path / "run")
    with pytest.raises(UsageProblem, match="--checkpoint-dir"):  # in the run directory, and not moved aside
        check_fresh(spec, tmp_path)
    (tmp_path / "store").rename(tmp_path / "checkpoints")
    check_fresh(from_options(Options(), "x", ["x"], tmp_path / "checkpoints", Path("/")).spec, tmp_path)


def test_fresh_is_refused_over_object_storage(tmp_path: Path) -> None:
    """What lies under a prefix is not looked at, nor moved: the job would go on from it."""
    spec = wish("python", "a.py").spec.plain()
    spec["checkpoint"] = {"s3": {"bucket": "bucket", "prefix": "team"}}
    with pytest.raises(UsageProblem, match=r"s3://bucket/team.*another prefix"):
        check_fresh(parse_spec(spec), tmp_path)


def test_the_time_a_killed_run_was_away_is_nobodys_fault() -> None:
    """Between the last status and the next start the job was suspended, not looking for a failure."""
    ledger = enter(settle(open_ledger(1000), "productive", 5000), "unaccounted", 5000)
    after = after_a_kill(JobStatus(phase="Running", ledger=ledger), 65.0)
    assert after.ledger.phases == {"productive": 4000, "suspended": 60000}
    assert (after.phase, after.ledger.open_phase) == ("Running", "unaccounted")


def test_failed_job_starts_again() -> None:
    """Budgets are fresh, and any save is progress.

    Numbers, checkpoint and ledger stay, and the time since the end is not charged.
    """
    ledger = settle(open_ledger(1000), "productive", 5000)
    checkpoint = CheckpointStatus(name="step-00000010.1", step=10, samples=640, at=3.0)
    failed = JobStatus(
        phase="Failed",
        failure_class="user",
        finished_at=5.0,
        attempt=AttemptStatus(number=4),
        budgets=BudgetStatus(user_error=(1.0, 2.0, 3.0), without_progress=3),
        conditions=(Condition(type="Failed", status="True"), Condition(type="Valid", status="True")),
        checkpoint=checkpoint,
        saved_samples=800,
        ledger=ledger,
    )
    status = reopened(failed)
    assert (status.phase, status.failure_class, status.finished_at) == ("Suspended", None, None)
    assert (status.budgets, status.saved_samples) == (BudgetStatus(), 0)
    assert [condition.type for condition in status.conditions] == ["Valid"]
    assert (status.attempt.number, status.checkpoint) == (4, checkpoint)
    assert (status.ledger.phases, status.ledger.open_phase) == (ledger.phases, "suspended")


@pytest.mark.parametrize(
    ("rank", "live", "shown"),
    [
        (0, "", False),
        (0, None, True),
        (1, "PeerLost: y\n", True),
        (1, "Traceback\nValueError: x\n", False),
        (1, None, True),
    ],
)
def test_first_failure_is_shown_once(rank: int, live: str | None, shown: bool) -> None:
    """The failed rank's last lines are shown at the end, unless rank 0's same were on the screen already."""
    failure = Interruption(attempt=3, cause="crash", rank=rank, tail=("ValueError: x",))
    assert (failure_tail(failure, live) == [f"  [3:{rank}] ValueError: x"]) is shown
    assert failure_tail(None, live) == []


def test_time_away_is_not_detection() -> None:
    """Nobody was there to see that ranks made no progress; an attempt without any has none to move."""
    for last, expected in ((5.0, 65.0), (None, None)):
        status = JobStatus(attempt=AttemptStatus(number=1, state="running", last_progress_at=last))
        assert after_a_kill(status, 65.0).attempt.last_progress_at == expected


def test_a_drained_script_of_its_own_goes_on_from_its_own() -> None:
    """Without the library nobody here knows the checkpoint: it is not called a beginning."""
    assert _resume_point(JobStatus()) == "from the beginning"
    assert _resume_point(JobStatus(uses_library=False)) == "from what the script itself has saved"
    saved = CheckpointStatus(name="step-00000010.1", step=10, samples=80, at=1.0)
    assert _resume_point(JobStatus(checkpoint=saved)) == "from checkpoint step-00000010.1"


def test_one_run_at_a_time_trains_into_a_checkpoint_directory(tmp_path: Path) -> None:
    """Two of one name are one owner to the store; the second is told, and has it when the first has ended."""
    second = holding_store(tmp_path)
    with holding_store(tmp_path), pytest.raises(UserError, match="--checkpoint-dir"):
        second.__enter__()
    with holding_store(tmp_path):
        pass
