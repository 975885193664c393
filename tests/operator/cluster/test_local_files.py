"""The run directory's files: damaged, missing, unwritable, and set aside."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from resumable_operator.clock import SystemClock
from resumable_operator.cluster import local_store
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_control import ControlServer
from resumable_operator.cluster.local_files import RunFiles, load_or_make_key
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.cluster.local_processes import recorded_processes
from resumable_operator.cluster.local_store import JobStore, StoreUnwritable
from resumable_operator.errors import FatalError
from resumable_operator.model import JobSpec

SPEC = JobSpec.model_validate(
    {"workers": {"replicas": 1}, "template": {"spec": {"containers": [{"command": ["true"]}]}}}
)
NONSENSE = ["", "{", "[]", "null", "5", '"x"', "{}", "\x00\x00\x00", '{"spec": {}}', '{"status": []}']


def cluster_in(directory: Path, told: list[str] | None = None) -> LocalCluster:
    return LocalCluster(
        directory,
        SystemClock(),
        Machines(1, 1),
        on_event=lambda _kind, reason, _message: None if told is None else told.append(reason),
    )


@pytest.mark.parametrize("content", ["", "\n", "zz", "abcd", "\x00" * 64])
def test_key_that_cannot_be_used_is_made_again(tmp_path: Path, content: str) -> None:
    """A key file that a crash left empty, or that somebody broke, does not end the run directory's life."""
    path = tmp_path / "key"
    path.write_text(content)
    key = load_or_make_key(path)
    assert len(key) == 32
    assert load_or_make_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600


def test_key_is_closed_to_others_again(tmp_path: Path) -> None:
    """A key copied with looser permissions is kept, and closed."""
    path = tmp_path / "key"
    key = load_or_make_key(path)
    path.chmod(0o644)
    assert load_or_make_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [*NONSENSE, '{"pid": -1, "start_ticks": 1}', '{"ranks": {"a": 1}}'])
async def test_hints_may_be_damaged(tmp_path: Path, content: str) -> None:
    """Files that only help to find leftovers are not missed; they name no process that must not be hit."""
    files = RunFiles(tmp_path / "run")
    directory = files.worker("job-0-1")
    directory.mkdir(parents=True)
    for path in (files.cluster, directory / "agent.json", directory / "ranks.json"):
        path.write_text(content)
    assert recorded_processes(directory) == []
    async with cluster_in(files.root) as cluster, ControlServer(cluster.files, 1, _refuse):
        assert cluster.submit("job", SPEC).generation == 1


@pytest.mark.parametrize("content", NONSENSE)
@pytest.mark.parametrize("name", ["job", "status"])
def test_damaged_job_is_said_to_be_damaged(tmp_path: Path, name: str, content: str) -> None:
    """Neither a traceback nor, for a status, a start from nothing: it says to start over."""
    files = RunFiles(tmp_path)
    store = JobStore(files, SystemClock())
    store.submit("job", SPEC)
    path = files.job if name == "job" else files.status
    path.write_text(content)
    with pytest.raises(FatalError, match="start over with --fresh"):
        store.job()


def test_missing_status_of_a_run_that_began(tmp_path: Path) -> None:
    """Attempts must not be numbered from 1 again; before the first attempt there may be no status."""
    files = RunFiles(tmp_path)
    store = JobStore(files, SystemClock())
    assert store.submit("job", SPEC).status.attempt.number == 0
    files.log(1, 0).parent.mkdir(parents=True)
    with pytest.raises(FatalError, match="missing; start over with --fresh"):
        store.job()


def test_set_aside_never_meets_an_earlier_one(tmp_path: Path) -> None:
    """Earlier runs may have been removed in any order."""
    files = RunFiles(tmp_path)
    for expected in ("old-1", "old-2"):
        files.job.write_text("{}")
        aside = files.set_aside()
        assert aside == tmp_path / expected
        files.workers.rmdir()
    (tmp_path / "old-1" / "job.json").unlink()
    (tmp_path / "old-1").rmdir()
    files.job.write_text("{}")
    assert files.set_aside() == tmp_path / "old-1"


async def test_full_disk_is_told_once_and_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that can't be written is an error to retry, a warning to the user once, and then over."""
    told: list[str] = []
    async with cluster_in(tmp_path, told) as cluster:
        job = cluster.submit("job", SPEC)
        with monkeypatch.context() as patched:
            patched.setattr(local_store, "write_json", _full)
            patched.setattr(local_store, "append_lines", _full)
            for _ in range(2):
                with pytest.raises(StoreUnwritable, match="No space left"):
                    await cluster.write_status(job, job.status)
            with pytest.raises(StoreUnwritable):
                cluster.submit("job", SPEC.model_copy(update={"suspend": True}))
            cluster.store.record_history([])
        stored = await cluster.write_status(job, job.status.model_copy(update={"step": 5}))
        assert stored.status.step == 5
    assert told == ["StatusNotWritten", "StatusWritten"]


async def test_run_directory_that_is_removed_ends_the_run(tmp_path: Path) -> None:
    """A job whose files are gone is no job that has ended: there is nowhere to write what happens."""
    async with cluster_in(tmp_path) as cluster:
        job = cluster.submit("job", SPEC)
        cluster.files.job.unlink()
        for look in (cluster.jobs(), cluster.job(job.key), cluster.write_status(job, job.status)):
            with pytest.raises(FatalError, match="was removed"):
                await look


def _full(_path: Path, _value: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def _refuse(_plain: dict[str, Any]) -> dict[str, Any]:
    return {"ok": False}


def test_what_suspended_a_job_is_kept_until_it_goes_on(tmp_path: Path) -> None:
    """Whoever reads the run directory later, a continued `rtj run` or a person, knows it."""
    files = RunFiles(tmp_path)
    store = JobStore(files, SystemClock())
    assert store.submit("x", SPEC).suspended_by == ""
    assert store.submit("x", SPEC.model_copy(update={"suspend": True}), "Ctrl-C").suspended_by == "Ctrl-C"
    assert store.submit("x", SPEC).suspended_by == ""
