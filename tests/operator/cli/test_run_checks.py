"""What ``rtj run`` finds wrong with this machine before it starts anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.run_checks import check_directory, check_runnable, resume_source
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


@pytest.mark.parametrize("text", ["1200", "1200#2", "step-00001200.7", "s3://models/gpt"])
def test_what_names_a_resume_point_by_itself_stays(tmp_path: Path, text: str) -> None:
    """Steps, names and URLs mean the same wherever ranks start."""
    assert resume_source(text, tmp_path) == text


def test_a_resume_point_by_its_path(run, tmp_path: Path) -> None:
    """Absolute for ranks that start elsewhere; a run stands for its store; a slip is told now."""
    checkpoint = run.path / "checkpoints" / "step-00000010.1"
    checkpoint.mkdir(parents=True)
    (checkpoint / ".metadata").write_bytes(b"marker")
    (run.path / "checkpoints" / "store.json").write_bytes(b"{}")
    assert resume_source(str(checkpoint.relative_to(tmp_path)), tmp_path) == str(checkpoint)
    assert resume_source(run.path.name, tmp_path) == str(run.path / "checkpoints")
    with pytest.raises(UsageProblem, match="--resume-from: runs/gtp is no step"):
        resume_source("runs/gtp", tmp_path)


def test_nothing_to_resume_from_is_told_before_anything_starts(run, tmp_path: Path) -> None:
    """Nothing there, no checkpoint in it, or one deeper; an URL that can't be one."""
    copies = tmp_path / "copies"
    for number in (1, 2):
        (copies / f"step-0000001{number}.1").mkdir(parents=True)
        (copies / f"step-0000001{number}.1" / ".metadata").write_bytes(b"marker")
    for text, words in (
        ("", "an empty name is no step"),
        ("x" * 5000, "File name too long"),
        (str(run.path), "checkpoints is neither a checkpoint nor a job's store"),
        (str(copies), f"did you mean {copies}/step-00000012.1 or {copies}/step-00000011.1?"),
        ("s3://", "--resume-from: s3:// is not of the form s3://BUCKET/PREFIX"),
        ("gs://bucket/x", "--resume-from: gs://bucket/x: checkpoints lie in a directory or in s3://"),
    ):
        with pytest.raises(UsageProblem) as told:
            resume_source(text, tmp_path)
        assert words in str(told.value)
        assert len(str(told.value)) < 500


def test_the_store_of_a_run_may_be_a_bucket(bare) -> None:
    """Then that is where its newest checkpoint is."""
    bare.job({"workers": {"replicas": 1}, "checkpoint": {"s3": {"bucket": "models", "prefix": "gpt"}}})
    assert resume_source(str(bare.path), Path("/")) == "s3://models/gpt"
