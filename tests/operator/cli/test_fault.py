"""`rtj fault`: what it says where there is nothing to break."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable_operator.model import JobStatus


def test_a_slip_in_the_name_offers_the_run(run, rtj, tmp_path: Path) -> None:
    """As all commands do that take a run, whatever they do with it."""
    slip = tmp_path / "rnu"
    for command in (
        ["fault", slip, "hang"],
        ["status", slip],
        ["report", slip],
        ["checkpoints", "list", slip],
    ):
        result = rtj(*command)
        assert (result.exit_code, result.output) == (
            2,
            f"Error: {slip}: no such directory; did you mean {run.path}?\n",
        )
    assert "did you mean" not in rtj("fault", tmp_path / "other", "hang").output


def test_a_directory_that_is_no_run_is_said_so(run, rtj) -> None:
    """Not that it should be started."""
    result = rtj("fault", run.path.parent, "hang")
    assert result.exit_code == 2
    assert f"is not a run directory: it has no job.json; did you mean {run.path}?" in result.output


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_job_that_has_ended_is_not_to_be_started_for_it(run, rtj, phase: str) -> None:
    """Its command line would not start a finished one."""
    run.status(JobStatus(phase=phase))
    result = rtj("fault", run.path, "hang")
    assert result.exit_code == 2
    assert f"this job has ended ({phase}), there is nothing to break" in result.output


def test_a_job_that_waits_for_its_command_line(run, rtj) -> None:
    """That one can be started."""
    run.status(JobStatus(phase="Suspended"))
    result = rtj("fault", run.path, "hang")
    assert result.exit_code == 2
    assert "is not running: start it with `rtj run --dir" in result.output
