"""Synthetic run directories: what `rtj run` leaves behind, without running anything."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fake_session import FakeSession
from run_samples import BEGIN, HISTORY, SPEC, STATUS

from resumable_operator.cli.main import cli
from resumable_operator.model import JobStatus


class Run:
    """A run directory that a test fills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def job(self, spec: Any = SPEC) -> Run:
        job = {"namespace": "local", "name": "train", "uid": "u-1", "created": BEGIN, "spec": spec}
        (self.path / "job.json").write_text(json.dumps(job))
        return self

    def status(self, status: JobStatus = STATUS) -> Run:
        text = json.dumps({"resourceVersion": 7, "status": status.plain()})
        (self.path / "status.json").write_text(text)
        return self

    def history(self, *lines: dict[str, Any] | str) -> Run:
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (self.path / "history.jsonl").write_text("\n".join(texts))
        return self

    def log(self, attempt: int, rank: int, text: bytes) -> Path:
        path = self.path / "logs" / f"attempt-{attempt:05d}" / f"rank-{rank:05d}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return path

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the directory as a living `rtj run` does."""
        lock = self.path / "lock"
        lock.write_text(f"{os.getpid()}\n")
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory with a job, a status and a history; nobody runs it."""
    return Run(tmp_path / "run").job().status().history(*HISTORY)


@pytest.fixture
def bare(tmp_path: Path) -> Run:
    """An empty directory."""
    return Run(tmp_path / "bare")


Invoke = Callable[..., Result]


@pytest.fixture
def rtj(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Calls `rtj` with these arguments in a terminal-less process; COLUMNS may be given by `columns`."""

    def invoke(*arguments: str | Path, columns: int | None = None) -> Result:
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        return CliRunner().invoke(cli, [str(argument) for argument in arguments])

    return invoke


UseCluster = Callable[..., FakeSession]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> UseCluster:
    """Call it with what is there at each look; `rtj ... -n team` then looks at that."""

    def use(*states: tuple[Any, list[Any]], logs: dict[str, Any] | None = None) -> FakeSession:
        session = FakeSession(*states, logs=logs)
        monkeypatch.setattr("resumable_operator.cli.cluster_session.Session", lambda place: session)
        return session

    return use
