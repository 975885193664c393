"""What `rtj` exits with, and that users' errors are one line instead of a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from resumable_operator.cli import exitcodes
from resumable_operator.cli.exitcodes import UsageProblem, for_error, for_status
from resumable_operator.cli.main import LazyGroup, cli
from resumable_operator.cli.place import PLUGIN
from resumable_operator.errors import (
    AgentRefused,
    AgentUnreachable,
    ConflictError,
    FatalError,
    ResumableError,
    RetryableError,
    SpecError,
    UserError,
)
from resumable_operator.model import JobStatus

CLI_PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
ERRORS = [
    (UserError("script raised"), 3),
    (SpecError("spec.workers.min", "above max"), 2),
    (UsageProblem("no such directory"), 2),
    (RetryableError("disk away"), 6),
    (ConflictError("newer"), 6),
    (AgentUnreachable("silent"), 6),
    (AgentRefused("older_attempt", "no"), 6),
    (FatalError("ours"), 6),
]


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_each_error_has_its_code(error: ResumableError, code: int) -> None:
    """The code follows from what the caller should do about the error."""
    assert for_error(error) == code


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_an_error_of_ours_is_one_line_on_stderr(error: ResumableError, code: int) -> None:
    """A user sees what is wrong and how to mend it, not where our code was."""

    @click.group(cls=LazyGroup)
    def group() -> None: ...

    def fail(*_: object) -> click.Command:
        raise error

    group.get_command = fail  # type: ignore[method-assign,assignment]
    result = CliRunner().invoke(group, ["anything"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == f"Error: {error}\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"phase": "Succeeded"}, 0),
        ({"phase": "Failed", "failure_class": "user"}, 3),
        ({"phase": "Failed", "failure_class": "budget"}, 4),
        ({"phase": "Failed", "failure_class": "deadline"}, 4),
        ({"phase": "Suspended"}, 5),
        ({"phase": "Failed"}, 6),
        ({"phase": "Running"}, 6),
    ],
)
def test_each_end_of_a_job_has_its_code(fields: dict[str, str], code: int) -> None:
    """A user error, a spent budget, a drain and our own trouble differ for a shell script."""
    assert for_status(JobStatus.model_validate(fields)) == code


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["status"], ["status", "--nonsense", "x"], ["--nonsense"]]
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    """The shell's convention: 2."""
    assert CliRunner().invoke(cli, arguments).exit_code == exitcodes.USAGE


def test_help_documents_every_exit_code() -> None:
    """What a script may test for is written where people look."""
    output = CliRunner().invoke(cli, ["--help"]).output
    for code, meaning in exitcodes.MEANING.items():
        assert f"{code}  {meaning.split(':')[0]}" in output


def test_a_drain_promises_nothing_of_what_was_lost_before_it() -> None:
    """Ranks died, and before the next attempt had begun the job was stopped: 5, though steps are redone."""
    attempt = {"number": 2, "drain_cause": "suspend", "reserved_at": 10.0, "restored": False}
    lost = {"attempt": attempt, "step": 15, "uses_library": True}
    status = JobStatus.model_validate({"phase": "Suspended", **lost})
    assert for_status(status) == exitcodes.DRAINED
    promise = "(steps that an interruption before it cost are not counted"
    output = CliRunner().invoke(cli, ["--help"]).output
    assert promise in " ".join(output.split())
    (row,) = [line for line in CLI_PAGE.read_text().splitlines() if line.startswith("| `5` ")]
    assert promise in row


def test_kubectl_documents_the_codes_that_can_come() -> None:
    """No job ends in a command that only looks at one."""
    output = CliRunner().invoke(cli, ["--help"], prog_name=PLUGIN).output
    listed = output.partition("Exit codes:")[2].split("\n")
    assert [line.split()[0] for line in listed if line.strip()] == ["0", "1", "2", "6"]
    assert "demo" not in output


def test_an_unforeseen_error_is_internal_and_keeps_its_traceback() -> None:
    """A bug of ours must not look like the user's, and must be reportable."""
    code = (
        "import sys; from resumable_operator.cli import main as m\n"
        "sys.argv = ['rtj', 'status', 'x']\n"
        "m.LazyGroup.get_command = lambda *a: 1 / 0\n"
        "m.main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == exitcodes.INTERNAL
    assert "ZeroDivisionError" in result.stderr
