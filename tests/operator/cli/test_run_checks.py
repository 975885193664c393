"""What ``rtj run`` finds wrong with this machine before it starts anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.run_checks import check_directory, check_runnable
from resumable_operator.errors import SpecError
from resumable_operator.model import parse_spec

INHERITED = {"PATH": os.environ["PATH"]}


def look(command: list[str], **container: Any) -> None:
    """``check_runnable`` for a container with this command."""
    template = {"spec": {"containers": [{"command": command, **container}]}}
    check_runnable(parse_spec({"workers": {"replicas": 1}, "template": template}), INHERITED)


def test_programs(tmp_path: Path) -> None:
    """Found on PATH, by path, and below the working directory; else it is said what is missing."""
    program = tmp_path / "train"
    program.write_text("#!/bin/sh\n")
    look(["sh"])
    look(["/bin/sh"])
    with pytest.raises(SpecError, match="not executable"):
        look([str(program)])
    program.chmod(0o755)
    look(["./train"], workingDir=str(tmp_path))
    look(["train"], env=[{"name": "PATH", "value": str(tmp_path)}])
    for missing in ("no-such-program", "./train", str(tmp_path)):
        with pytest.raises(SpecError, match="there is no program"):
            look([missing])


def test_working_directory(tmp_path: Path) -> None:
    """A container's directory need not exist on this machine; that is said."""
    with pytest.raises(SpecError, match="workingDir"):
        look(["sh"], workingDir=str(tmp_path / "app"))


@pytest.mark.parametrize("below", ["file/below", "a\0b", "x" * 300])
def test_directory_that_cannot_be_written(tmp_path: Path, below: str) -> None:
    """One sentence, whatever is wrong with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageProblem, match=r"run directory .* can't be written"):
        check_directory(tmp_path / below, "run directory")
