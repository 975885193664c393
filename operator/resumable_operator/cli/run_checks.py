"""What ``rtj run`` looks at before it starts: better said now than after the first hour."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cluster.local import container_environment
from resumable_operator.decide.assign import store_root
from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.wanted import is_own, without_serial

_CONTAINER = "spec.template.spec.containers[]"


def check_program(script: str | None, module: str | None, cwd: Path) -> None:
    """A script or module was named, and it is there.

    Raises:
        UsageProblem, click.UsageError
    """
    if not script and module is None:
        raise click.UsageError("give a script, -m MODULE, or a job's YAML file")
    if module is not None:
        top = module.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [str(cwd), *sys.path]) is None:
            raise UsageProblem(f"there is no Python module {top}")
    elif script and (script.endswith(".py") or os.sep in script) and not (cwd / script).is_file():
        raise UsageProblem(f"{script}: no such file")


def check_runnable(spec: JobSpec, inherited: dict[str, str]) -> None:
    """The program and the directory that it starts in are on this machine.

    Args:
        inherited: environment of ranks beside the container's own.

    Raises:
        SpecError: they are not.
    """
    container = spec.worker_container()
    directory = Path(container.get("workingDir") or Path.cwd())
    if not directory.is_dir():
        raise SpecError(f"{_CONTAINER}.workingDir", f"{directory} is no directory on this machine")
    program = spec.command()[0]
    path = {**inherited, **container_environment(container)}.get("PATH")
    place = str(directory / program) if os.sep in program else program
    if shutil.which(place, path=path) is not None:
        return
    if os.sep in program and Path(place).is_file():
        raise SpecError(f"{_CONTAINER}.command", f"{program} is not executable (chmod +x)")
    raise SpecError(f"{_CONTAINER}.command", f"there is no program {program} on this machine")


def resume_source(text: str, cwd: Path) -> str:
    """What ``--resume-from`` means to ranks, which start elsewhere: a run stands for its store.

    Raises:
        UsageProblem: it is a path, and there is nothing.
    """
    if "://" in text or is_own(without_serial(text)):
        return text
    path = cwd / text
    if not path.is_dir():
        raise UsageProblem(
            f"--resume-from: {text} is no step, no checkpoint's name, no URL and no directory here."
            " A job that has resumed from it already goes on without the option"
        )
    if not is_run(path):
        return str(path)
    checkpoint = RunDir(path).spec().checkpoint
    return store_root(checkpoint) if checkpoint.s3 is not None else str(RunDir(path).checkpoints())


def store_of(spec: JobSpec) -> Path:
    """The checkpoint directory of a job that runs on one machine."""
    assert spec.checkpoint.directory is not None
    return Path(spec.checkpoint.directory.path)


def check_directory(path: Path, what: str) -> None:
    """It can be made and written.

    Raises:
        UsageProblem: it can't.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"probe")
            file.flush()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        why = getattr(error, "strerror", None) or error
        raise UsageProblem(f"{what} {str(path)!r} can't be written: {why}") from error
