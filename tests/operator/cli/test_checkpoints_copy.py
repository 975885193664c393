"""`rtj checkpoints copy`: what is meant, and what is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from checkpoint_store import Store, flip_a_bit

from resumable_operator.cli.checkpoints_reading import reading
from resumable_operator.cli.place import Place
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.pins import read_pin_files
from resumable_training.checkpoint.verify import verify_checkpoint
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def made(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.record(1)
    for step in (10, 20):
        made.save(step, 1)
    (made.root / "pins").mkdir()
    return made


def test_the_next_resume_point_a_step_or_one_by_its_path(made: Store, rtj, tmp_path: Path) -> None:
    """Under its own name; the pin that held it is given back."""
    for source, options, step in (
        (made.root, (), 20),
        (made.root, ("--step", 10), 10),
        (made.root / name(10, 1), (), 10),
    ):
        target = tmp_path / f"far-{step}-{len(options)}"
        result = rtj("checkpoints", "copy", source, target, *options)
        assert result.exit_code == 0, result.output
        assert result.output == f"{target}/{name(step, 1)}  7.0 kB copied, verified\n"
        assert verify_checkpoint(LocalStore(target), name(step, 1)).outcome == "ok"
    assert read_pin_files(LocalStore(made.root)) == []


def test_copies_can_be_meant_by_their_step(made: Store, rtj, tmp_path: Path) -> None:
    """A directory of copies has no records: it says so, and all in it count."""
    for step in (10, 20):
        rtj("checkpoints", "copy", made.root, tmp_path / "far", "--step", step)
    assert rtj("checkpoints", "list", tmp_path / "far", columns=200).output.count("a copy: ") == 2
    for options, step in (((), 20), (("--step", 10), 10)):
        told = rtj("checkpoints", "copy", tmp_path / "far", tmp_path / f"further-{step}", *options)
        assert (told.exit_code, name(step, 1) in told.output) == (0, True)


def test_a_whole_store(made: Store, rtj, tmp_path: Path) -> None:
    """Says whose place it can take; a second time there is nothing to copy."""
    result = rtj("checkpoints", "copy", made.root, tmp_path / "far", "--all")
    assert result.exit_code == 0, result.output
    assert "can take the place of the store of local/train: 1 record, 2 checkpoints" in result.output
    again = json.loads(rtj("checkpoints", "copy", made.root, tmp_path / "far", "--all", "--json").output)
    assert [one["bytes"] for one in again["checkpoints"]] == [0, 0]
    assert rtj("checkpoints", "list", tmp_path / "far").output.count("next resume point") == 1


def test_problems_are_told(made: Store, bare, rtj, tmp_path: Path) -> None:
    """A damaged source, a run directory as the target, a choice within one checkpoint."""
    run = rtj("checkpoints", "copy", made.root, bare.job().path)
    assert (run.exit_code, "copy to a place beside it" in run.output) == (2, True)
    both = rtj("checkpoints", "copy", made.root / name(10, 1), tmp_path / "far", "--step", 10)
    assert (both.exit_code, "leave out --step" in both.output) == (2, True)
    flip_a_bit(made.root / name(20, 1))


def test_damage_is_told_alike_by_all_who_read(made: Store, rtj, tmp_path: Path) -> None:
    """The exit code and the words of `verify`, whose range ends where the file does; and what is older."""
    flip_a_bit(made.root / name(20, 1))
    words = "damaged: __0_0.distcp: the 7000 bytes from 0 on are not those that were written"
    verified = rtj("checkpoints", "verify", made.root)
    assert (verified.exit_code, f"{name(20, 1)}  {words}\n" in verified.output) == (1, True)
    copied = rtj("checkpoints", "copy", made.root, tmp_path / "far")
    assert copied.exit_code == 1
    assert copied.output == f"Error: {name(20, 1)} is {words}; the next older is step 10: --step 10\n"
    alone = rtj("checkpoints", "copy", made.root / name(20, 1), tmp_path / "other")
    assert (alone.exit_code, alone.output) == (1, f"Error: {name(20, 1)} is {words}\n")
    everything = rtj("checkpoints", "copy", made.root, tmp_path / "all", "--all")
    assert (everything.exit_code, words in everything.output) == (1, True)


def test_a_store_that_is_read_only_here_is_read_all_the_same(made: Store, rtj, tmp_path, monkeypatch) -> None:
    """It can't be pinned; who copies is told what that means."""
    from resumable_training.checkpoint.errors import StorageUnavailable

    def read_only(self: object, file: str, data: bytes) -> None:
        if file.startswith("pins/"):
            raise StorageUnavailable(f"{file}: Read-only file system")
        put(self, file, data)

    put = LocalStore.put
    monkeypatch.setattr(LocalStore, "put", read_only)
    result = rtj("checkpoints", "copy", made.root, tmp_path / "far")
    assert result.exit_code == 0, result.output
    assert "can't be pinned" in result.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_pin_back(made: Store, number: int) -> None:
    """Ctrl-C, and what a pod gets that is deleted; afterwards the signal means what it meant before."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), reading(str(made.root), None, Place(), "me"):
        os.kill(os.getpid(), number if read_pin_files(LocalStore(made.root)) else 0)
    assert read_pin_files(LocalStore(made.root)) == []
    assert signal.getsignal(signal.SIGTERM) is before
