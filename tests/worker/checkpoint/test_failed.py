"""What a save that failed leaves: removed, named where it can't be, and not mistaken for a full disk."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_job import Job, make_state, save

from resumable_training.checkpoint import save as saving
from resumable_training.checkpoint import writer, writer_main
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.local import LocalStore

NAME = "step-00000001.1"
STUCK = """
import sys; sys.path.append(sys.argv.pop(1))
from resumable_training.checkpoint import writer_main
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.local import LocalStore

def refuse(*arguments, **options):
    raise StorageUnavailable("device busy")

LocalStore.delete_tree = writer_main.commit = refuse
writer_main.main()
"""


def refuse(*_: Any, **__: Any) -> Any:
    raise StorageUnavailable("device busy")


@pytest.mark.parametrize("background", [True, False])
def test_a_directory_that_stays_is_named(
    tmp_path: Path, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second save of that step writes nothing into it, and fails with its name."""
    monkeypatch.setattr(writer, "PROGRAM", STUCK)
    job = Job(tmp_path / "store", host="127.0.0.1" if background else None)
    engine = job.engine(1)
    engine.restore(make_state())
    if not background:
        monkeypatch.setattr(LocalStore, "delete_tree", refuse)
        monkeypatch.setattr(saving, "commit", refuse)
    messages = []
    for _ in range(2):
        save(engine, 1)
        report = engine.wait()
        assert report is not None
        assert not report.ok
        messages.append(report.message)
    engine.close()
    assert messages[0].startswith(f"device busy; {NAME} could not be removed")
    assert f"{NAME} exists already" in messages[1]
    assert job.resume_points == []


@pytest.fixture
def rank_0s_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[writer_main.Writer]:
    """In this process, which gives way to nobody."""
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        made = writer_main.Writer(theirs, os.getppid())
        begin = {"rank": 0, "world_size": 1, "store": str(tmp_path), "secret": "", "host": "", "port": 0}
        made._on_begin({"kind": "begin", **begin, "listener": -1})
        yield made


@pytest.mark.parametrize(
    ("outcome", "short"),
    [
        ({"ok": True}, False),
        ({"ok": False, "message": "No space left on device", "unlike": False}, True),
        ({"ok": False, "message": "rank 1 holds others", "unlike": True}, False),
        ({"ok": False, "message": "record 2 is newer", "superseded": True}, False),
    ],
    ids=["good", "failed", "unlike", "superseded"],
)
def test_only_what_may_be_for_want_of_room_makes_room(
    rank_0s_writer: writer_main.Writer,
    outcome: dict[str, Any],
    short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks that are unlike, or an attempt that was replaced, say nothing of the disk."""
    told: list[bool] = []
    monkeypatch.setattr(rank_0s_writer, "_outcome", lambda message: outcome)
    monkeypatch.setattr(rank_0s_writer._sweeper, "sweep", lambda *_, short, stop: told.append(short) or "")
    rank_0s_writer._on_save({"flight": 1, "name": NAME, "keep_last": 2, "keep_every_steps": None})
    assert told == [short]
