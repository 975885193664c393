"""`rtj checkpoints` with arguments and stores that nobody should have: a message and an exit code, always."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_store import Store, flip_a_bit

from resumable_operator.cli import store_source
from resumable_training.checkpoint.documents import Pin, seal, unseal
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.manifest import FileEntry, Manifest
from resumable_training.contract.manifest import checkpoint_name as name

LONG = "x" * 5000
DIGITS = "1" * 5000


@pytest.fixture
def made(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    made.record(1)
    for step in (10, 20, 30):
        made.save(step, 1)
    (made.root / "pins").mkdir()
    return made


def refused(result, *words: str) -> None:
    """A usage error in one line, with these words."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert all(word in result.output for word in words), result.output


WHERE = [
    "",
    LONG,
    "/proc/none/x",
    "/dev/null",
    "s3://",
    "s3:///x",
    "gs://b/x",
    "s3://b/../x",
    "s3://b/a//x",
    "://",
]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("command", ["list", "verify", "show", "history", "prune", "pins"])
def test_places_that_can_not_be(rtj, command: str, where: str) -> None:
    """Not there, too long, no directory, no such kind of store: what is wrong with it."""
    refused(rtj("checkpoints", command, where), "Error: ")


STEPS = ["", "-1", DIGITS, "1.5", "\u0663\u0660", "../x", f"{name(10, 1)}/../x", "latest", f"step-{DIGITS}.1"]


@pytest.mark.parametrize("step", STEPS)
def test_steps_that_can_not_be(made: Store, rtj, tmp_path: Path, step: str) -> None:
    """Of each command that takes one: neither a step nor a name, and which there are."""
    words = ("neither a step nor", "On the chain are steps 30, 20, 10")
    refused(rtj("checkpoints", "show", made.root, "--step", step), *words)
    refused(rtj("checkpoints", "rollback", made.root, "--yes", "--to", step), *words)
    refused(rtj("checkpoints", "pin", made.root, "--", step), *words)
    refused(rtj("checkpoints", "copy", made.root, tmp_path / "far", "--step", step), *words)
    assert os.listdir(made.root / "pins") == []


@pytest.mark.parametrize("size", ["9" * 400 + "TB", "0", "-1", "inf", "nan", "1e9", "", "5XB", "0.0001B"])
def test_sizes_that_can_not_be(rtj, made: Store, tmp_path: Path, size: str) -> None:
    """Known before anything is read."""
    result = rtj("checkpoints", "export", made.root, tmp_path / "out", "--max-shard-size", size)
    refused(result, "--max-shard-size: ", "give one such as 5GB")


@pytest.mark.parametrize("holder", ["a\nb", "\x1b[31mred", "x" * 300, "a\ud800"])
def test_a_holder_that_nobody_could_read(rtj, made: Store, holder: str) -> None:
    """It would steer the terminals of all who list pins."""
    refused(
        rtj("checkpoints", "pin", made.root, 10, "--holder", holder), "--holder: give at most 200 letters"
    )


def test_what_others_have_written_steers_no_terminal(rtj, made: Store) -> None:
    """Of a pin and of a directory's name; a pin for ever is no number of 300 digits."""
    held = Pin(name(10, 1), "eve\x1b[2J\nroot@host", 1e300)
    (made.root / "pins" / "x.json").write_bytes(seal(held))
    for odd in (b"a\x1b[31m", b"b\xff"):
        directory = os.fsencode(made.root) + b"/" + odd
        os.mkdir(directory)
        open(directory + b"/.metadata", "wb").close()
    told = rtj("checkpoints", "pins", made.root).output
    assert told == f"{name(10, 1)}: held by eve\\x1b[2J\\nroot@host for more than 100 years\n"
    for command in ("list", "verify"):
        told = rtj("checkpoints", command, made.root, columns=200).output
        assert ("\x1b" in told, "a\\x1b[31m" in told, "b\\udcff" in told) == (False, True, True)


def test_a_word_that_protects_nothing(rtj, made: Store) -> None:
    """A typing error would delete what was to be kept: refused, or told where it is a step."""
    refused(rtj("checkpoints", "prune", made.root, "--protect", "newest", "--yes"), "--protect newest: ")
    told = rtj("checkpoints", "prune", made.root, "--keep", 2, "--protect", 11)
    assert (told.exit_code, "11  was to be kept, and is not here" in told.output) == (0, True)


def test_a_pin_outlives_its_checkpoint(rtj, made: Store) -> None:
    """It can be given back all the same."""
    (made.root / "pins" / "x.json").write_bytes(seal(Pin(name(90, 1), "eval", 9e9)))
    result = rtj("checkpoints", "unpin", made.root, name(90, 1), "--holder", "eval")
    assert (result.exit_code, os.listdir(made.root / "pins")) == (0, [])


def test_no_place_for_a_copy(rtj, made: Store) -> None:
    """Nowhere, and inside of a checkpoint."""
    refused(rtj("checkpoints", "copy", made.root, ""), "the place to copy to is empty")
    inside = made.root / name(10, 1)
    refused(rtj("checkpoints", "copy", made.root, inside), "is a checkpoint itself")
    assert sorted(os.listdir(inside)) == [".metadata", "__0_0.distcp", "manifest.json"]
    long = rtj("checkpoints", "copy", made.root, made.root.parent / LONG)
    refused(long, "File name too long")
    assert len(long.output) < 400


def test_a_manifest_that_lies_is_listed_as_damaged(rtj, made: Store) -> None:
    """As the next attempt sees it; its numbers are not shown, and the others are."""
    path = made.root / name(30, 1) / "manifest.json"
    known = unseal(Manifest, path.read_bytes())
    lies = {
        "it was written in another store (s-2), not in this one (s-1)": replace(known, store_id="s-2"),
        "it is of step 7 and record 1, under another name": replace(known, step=7),
        "its numbers can't be": replace(known, samples=10**400),
        "the size of x can't be": replace(known, files={**known.files, "x": FileEntry(10**400, "")}),
    }
    for why, lie in lies.items():
        path.write_bytes(seal(lie))
        first, second, _ = json.loads(rtj("checkpoints", "list", made.root, "--json").output)
        assert (first["why_not"], first["samples"]) == (f"damaged: manifest.json: {why}", None)
        assert second["why_not"] == ""
        assert rtj("checkpoints", "list", made.root).exit_code == 0
    path.unlink()
    path.mkdir()
    assert rtj("checkpoints", "list", made.root).output.count("damaged") == 1


def test_one_that_can_not_be_read_hides_no_others(rtj, made: Store, monkeypatch) -> None:
    """An I/O error of one manifest: of that one nobody can tell."""
    real = LocalStore.read

    def read(store: LocalStore, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path == f"{name(20, 1)}/manifest.json":
            raise StorageUnavailable("Input/output error")
        return real(store, path, offset, length)

    monkeypatch.setattr(LocalStore, "read", read)
    told = json.loads(rtj("checkpoints", "list", made.root, "--json").output)
    assert [one["why_not"] for one in told] == ["", "cannot tell: Input/output error", ""]


def test_a_store_with_a_damaged_one_moves_without_it(rtj, made: Store, tmp_path: Path) -> None:
    """It is told, with what the job needs before it goes on there; and so is what stays behind."""
    flip_a_bit(made.root / name(30, 1))
    made.record(2, parent=name(30, 1))
    made.record(3, parent=name(30, 1))
    made.save(40, 2)
    result = rtj("checkpoints", "copy", made.root, tmp_path / "far", "--all")
    assert result.exit_code == 1
    assert f"Off the chain, and left behind: {name(40, 2)}" in result.output
    assert f"Error: {name(30, 1)} is damaged: __0_0.distcp" in result.output
    assert f"rtj checkpoints rollback {tmp_path / 'far'} --to {name(20, 1)} --yes" in result.output
    assert survey(LocalStore(tmp_path / "far")).resume_points == [name(20, 1), name(10, 1)]


def test_a_volume_that_is_not_mounted(rtj, run, bare) -> None:
    """The run has saved: what is not seen is no reason to say that there was nothing."""
    result = rtj("checkpoints", "list", run.path)
    assert (result.exit_code, "is the volume mounted?" in result.output) == (6, True), result.output
    refused(rtj("checkpoints", "list", bare.job().path), "this run has made no checkpoint")


def test_a_pin_holds_on_a_machine_whose_clock_is_ahead(rtj, made: Store, monkeypatch) -> None:
    """`prune --yes` there would delete what somebody reads."""
    (made.root / "probes").mkdir()
    assert rtj("checkpoints", "pin", made.root, 10, "--until", "7d").exit_code == 0
    ahead = time.time() + 30 * 86400
    monkeypatch.setattr(store_source.time, "time", lambda: ahead)
    result = rtj("checkpoints", "prune", made.root, "--keep", 2, "--yes")
    assert f"{name(10, 1)}  stays: pinned" in result.output
    assert (made.root / name(10, 1)).is_dir()
