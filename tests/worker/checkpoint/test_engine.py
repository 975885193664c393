"""The engine with one rank: who may write, what is resumed, and what a user is told."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_job import Job, flip, make_state, save, start, weight
from torch import nn

from resumable_training.checkpoint import CheckpointEngine, Reached, TrainingState
from resumable_training.checkpoint.documents import Pin, pin, seal
from resumable_training.checkpoint.errors import (
    NoResumePoint,
    StateMismatch,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    StoreNotFound,
    StoreOwnership,
    Superseded,
)
from resumable_training.checkpoint.lineage import Lineage
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract import exitcodes
from resumable_training.contract.manifest import MARKER_FILE, StoreIdentity


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


# Resume points ------------------------------------------------------------------------------------------


def test_next_attempt_goes_on_from_the_newest(job: Job) -> None:
    """Step, samples, shared values and weights come back; the new record names its parent."""
    start(job, 1, 10, 20)
    state = make_state()
    engine = job.engine(2)
    report = engine.restore(state)
    assert report is not None
    assert (report.checkpoint, report.record, report.step, report.samples) == ("step-00000020.1", 2, 20, 160)
    assert report.shared == {"step": 20}
    assert report.fallback == ()
    assert weight(state) == 20
    assert engine.record is not None
    assert (engine.record.parent, engine.record.parent_step, engine.record.parent_samples) == (
        "step-00000020.1",
        20,
        160,
    )


def test_a_zombie_can_not_win(job: Job) -> None:
    """A commit by an older attempt is refused once a newer record exists, and ignored if it got through."""
    zombie = start(job, 1, 10)
    unaware = start(Job(job.root), 2, 20)
    unaware._guard = lambda: None  # type: ignore[method-assign]  # it looked before the newer record appeared
    start(job, 3, 30)
    with pytest.raises(Superseded, match="record 3"):
        save(zombie, 40)
    assert save(unaware, 50).ok
    assert job.resume_points == ["step-00000030.3", "step-00000020.2", "step-00000010.1"]
    assert job.engine(4).restore(make_state()).step == 30  # type: ignore[union-attr]


def test_an_older_attempt_does_not_even_start(job: Job) -> None:
    """An attempt that was slow to start sees the newer one's record and leaves everything alone."""
    slow = job.engine(1)
    start(job, 2)
    with pytest.raises(Superseded) as caught:
        slow.restore(make_state())
    assert caught.value.exit_code == exitcodes.SUPERSEDED


def test_of_two_writers_of_one_record_one_wins(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw the same chain and create the same number at once: one trains, the other is superseded."""
    together = threading.Barrier(2)
    real = LocalStore.create

    def at_once(self: LocalStore, name: str, data: bytes) -> None:
        if name.startswith("records/"):
            together.wait(30)
        real(self, name, data)

    engines = [job.engine(1), Job(job.root, uid="other").engine(1)]
    monkeypatch.setattr(LocalStore, "create", at_once)
    outcomes: list[str] = []

    def restore(engine: CheckpointEngine) -> None:
        try:
            outcomes.append(str(engine.restore(make_state())))
        except Superseded:
            outcomes.append("superseded")

    threads = [threading.Thread(target=restore, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["None", "superseded"]


def test_a_create_whose_answer_was_lost_is_recognised(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was made, the answer got lost, the retry is refused: the nonce shows that it is ours."""
    engine = job.engine(1)
    real = LocalStore.create
    lost = []

    def create(self: LocalStore, name: str, data: bytes) -> None:
        real(self, name, data)
        if name.startswith("records/") and not lost:
            lost.append(name)
            raise StorageUnavailable("timed out")

    monkeypatch.setattr(LocalStore, "create", create)
    assert engine.restore(make_state()) is None
    assert lost
    assert save(engine, 10).ok


@pytest.mark.parametrize("file", ["__0_0.distcp", "manifest.json", MARKER_FILE])
def test_damage_falls_back_and_says_so(job: Job, file: str) -> None:
    """Proof of damage: the next older one, with the reason in report and warning."""
    start(job, 1, 10, 20)
    flip(job.root / "step-00000020.1" / file)
    state = make_state()
    engine = job.engine(2)
    report = engine.restore(state)
    assert report is not None
    assert report.step == 10
    assert weight(state) == 10
    assert [one.checkpoint for one in report.fallback] == ["step-00000020.1"]
    assert file in report.fallback[0].why
    assert any("step-00000020.1 is damaged" in text for text in job.warnings)
    assert job.resume_points == ["step-00000010.1"]


def test_all_damaged_needs_the_users_word(job: Job) -> None:
    """With nothing whole left the job ends as a user error, and starts afresh only when told to."""
    start(job, 1, 10)
    flip(job.root / "step-00000010.1" / "__0_0.distcp")
    with pytest.raises(NoResumePoint, match="startFresh") as caught:
        job.engine(2).restore(make_state())
    assert caught.value.exit_code == exitcodes.USER_ERROR
    assert job.engine(3, start_fresh=True).restore(make_state()) is None
    assert job.resume_points == []


def test_cannot_tell_never_falls_back(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read error is retried, then ends the attempt as infrastructure; nothing is orphaned."""
    start(job, 1, 10, 20)
    real = LocalStore.read_into
    tries = []

    def broken(self: LocalStore, name: str, offset: int, place: memoryview) -> int:
        if name == "step-00000020.1/__0_0.distcp":
            tries.append(name)
            raise StorageUnavailable("Input/output error")
        return real(self, name, offset, place)

    engine = job.engine(2)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read_into", broken)
        with pytest.raises(StorageUnavailable, match="Input/output") as caught:
            engine.restore(make_state())
    assert caught.value.exit_code == exitcodes.STORAGE
    assert len(tries) == 3  # once, and once for each pause
    assert job.resume_points == ["step-00000020.1", "step-00000010.1"]
    assert job.engine(3).restore(make_state()).step == 20  # type: ignore[union-attr]


def test_a_checkpoint_that_vanishes_is_chosen_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention of an attempt that still runs may delete it between the choice and the read."""
    start(job, 1, 10, 20)
    real = Lineage.choose

    def choose(self: Lineage, *arguments: Any) -> Any:
        choice = real(self, *arguments)
        job.store.delete_tree("step-00000020.1")
        return choice

    engine = job.engine(2)
    engine.store.visibility_seconds = 0.0
    monkeypatch.setattr(Lineage, "choose", choose)
    assert engine.restore(make_state()).step == 10  # type: ignore[union-attr]


def test_known_checkpoint_that_is_not_seen(job: Job) -> None:
    """Status remembers a checkpoint and the store shows none: cannot tell, not a fresh start."""
    start(job, 1)
    with pytest.raises(StorageUnavailable, match="startFresh"):
        job.engine(2, known_checkpoint=True).restore(make_state())
    assert job.engine(3, known_checkpoint=True, start_fresh=True).restore(make_state()) is None


def test_unmounted_volume_at_start(job: Job) -> None:
    """A job that has saved before never makes a new store: the mount point stays empty."""
    with pytest.raises(StorageUnavailable, match="mounted"):
        job.engine(2, known_checkpoint=True)
    assert not job.root.exists()
    job.root.mkdir()
    with pytest.raises(StorageUnavailable, match="mounted"):
        job.engine(2, known_checkpoint=True)
    assert not list(job.root.iterdir())


def test_killed_in_mid_save_is_ignored(job: Job) -> None:
    """SIGKILL when all shards and the manifest are written, but not the marker: the one before is resumed."""
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_engine import Job, save, start
from resumable_training.checkpoint.local import LocalStore
engine = start(Job(Path({str(job.root)!r})), 1, 10)
real = LocalStore.create
def create(self, name, data):
    if name.endswith(".metadata"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, name, data)
LocalStore.create = create
save(engine, 20)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    assert (job.root / "step-00000020.1" / "manifest.json").exists()
    engine = job.engine(2)
    assert engine.restore(make_state()).checkpoint == "step-00000010.1"  # type: ignore[union-attr]
    for step in (30, 40, 50):
        assert save(engine, step).ok
    assert not (job.root / "step-00000020.1").exists()


# Store ------------------------------------------------------------------------------------------------------


def test_another_jobs_store_needs_adopt(job: Job) -> None:
    """Named owner and fix; adopted, the chain goes on, and the former owner's next save is refused."""
    former = start(job, 1, 10)
    heir = Job(job.root, job="local/heir", uid="heir")
    with pytest.raises(StoreOwnership, match=r"local/job.*adopt: true"):
        heir.engine(1)
    engine = heir.engine(1, adopt=True)
    with pytest.raises(Superseded, match="adopted"):
        save(former, 20)
    assert engine.restore(make_state()).step == 10  # type: ignore[union-attr]


def test_a_job_made_anew_under_its_name_goes_on(job: Job) -> None:
    """Same namespace and name, another uid and attempts from 1: the store is found again."""
    start(job, 9, 10)
    report = Job(job.root, uid="second life").engine(1).restore(make_state())
    assert report is not None
    assert (report.step, report.record) == (10, 2)


def test_volume_lost_while_training(job: Job) -> None:
    """store.json is checked at each save: nothing is written under the mount point, training goes on."""
    engine = start(job, 1, 10)
    job.root.rename(job.root.with_name("unmounted"))
    job.root.mkdir()
    report = save(engine, 20)
    assert not report.ok
    assert "mounted" in report.message
    assert not list(job.root.iterdir())
    job.root.rmdir()
    assert not save(engine, 30).ok
    assert not job.root.exists()
    job.root.with_name("unmounted").rename(job.root)
    assert save(engine, 40).ok


def test_another_volume_in_its_place(job: Job) -> None:
    """Another store under the same path gets nothing of ours."""
    engine = start(job, 1, 10)
    job.store.put("store.json", seal(StoreIdentity("another", job.job)))
    report = save(engine, 20)
    assert not report.ok
    assert "another volume" in report.message


def test_records_without_identity_are_refused(job: Job) -> None:
    """A store that lost its store.json is not given a new one over its records."""
    start(job, 1, 10)
    (job.root / "store.json").unlink()
    with pytest.raises(StorageUnavailable, match=r"records but no store\.json"):
        job.engine(2)


def test_a_file_system_without_create_only_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight proves that a second create is refused, since everything else rests on it."""
    monkeypatch.setattr(LocalStore, "create", LocalStore.put)
    with pytest.raises(StoreMisconfigured, match="created twice"):
        job.engine(1)


def test_a_directory_that_can_not_be_written(tmp_path: Path) -> None:
    """A user error before the first step, with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreMisconfigured, match=r"file/store can't be written") as caught:
        Job(tmp_path / "file" / "store").engine(1)
    assert caught.value.exit_code == exitcodes.USER_ERROR


# Saves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["shard", "manifest", "marker"])
def test_a_failed_write_leaves_no_checkpoint(job: Job, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """An error at any point: reported, warned of, nothing left; the same step can be saved afterwards."""
    engine = start(job, 1, 10)
    real_create, real_fsync = LocalStore.create, os.fsync

    def create(self: LocalStore, name: str, data: bytes) -> None:
        if {"manifest": "manifest.json", "marker": MARKER_FILE}.get(at) == name.rpartition("/")[2]:
            raise StorageUnavailable("No space left on device")
        real_create(self, name, data)

    def fsync(descriptor: int) -> None:
        if at == "shard" and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".distcp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", create)
        patch.setattr(os, "fsync", fsync)
        report = save(engine, 20)
        assert not report.ok
        assert "No space left on device" in report.message
        assert not save(engine, 20).ok
    assert sorted(path.name for path in job.root.glob("step-*")) == ["step-00000010.1"]
    assert "2 in a row" in job.warnings[-1]
    assert save(engine, 20).ok
    assert job.engine(2).restore(make_state()).step == 20  # type: ignore[union-attr]


def test_a_directory_is_never_written_twice(job: Job) -> None:
    """What lies there already is not touched; the save fails instead."""
    engine = start(job, 1, 10)
    (job.root / "step-00000020.1").mkdir()
    (job.root / "step-00000020.1" / "__0_0.distcp").write_bytes(b"somebody's")
    report = save(engine, 20)
    assert not report.ok
    assert (job.root / "step-00000020.1" / "__0_0.distcp").read_bytes() == b"somebody's"


def test_saving_the_same_step_twice_commits_once(job: Job) -> None:
    """A drain right after an interval's save has nothing to do."""
    engine = start(job, 1)
    assert save(engine, 10) == save(engine, 10)
    assert engine.wait() == engine.close()


def test_a_newer_attempt_appears_while_we_write(job: Job) -> None:
    """It is looked for again right before the marker: no commit behind its back."""
    engine = start(job, 1, 10)

    class Sly(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            start(Job(job.root), 2)
            return super().state_dict(*args, **kwargs)

    model = Sly(3, 2)
    with pytest.raises(Superseded):
        save(engine, 20, TrainingState({"model": model}))
    assert not (job.root / "step-00000020.1" / MARKER_FILE).exists()


def test_retention_after_a_commit(job: Job) -> None:
    """Keeps the last K, every N steps and what is pinned; markers go first."""
    engine = start(job, 1, 5, 10, 15, keep_last=2, keep_every_steps=10)
    pin(job.store, "reader", Pin("step-00000010.1", "eval", until=2e10))
    for step in (20, 25, 30, 35):
        save(engine, step)
    assert job.resume_points == [f"step-000000{step}.1" for step in (35, 30, 20, 10)]


def test_retention_never_ends_training(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that can't be deleted is warned of; what was deleted in part no longer looks whole."""
    engine = start(job, 1, 5, 10, keep_last=2)

    def denied(self: LocalStore, name: str) -> None:
        raise StorageUnavailable("Permission denied")

    monkeypatch.setattr(LocalStore, "delete_tree", denied)
    assert save(engine, 15).ok
    assert "Permission denied" in job.warnings[-1]
    assert job.resume_points == ["step-00000015.1", "step-00000010.1"]


def test_a_record_that_somebody_else_made_with_our_number(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused and not ours: superseded, whoever it was."""
    engine = job.engine(1)

    def refuse(self: LocalStore, name: str, data: bytes) -> None:
        raise StoreExists(name)

    monkeypatch.setattr(LocalStore, "create", refuse)
    with pytest.raises(Superseded, match="another attempt"):
        engine.restore(make_state())


# Mismatches -------------------------------------------------------------------------------------------------


class Renamed(nn.Module):
    def __init__(self, make: Callable[[], dict[str, nn.Module]]) -> None:
        super().__init__()
        for name, module in make().items():
            self.add_module(name, module)


def test_mismatch_lists_everything_and_changes_nothing(job: Job) -> None:
    """All missing, unexpected and mis-shaped keys with the likely rename in one message, model untouched."""
    old = Renamed(
        lambda: {"encoder": nn.Linear(4, 4), "classifier": nn.Linear(4, 3), "same": nn.Linear(2, 2)}
    )
    engine = job.engine(1)
    was = TrainingState({"model": old}, {"optimizer": torch.optim.AdamW(old.parameters())})
    engine.restore(was)
    engine.save(was, Reached(1, 1))

    new = Renamed(lambda: {"encoder": nn.Linear(4, 5), "clasifier": nn.Linear(4, 3), "same": nn.Linear(2, 2)})
    before = {key: value.clone() for key, value in new.state_dict().items()}
    now = TrainingState(
        {"model": new, "ema": nn.Linear(1, 1)}, {"optimizer": torch.optim.SGD(new.parameters(), lr=0.1)}
    )
    with pytest.raises(StateMismatch) as caught:
        job.engine(2).restore(now)
    text = str(caught.value)
    assert "optimizer 'optimizer' was torch.optim.adamw.AdamW, is torch.optim.sgd.SGD" in text
    assert "model.clasifier.weight [3, 4]  (likely saved as model.classifier.weight)" in text
    assert "model.encoder.weight: saved [4, 4], now [5, 4]" in text
    assert "model.encoder.bias: saved [4], now [5]" in text
    for key in ("ema.weight", "ema.bias", "model.classifier.bias", "optimizer: parameter clasifier.weight"):
        assert key in text
    assert "same" not in text
    assert caught.value.exit_code == exitcodes.USER_ERROR
    assert all(torch.equal(value, before[key]) for key, value in new.state_dict().items())
    assert len(job.store.entries("records")) == 1


@pytest.mark.parametrize("file", ["manifest.json", ".metadata"])
@pytest.mark.parametrize("error", [StoreNotFound, StoreExists])
def test_no_answer_of_the_store_in_a_save_ends_training(
    job: Job, monkeypatch: pytest.MonkeyPatch, file: str, error: type[Exception]
) -> None:
    """A directory that somebody deleted, or a name that is taken: the save fails, and the next one works."""
    engine = start(job, 1)
    create = LocalStore.create

    def refuse(self: LocalStore, name: str, data: bytes) -> None:
        if name.endswith(file):
            raise error(name)
        create(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "create", refuse)
        assert not save(engine, 1).ok
    assert save(engine, 2).ok
    assert job.resume_points == ["step-00000002.1"]


OPERATIONS = ("open", "write", "fsync", "link", "stat", "listdir", "mkdir", "unlink")


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_error_of_any_file_operation_fails_one_save_at_most(
    job: Job, monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    """Each call of the operation in a save fails in turn: training goes on, and what is offered is whole."""
    engine = start(job, 1, 1, 2)
    real = getattr(os, operation)
    step, calls = 2, 1
    while True:
        step, left = step + 1, [calls]

        def fail(path: Any, *arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(code, os.strerror(code))
            return real(path, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, fail)
            failed = not save(engine, step).ok
        if failed:
            assert f"step-{step:08d}.1" not in job.resume_points
        step += 1
        assert save(engine, step).ok
        assert job.resume_points[0] == f"step-{step:08d}.1"
        if left[0] > 0:
            break
        calls += 1
    state = make_state()
    assert start_again(job, state) == step
    assert weight(state) == step


def start_again(job: Job, state: TrainingState) -> int:
    """The step that the next attempt resumes from; nothing is passed over."""
    report = job.engine(2).restore(state)
    assert report is not None
    assert report.fallback == ()
    return report.step
