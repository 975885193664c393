"""Two misfortunes at once: a killed save and a full disk, a clock that was set back between attempts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from engine_job import Job, make_state, save, start, weight

from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.manifest import MARKER_FILE


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


def used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("step-*/*"))


def test_what_a_kill_left_does_not_fill_the_disk_for_ever(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two, a good one and what a killed save left: two saves fail, then that makes room."""
    start(job, 1, 10, 20)
    assert isinstance(job.root, Path)
    one = used(job.root) // 2
    (job.root / "step-00000020.1" / MARKER_FILE).unlink()  # it was killed just before
    real = LocalStore.open_write

    def full(self: LocalStore, name: str, *arguments: Any) -> Any:
        if used(self.root) + one > 2.5 * one:
            raise StorageUnavailable(f"{name}: No space left on device")
        return real(self, name, *arguments)

    monkeypatch.setattr(LocalStore, "open_write", full)
    engine = job.engine(2)
    report = engine.restore(make_state())
    assert report is not None
    assert report.step == 10
    assert [save(engine, step).ok for step in (20, 30, 40, 50)] == [False, False, True, False]
    assert job.resume_points == ["step-00000040.2", "step-00000010.1"]


def test_a_clock_that_is_set_back_changes_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, between two attempts: order, resume point and retention follow numbers, not times."""
    start(job, 1, 10, 20)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600.0)
    engine = job.engine(2, keep_last=2)
    restored = make_state()
    report = engine.restore(restored)
    assert report is not None
    assert (report.checkpoint, weight(restored)) == ("step-00000020.1", 20.0)
    assert all(save(engine, step).ok for step in (30, 40))
    assert job.resume_points == ["step-00000040.2", "step-00000030.2"]
    listed = list_checkpoints(job.store, time.time())
    assert [one.name for one in listed if one.resumable] == job.resume_points
    assert all(one.age_seconds >= 0.0 for one in listed)
    monkeypatch.setattr(time, "time", lambda: real() + 7200.0)
    after = job.engine(3).restore(make_state())
    assert after is not None
    assert after.checkpoint == "step-00000040.2"
