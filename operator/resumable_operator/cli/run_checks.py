"""What ``rtj run`` looks at before it starts: better said now than after the first hour."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from resumable_operator.cli.directory_store import own_places
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, did_you_mean, is_run
from resumable_operator.cluster.local import container_environment
from resumable_operator.decide.assign import store_root
from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.errors import StoreMisconfigured
from resumable_training.checkpoint.s3 import split_url
from resumable_training.checkpoint.stores import S3_SCHEME, is_url
from resumable_training.checkpoint.wanted import is_own, without_serial
from resumable_training.contract.manifest import MARKER_FILE, STORE_FILE

_ALREADY = "A job that has resumed from it already goes on without the option"
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
        UsageProblem: it is a path, and there is nothing to resume from; or an URL that can't be one.
    """
    if is_own(without_serial(text)):
        return text
    if is_url(text):
        _require_bucket(text)
        return text
    path = cwd / text
    try:
        there = path.is_dir() if text else False  # of a variable of a shell that is not set: not this one
    except OSError as error:
        raise UsageProblem(f"--resume-from: {text[:200]}: {error.strerror}") from error
    if not there:
        raise UsageProblem(
            f"--resume-from: {text or 'an empty name'} is no step, no checkpoint's name, no URL and no"
            f" directory here. {_ALREADY}"
        )
    if not is_run(path):
        return _require_checkpoint(path)
    checkpoint = RunDir(path).spec().checkpoint
    if checkpoint.s3 is not None:
        return store_root(checkpoint)
    return _require_checkpoint(RunDir(path).checkpoints())


def _require_bucket(url: str) -> None:
    try:
        if not url.startswith(S3_SCHEME):
            raise StoreMisconfigured(f"{url}: checkpoints lie in a directory or in {S3_SCHEME}BUCKET/PREFIX")
        split_url(url)
    except StoreMisconfigured as error:
        raise UsageProblem(f"--resume-from: {error}") from error


def _require_checkpoint(path: Path) -> str:
    """The path of a checkpoint, or of a store: its newest is meant."""
    if any((path / file).is_file() for file in (MARKER_FILE, STORE_FILE)):
        return str(path)
    inside = sorted((marker.parent for marker in path.glob(f"*/{MARKER_FILE}")), reverse=True)
    raise UsageProblem(
        f"--resume-from: {path} is neither a checkpoint nor a job's store"
        f"{did_you_mean(inside or own_places(path))}. {_ALREADY}"
    )


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
