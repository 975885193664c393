"""Storage and machines that misbehave while a job saves: what is said, what is resumed, that nothing is lost.

What happens while one reads is in test_read.py, full disks are in test_ranks.py, deaths in test_campaign.py.
"""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import power_loss
import pytest
from engine_job import Job, make_state, save, start, weight
from test_async import AsyncJob, begun, durable, eventually, landed, writer_pid

from resumable_training.checkpoint import CheckpointEngine, Reached, async_save, writer
from resumable_training.checkpoint.documents import Pin, pin
from resumable_training.checkpoint.errors import StorageUnavailable, StoreOwnership, Superseded
from resumable_training.checkpoint.listing import list_checkpoints, survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.store import Entry

NEWEST, BEFORE = "step-00000020.1", "step-00000010.1"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


@pytest.fixture
def async_job(tmp_path: Path) -> Iterator[AsyncJob]:
    job = AsyncJob(tmp_path / "disk" / "store", host="127.0.0.1")
    yield job
    for engine in job.engines:
        engine.close()


# Power ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [power_loss.LOST, power_loss.HOLLOW])
def test_the_power_goes_at_any_moment(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reported is found, what is found is whole, and no moment leaves a store that can't be used."""
    base = tmp_path / "disk"
    base.mkdir()
    disk = power_loss.Disk(base, tmp_path / "images")
    reported = {}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        engine = Job(base / "mount" / "store").engine(1, keep_last=2)
        engine.restore(make_state())
        for step in (1, 2, 3, 4):
            assert save(engine, step).ok
            reported[len(disk.images[power_loss.LOST]) - 1] = step
    disk.close()
    found = [resumed(image / "mount" / "store") for image in disk.images[kind]]
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == 4
    assert all(found[image] >= step for image, step in reported.items())


@pytest.mark.parametrize("kind", [power_loss.LOST, power_loss.HOLLOW])
def test_the_power_goes_while_a_writer_stores(
    kind: str, async_job: AsyncJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same of saves in the background, with their history and retention."""
    base, images = Path(async_job.root).parent, tmp_path / "images"
    here = str(Path(__file__).parent)
    arm = f"import sys; sys.path.append({here!r}); import power_loss; from pathlib import Path"
    monkeypatch.setattr(
        writer,
        "PROGRAM",
        writer.PROGRAM.replace(
            " main()", f" {arm}; power_loss.arm_writer({str(base)!r}, {str(images)!r}); main()"
        ),
    )
    engine = begun(async_job, keep_last=2)
    reported = {}
    for step in (1, 2, 3, 4):
        engine.save(make_state(step), Reached(step, step), history=("{}",))
        assert engine.wait().ok  # type: ignore[union-attr]
        eventually(lambda: not engine.busy or engine.poll())
        reported[len(list(images.glob("*-all"))) - 1] = step
    engine.close()
    found = [resumed(image / "store") for image in sorted(images.glob(f"*-{kind[:3]}"))]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 4)
    assert all(found[image] >= step for image, step in reported.items())


def resumed(root: Path) -> int:
    """The step that an attempt after it resumes from; it can save, too."""
    state = make_state()
    engine = Job(root).engine(2)
    report = engine.restore(state)
    step = report.step if report else 0
    assert report is None or report.fallback == ()
    assert weight(state) == step
    assert save(engine, step + 1).ok
    return step


# Storage ----------------------------------------------------------------------------------------------------


@pytest.fixture
def freeze(async_job: AsyncJob) -> Iterator[tuple[Callable[[bool], None], str]]:
    """Makes the store's file system read-only and writable again, and what errors say meanwhile.

    Without the right to mount it is the store's directory that nothing can be made in.
    """
    disk = Path(async_job.root).parent
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        yield lambda frozen: Path(async_job.root).chmod(0o555 if frozen else 0o755), "Permission denied"
        return
    yield lambda frozen: remount(disk, "ro" if frozen else "rw"), "Read-only file system"
    for engine in async_job.engines:
        engine.close()
    subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_a_file_system_that_becomes_read_only(
    async_job: AsyncJob, freeze: tuple[Callable[[bool], None], str]
) -> None:
    """As after an error of its disk: saves fail with these words, and once it is mended they work."""
    engine = begun(async_job)
    assert durable(engine, 1).ok
    set_frozen, words = freeze
    set_frozen(True)
    for step in (2, 3):
        save(engine, step)
        report = landed(engine)
        assert not report.ok
        assert words in report.message
    assert "2 in a row" in async_job.warnings[-1]
    assert async_job.resume_points == ["step-00000001.1"]
    set_frozen(False)
    assert durable(engine, 4).ok
    assert async_job.resume_points == ["step-00000004.1", "step-00000001.1"]
    assert survey(async_job.store).incomplete == ()


def test_one_waits_for_storage_that_hangs_and_says_so(
    async_job: AsyncJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with the checkpoint and the place; a wait that has an end keeps to it; nothing is given up."""
    engine = begun(async_job)
    assert durable(engine, 1).ok
    monkeypatch.setattr(async_save, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(async_save, "_WAIT_SECONDS", 0.01)
    os.kill(writer_pid(engine), signal.SIGSTOP)
    save(engine, 2)
    engine.land(0.1)
    assert engine.busy
    assert async_job.warnings == []
    go_on = threading.Thread(target=lambda: resume_when(async_job, writer_pid(engine)))
    go_on.start()
    report = engine.wait()
    go_on.join()
    assert report is not None
    assert report.ok
    (said,) = async_job.warnings
    assert f"step-00000002.1 is still being stored in {async_job.root}" in said


def resume_when(job: AsyncJob, writer: int) -> None:
    eventually(lambda: job.warnings)
    os.kill(writer, signal.SIGCONT)


def test_writers_that_are_killed_again_and_again(async_job: AsyncJob) -> None:
    """By the kernel, for memory: a save in flight has failed, with the signal named; each next one works."""
    engine = begun(async_job)
    assert durable(engine, 1).ok
    for step in (2, 4):
        os.kill(writer_pid(engine), signal.SIGSTOP)
        save(engine, step)
        os.kill(writer_pid(engine), signal.SIGKILL)
        report = landed(engine)
        assert not report.ok
        assert "signal 9" in report.message
        assert durable(engine, step + 1).ok
    assert [text.count("was not saved (1 in a row)") for text in async_job.warnings] == [1, 1]
    assert async_job.resume_points[:2] == ["step-00000005.1", "step-00000003.1"]
    assert survey(async_job.store).incomplete == ()


def test_small_shared_memory_is_no_trouble(async_job: AsyncJob) -> None:
    """Containers have 64 MB of /dev/shm: neither the rank nor its writer has anything there."""
    engine = begun(async_job)
    assert durable(engine, 1).ok
    for pid in (os.getpid(), writer_pid(engine)):
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "memfd:resumable-checkpoint" in maps
        assert not [line for line in maps.splitlines() if "/dev/shm/resumable" in line]


# Files ------------------------------------------------------------------------------------------------------


def swap(root: Path, file: str) -> None:
    """The newest checkpoint's file becomes that of the one before."""
    name = next(path.name for path in (root / NEWEST).glob(file))
    shutil.copyfile(root / BEFORE / name, root / NEWEST / name)


def fill(file: str, byte: bytes) -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        path = next((root / NEWEST).glob(file))
        path.write_bytes(byte * path.stat().st_size)

    return harm


HARMS: dict[str, Callable[[Path], None]] = {
    "another checkpoint's shard": lambda root: swap(root, "*.distcp"),
    "another checkpoint's marker": lambda root: swap(root, ".metadata"),
    "a shard of zeros": fill("*.distcp", b"\0"),
    "a marker of zeros": fill(".metadata", b"\0"),
    "a manifest of blanks": fill("manifest.json", b" "),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_was_replaced_by_one_of_the_same_size(job: Job, harm: str) -> None:
    """Its checkpoint is passed over with a reason, the one before is resumed and the chain goes on."""
    start(job, 1, 10, 20)
    sizes = {path: path.stat().st_size for path in (Path(job.root) / NEWEST).iterdir()}
    HARMS[harm](Path(job.root))
    assert {path: path.stat().st_size for path in (Path(job.root) / NEWEST).iterdir()} == sizes
    state, engine = make_state(), job.engine(2)
    report = engine.restore(state)
    assert report is not None
    assert (report.step, weight(state)) == (10, 10)
    assert [one.checkpoint for one in report.fallback] == [NEWEST]
    assert report.fallback[0].why
    assert any(NEWEST in text and "falling back" in text for text in job.warnings)
    assert save(engine, 11).ok
    assert job.resume_points == ["step-00000011.2", BEFORE]


def test_ten_thousand_strangers_in_a_store(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies and leftovers cost one listing: only what may be a checkpoint is asked for its marker."""
    start(job, 1, 10, 20)
    for number in range(5_000):
        (Path(job.root) / f"step-{number:08d}.1.backup").touch()
        (Path(job.root) / f".tmp-{number}").touch()
    asked: list[str] = []
    real = LocalStore.size

    def size(store: LocalStore, name: str) -> int | None:
        asked.append(name)
        return real(store, name)

    monkeypatch.setattr(LocalStore, "size", size)
    assert survey(job.store).resume_points == [NEWEST, BEFORE]
    assert sorted(asked) == [f"{BEFORE}/.metadata", f"{NEWEST}/.metadata"]


def older(directory: str, without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings of a directory are from a time before ``without`` was there."""
    real = LocalStore.entries

    def entries(store: LocalStore, where: str = "") -> list[Entry]:
        return [one for one in real(store, where) if where != directory or not one.name.startswith(without)]

    monkeypatch.setattr(LocalStore, "entries", entries)


def test_an_old_listing_of_checkpoints_loses_none(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before is resumed; the newest is still there, shown as a branch, and can be gone back to."""
    start(job, 1, 10, 20)
    with monkeypatch.context() as patch:
        older("", NEWEST, patch)
        engine = job.engine(2)
        assert engine.restore(make_state()).step == 10  # type: ignore[union-attr]
    assert save(engine, 11).ok
    assert job.resume_points == ["step-00000011.2", BEFORE]
    (branch,) = [one for one in list_checkpoints(job.store, time.time()) if one.name == NEWEST]
    assert branch.complete
    assert "off the chain: attempt 2 went on from step 10" in branch.why_not
    state = make_state()
    assert job.engine(3, resume_from=NEWEST).restore(state).step == 20  # type: ignore[union-attr]
    assert weight(state) == 20


def test_an_old_listing_of_checkpoints_is_found_out(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the job's status names the newest: listed again, and if that does not help nobody can tell.

    Nothing is changed then, so a later attempt resumes the newest.
    """
    start(job, 1, 10, 20)
    knows = {"known_checkpoint": True, "newest_checkpoint": NEWEST}
    listed: list[str] = []
    real = LocalStore.entries

    def late(store: LocalStore, where: str = "") -> list[Entry]:
        found = real(store, where)
        if where:
            return found
        listed.append(where)
        return found if len(listed) > 2 else [one for one in found if one.name != NEWEST]

    with monkeypatch.context() as patch:
        older("", NEWEST, patch)
        with pytest.raises(StorageUnavailable, match=f"status knows of {NEWEST}.*the listing may be old"):
            job.engine(2, **knows).restore(make_state())
    assert len(survey(job.store).records) == 1
    engine = job.engine(3, **knows)
    monkeypatch.setattr(LocalStore, "entries", late)
    assert engine.restore(make_state()).step == 20  # type: ignore[union-attr]


def test_an_old_listing_of_records_makes_no_second_owner(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not see the newest record takes its number, which is refused: it looks again, and gives up."""
    start(job, 1, 10)
    owner = start(job, 2, 20)
    with monkeypatch.context() as patch:
        older("records", "00000002", patch)
        with pytest.raises(StorageUnavailable, match=r"attempt 2 has just made record 2 .* listing is old"):
            job.engine(3).restore(make_state())
    assert save(owner, 30).ok
    report = job.engine(4).restore(make_state())
    assert report is not None
    assert (report.step, report.record) == (30, 3)


def test_a_zombie_that_was_faster_is_followed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has made the record the newer attempt meant to make: that one takes the next number, and owns."""
    start(job, 1, 10)
    zombie, engine = job.engine(2), job.engine(3)
    real, raced = LocalStore.create, []

    def create(store: LocalStore, name: str, data: bytes) -> None:
        if name.startswith("records/") and not raced:
            raced.append(name)
            zombie.restore(make_state())
        real(store, name, data)

    monkeypatch.setattr(LocalStore, "create", create)
    report = engine.restore(make_state())
    assert report is not None
    assert (report.step, report.record) == (10, 3)
    with pytest.raises(Superseded):
        save(zombie, 11)
    assert save(engine, 11).ok
    assert job.resume_points == ["step-00000011.3", BEFORE]


def test_the_dead_hold_nothing(job: Job) -> None:
    """Pins of attempts that died while they restored go with the next one that has; nobody else's do."""
    start(job, 1, 10)
    held = Pin(BEFORE, job.job, time.time() + 100)
    others = ("restore-uid-4", "restore-uid-2x", "restore-another-1", "reader")
    for name in ("restore-uid-1", "restore-uid-2", *others):
        pin(job.store, name, held)
    job.engine(3).restore(make_state())
    assert [entry.name for entry in job.store.entries("pins")] == sorted(f"{name}.json" for name in others)


# Others -----------------------------------------------------------------------------------------------------


def test_two_jobs_that_find_an_empty_store_at_once(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gets it; the other is told whose it is before its first step, and has written nothing there."""
    other = Job(tmp_path / "store", job="local/other", uid="other")
    both = threading.Barrier(2, timeout=30)
    real = LocalStore.create

    def create(store: LocalStore, name: str, data: bytes) -> None:
        if name == "store.json":
            both.wait()
        real(store, name, data)

    monkeypatch.setattr(LocalStore, "create", create)
    outcomes: dict[str, CheckpointEngine | StoreOwnership] = {}
    threads = [threading.Thread(target=claim, args=(one, outcomes)) for one in (job, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [name for name, outcome in outcomes.items() if isinstance(outcome, CheckpointEngine)]
    (error,) = [outcome for outcome in outcomes.values() if isinstance(outcome, StoreOwnership)]
    assert winner in str(error)
    engine = outcomes[winner]
    assert isinstance(engine, CheckpointEngine)
    engine.restore(make_state())
    assert save(engine, 10).ok
    assert job.resume_points == [BEFORE]


def claim(job: Job, outcomes: dict[str, CheckpointEngine | StoreOwnership]) -> None:
    try:
        outcomes[job.job] = job.engine(1)
    except StoreOwnership as error:
        outcomes[job.job] = error
