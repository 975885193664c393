"""When a rank's writer starts: after the attempt's first step, which it would slow down."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_job import make_state, save
from test_async import AsyncJob, eventually

from resumable_training.checkpoint import CheckpointEngine, Reached, writer
from resumable_training.checkpoint.writer import WriterProcess
from resumable_training.contract import env

MUTE = """
import socket, sys
rank = socket.socket(fileno=int(sys.argv[-1]))
while rank.recv(4096):
    pass
"""


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], CheckpointEngine]]:
    """An attempt that is about to do its first step; its writer is killed at the end."""
    job = AsyncJob(tmp_path / "store", host="127.0.0.1")

    def begin() -> CheckpointEngine:
        engine = job.engine(1)
        engine.restore(make_state())
        return engine

    yield begin
    for engine in job.engines:
        process = process_of(engine)
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)
        engine.close()


def process_of(engine: CheckpointEngine) -> WriterProcess | None:
    process: WriterProcess | None = engine._saver._process  # type: ignore[attr-defined]
    return process


def copy(engine: CheckpointEngine, step: int) -> bool:
    return engine.copy(make_state(step), Reached(step, step * 8))


def test_it_starts_when_the_first_step_is_done(begin: Callable[[], CheckpointEngine]) -> None:
    """At the first look whether a save has landed; the first save finds it there."""
    engine = begin()
    assert process_of(engine) is None
    assert engine.poll() is None
    process = process_of(engine)
    assert process is not None
    assert save(engine, 2).ok
    assert engine.wait().ok  # type: ignore[union-attr]
    assert process_of(engine) is process


def test_who_asks_is_told_when_it_is_up(begin: Callable[[], CheckpointEngine]) -> None:
    """Not before it was started; without another look at saves."""
    engine = begin()
    assert not engine.standing
    engine.poll()
    eventually(lambda: engine.standing)


def test_an_attempt_that_ends_before_it_needs_none(begin: Callable[[], CheckpointEngine]) -> None:
    """It has nothing to end."""
    engine = begin()
    assert not engine.busy
    engine.land(1.0)
    assert engine.close() is None
    assert process_of(engine) is None


def test_no_copy_waits_for_a_writer(
    begin: Callable[[], CheckpointEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not come up is never waited for: steps go on, and nothing is held."""
    waits: list[float] = []
    messages = WriterProcess.messages

    def noted(self: WriterProcess, seconds: float = 0.0) -> list[Any]:
        waits.append(seconds)
        return messages(self, seconds)

    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    monkeypatch.setattr(writer, "PROGRAM", MUTE)
    monkeypatch.setattr(WriterProcess, "messages", noted)
    engine = begin()
    assert not any(copy(engine, step) for step in range(1, 4))
    assert engine.can_copy
    assert not engine.standing
    assert set(waits) == {0.0}


def test_a_writer_that_ends_at_once_is_not_hoped_for(
    begin: Callable[[], CheckpointEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found at a copy as at a save: from then on saves stop training, and nothing is copied."""
    monkeypatch.setenv(env.KEEPER, str(tmp_path / "nobody"))
    monkeypatch.setattr(writer, "PROGRAM", "raise SystemExit(3)")
    engine = begin()
    eventually(lambda: not copy(engine, 1) and not engine.can_copy)
    assert process_of(engine) is None
    assert engine.standing  # such saves wait for nothing to come up
    assert save(engine, 2).durable


def test_one_that_ended_before_the_first_save_is_replaced(begin: Callable[[], CheckpointEngine]) -> None:
    """As it would be later: that save is not made to stop training, nor all that follow."""
    engine = begin()
    engine.poll()
    eventually(lambda: engine.standing)
    first = process_of(engine)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    report = save(engine, 2)
    assert report.ok
    assert not report.durable  # it has only begun
    assert engine.wait().ok  # type: ignore[union-attr]
    assert process_of(engine) is not first


def test_none_is_started_when_all_is_over(begin: Callable[[], CheckpointEngine]) -> None:
    """By whoever looks once more whether something has landed."""
    engine = begin()
    engine.close()
    assert engine.poll() is None
    assert process_of(engine) is None
