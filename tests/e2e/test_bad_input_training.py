"""What people and disks do to a training: a clear error or a warning, and nothing that was saved is lost."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import moments
import pytest
from moments import DRAIN, LEAVE, WAIT, Wish
from training_run import TINY, TrainingRun, assert_same, causes

from resumable_operator.cli import exitcodes

pytestmark = pytest.mark.timeout(900)
Undisturbed = Callable[..., dict[str, Any]]


def test_between_two_runs(training: TrainingRun, undisturbed: Undisturbed) -> None:
    """Another model, other data, a damaged checkpoint: two clear errors, one fallback, an exact end."""
    here = Wish(moments.STEP, 1, 0, DRAIN, nth=14)
    training.wish(here)
    training.start_tiny("--workers", "2")
    training.await_moment(here)
    training.signal(signal.SIGINT)
    drained = training.finish(exitcodes.DRAINED)
    assert drained.checkpoint is not None
    assert drained.checkpoint.step in (15, 16)

    refused_model(training)
    refused_data(training)
    damaged = damage(training.store / drained.checkpoint.name)
    training.start_tiny("--workers", "2")
    status = training.finish()
    assert status.attempt.start_step == 10
    why = f"{drained.checkpoint.name} is damaged ({damaged.name}"
    assert why in training.log(status.attempt.number)
    assert why in (training.directory / "events.jsonl").read_text()
    training.check()  # nobody can resume from the damaged one, and no dead attempt holds it
    assert not (training.store / drained.checkpoint.name).exists()
    assert_same(training.result(), undisturbed(2))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_leaves_early_has_not_finished_the_job(
    training: TrainingRun, undisturbed: Undisturbed, rank: int
) -> None:
    """Exit code 0 in the middle of the loop, of whichever rank: a crash, and what is left is done."""
    training.wish(Wish(moments.STEP, 1, rank, LEAVE, nth=14))
    training.start_tiny("--workers", "2")
    status = training.finish()
    assert causes(status) == ["crash"]
    assert f"rank {rank} on " in status.interruptions[0].message
    assert "returned 0 while others trained on" in status.interruptions[0].message
    assert_same(training.result(), undisturbed(2))


def refused_model(training: TrainingRun) -> None:
    """A renamed and resized model: every key that differs, in one message of one attempt."""
    before = training.status().attempt.number
    training.start_tiny("--workers", "2", tiny=("--width", "24", "--head", "final"))
    status = training.finish(exitcodes.USER_ERROR)
    assert (status.failure_class, status.attempt.number) == ("user", before + 1)
    log = training.log(status.attempt.number)
    message = log[log.index("does not fit what is tracked") :]
    for line in (
        "missing in the checkpoint",
        "unexpected in the checkpoint",
        "model.final.bias [3]  (likely saved as model.output.bias)",
        "model.second.weight: saved [16, 16], now [24, 24]",
    ):
        assert line in message
    assert "model.final.bias" in training.shown()


def refused_data(training: TrainingRun) -> None:
    """Another order and another version of the data: both are named, with the way out."""
    training.start_tiny("--workers", "2", tiny=("--data-seed", "4", "--version", "2"))
    status = training.finish(exitcodes.USER_ERROR)
    for text in (training.log(status.attempt.number), training.shown()):
        assert "seed of the order was 3 and is now 4" in text
        assert "version string was '1' and is now '2'" in text
        assert "accept_changes=True" in text


def damage(checkpoint: Path) -> Path:
    """Flip one bit of its first shard; the shard."""
    shard = min(checkpoint.glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    return shard


class Disk:
    """A place for checkpoints that can be full: a small file system, or where none may be mounted a limit on
    the size of files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
        self.mounted = subprocess.run(mount, capture_output=True).returncode == 0
        self._limited: list[int] = []

    def fill(self, pids: list[int]) -> None:
        if not self.mounted:
            self._limited = pids
            self._limit(50_000)
            return
        with (self.directory / "ballast").open("wb", buffering=0) as ballast:
            while free := shutil.disk_usage(self.directory).free:
                ballast.write(bytes(free))

    def empty(self) -> None:
        if self.mounted:
            (self.directory / "ballast").unlink()
        else:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for pid in self._limited:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.close()


def test_disk_full_in_mid_save(disk: Disk, training: TrainingRun) -> None:
    """The save fails with a warning, training goes on; after a kill the older checkpoint is offered."""
    before, after = (Wish(moments.STEP, 1, 0, WAIT, nth=nth) for nth in (11, 24))
    training.wish(before, after)
    training.store = disk.directory / "checkpoints"
    training.start_tiny("--workers", "2", "--checkpoint-dir", str(training.store), tiny=("--width", "128"))
    training.await_moment(before)
    pids = [event["data"]["pid"] for event in training.history("rank_connected")]
    assert len(pids) == 2
    disk.fill(pids)
    training.let_go(before)
    training.await_moment(after)
    disk.empty()
    training.fault("kill-rank", "--rank", "1")
    status = training.finish()
    assert causes(status) == ["crash"]
    assert status.interruptions[0].rework_steps == 14
    (failed,) = training.history("checkpoint_failed")
    assert failed["data"]["step"] == 20
    for word in ("step-00000020.1 was not saved", "training goes on"):
        assert word in training.log(1)
        assert word in (training.directory / "events.jsonl").read_text()
    training.check()


def test_directory_that_is_not_shared(training: TrainingRun) -> None:
    """Each worker sees another directory: said before the first step, and not tried again."""
    training.start_tiny("--workers", "2", script=TINY.with_name("train_unshared.py"))
    status = training.finish(exitcodes.USER_ERROR)
    assert (status.attempt.number, status.step, status.failure_class) == (1, 0, "user")
    assert "is not shared between the ranks" in training.shown()
    assert "ReadWriteMany" in training.shown()


def test_error_after_the_start_is_shown_once(training: TrainingRun, tmp_path: Path) -> None:
    """A script that fails when it is imported, on all ranks: bounded tries, one traceback, exit code 3."""
    script = tmp_path / "train.py"
    script.write_text("import resumable_training as rt\nimport torch\nimport no_such_module\n")
    training.start("--workers", "2", str(script))
    status = training.finish(exitcodes.USER_ERROR)
    assert 1 < status.attempt.number < 10
    assert training.shown().count("Traceback (most recent call last)") == 1
    assert training.shown().count("No module named 'no_such_module'") == 1
