"""Copies between stores: whole and verified, marker last, and gone on with when they were cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoint_store import Store, branched, flip_a_bit

from resumable_training.checkpoint import copying
from resumable_training.checkpoint.copying import copy_checkpoint, copy_store
from resumable_training.checkpoint.documents import seal
from resumable_training.checkpoint.errors import (
    NoResumePoint,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
)
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.prune import remove
from resumable_training.checkpoint.store import Store as AnyStore
from resumable_training.checkpoint.stores import open_store
from resumable_training.checkpoint.verify import verify_checkpoint
from resumable_training.contract.manifest import MARKER_FILE, StoreIdentity
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def made(tmp_path: Path) -> Store:
    return branched(tmp_path / "store")


@pytest.fixture
def source(made: Store) -> LocalStore:
    return LocalStore(made.root, visibility_seconds=0.0)


@pytest.fixture(params=["directory", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    """A place that does not exist yet."""
    if request.param == "s3":
        return open_store(request.getfixturevalue("s3_url") + "/copies")
    return LocalStore(tmp_path / "far" / "away", visibility_seconds=0.0)


def same(source: LocalStore, target: AnyStore, checkpoint: str) -> bool:
    return all(
        target.read(f"{checkpoint}/{entry.name}") == source.read(f"{checkpoint}/{entry.name}")
        for entry in source.entries(checkpoint)
    )


def test_a_copy_is_the_same(source: LocalStore, target: AnyStore) -> None:
    """Byte for byte, and whole by its own manifest; every byte is told to who shows how far it is."""
    counts: list[int] = []
    done = copy_checkpoint(source, name(20, 1), target, advance=counts.append)
    assert (done.checkpoint, done.bytes, done.there) == (name(20, 1), 7000, 0)
    assert sum(counts) == 7000
    assert same(source, target, name(20, 1))
    assert verify_checkpoint(target, name(20, 1)).outcome == "ok"


def test_again_it_copies_nothing(source: LocalStore, target: AnyStore) -> None:
    """What is there is read and found right."""
    copy_checkpoint(source, name(20, 1), target)
    done = copy_checkpoint(source, name(20, 1), target)
    assert (done.bytes, done.there) == (0, 7000)


class Cut(Exception):
    """The copying process is killed here."""


@pytest.mark.parametrize("operation", ["make_directory", "open_write", "put", "create"])
@pytest.mark.parametrize("after", [False, True])
def test_cut_off_anywhere_it_is_no_checkpoint_and_goes_on(
    source: LocalStore, tmp_path: Path, monkeypatch, operation: str, after: bool
) -> None:
    """Before or after each operation at the target. Half a file is copied anew."""
    target = LocalStore(tmp_path / "far", visibility_seconds=0.0)
    plain: Callable[..., object] = getattr(target, operation)

    def cut(*arguments: object, **options: object) -> object:
        if after and operation == "open_write":
            (target.path(str(arguments[0]))).write_bytes(b"half")
        elif after:
            plain(*arguments, **options)
        raise Cut

    monkeypatch.setattr(target, operation, cut)
    with pytest.raises(Cut):
        copy_checkpoint(source, name(20, 1), target)
    complete = after and operation == "create"
    assert (target.size(f"{name(20, 1)}/{MARKER_FILE}") is not None) == complete
    monkeypatch.undo()
    copy_checkpoint(source, name(20, 1), target)
    assert same(source, target, name(20, 1))


def test_a_damaged_source_is_not_copied(made: Store, source: LocalStore, target: AnyStore) -> None:
    """Found while it is copied, and no marker is written."""
    flip_a_bit(made.root / name(20, 1))
    with pytest.raises(NoResumePoint, match=r"damaged: __0_0\.distcp: the 7000 bytes from 0 on"):
        copy_checkpoint(source, name(20, 1), target)
    assert target.size(f"{name(20, 1)}/{MARKER_FILE}") is None
    assert target.size(f"{name(20, 1)}/__0_0.distcp") is None


def test_a_read_that_was_wrong_once_is_done_again(source: LocalStore, tmp_path: Path, monkeypatch) -> None:
    """One bad read is no damage."""
    stream, wrong = copying._stream, [True]

    def once_wrong(way: copying._Way, file: str, size: int) -> object:
        found = stream(way, file, size)
        return None if wrong and wrong.pop() else found

    monkeypatch.setattr(copying, "_stream", once_wrong)
    target = LocalStore(tmp_path / "far", visibility_seconds=0.0)
    copy_checkpoint(source, name(20, 1), target)
    assert same(source, target, name(20, 1))


def test_a_wrong_file_at_the_target_is_replaced(source: LocalStore, target: AnyStore) -> None:
    """Of the same size, too: another copy that went wrong."""
    target.prepare_root()
    target.make_directory(name(20, 1))
    with target.open_write(f"{name(20, 1)}/__0_0.distcp", 7000) as stream:
        stream.write(b"x" * 7000)
    assert copy_checkpoint(source, name(20, 1), target).bytes == 7000
    assert same(source, target, name(20, 1))


def copy_record(source: LocalStore, target: Store, number: int) -> None:
    path = f"records/{number:08d}.json"
    (target.root / path).write_bytes(source.read(path))


def test_into_the_jobs_own_store_only_beside_its_record(source: LocalStore, tmp_path: Path) -> None:
    """Without it, or beside another attempt's of that number, it would be off the chain or on a wrong one."""
    own = Store(tmp_path / "own")
    with pytest.raises(StoreMisconfigured, match=r"lacks record 1: .* no job resumes .* Copy with --all"):
        copy_checkpoint(source, name(20, 1), LocalStore(own.root))
    own.record(1, parent=name(5, 1))
    with pytest.raises(StoreMisconfigured, match=r"00000001\.json is another record"):
        copy_checkpoint(source, name(20, 1), LocalStore(own.root))
    assert not (own.root / name(20, 1)).exists()
    copy_record(source, own, 1)
    copy_checkpoint(source, name(20, 1), LocalStore(own.root))
    assert survey(LocalStore(own.root)).resume_points == [name(20, 1)]


def test_a_copy_brings_a_lost_checkpoint_back(source: LocalStore, tmp_path: Path) -> None:
    """From a directory of copies, which has no records, into the store that it was copied from."""
    kept = LocalStore(tmp_path / "kept")
    copy_checkpoint(source, name(20, 1), kept)
    source.delete_tree(name(20, 1))
    copy_checkpoint(kept, name(20, 1), source)
    assert name(20, 1) in survey(source).resume_points


def test_another_checkpoint_of_that_name_stays(source: LocalStore, tmp_path: Path) -> None:
    """Nothing is overwritten that was complete."""
    other = Store(tmp_path / "other")
    copy_record(source, other, 1)
    (other.save(20, 1) / MARKER_FILE).write_bytes(b"another")
    with pytest.raises(StoreExists, match="another checkpoint"):
        copy_checkpoint(source, name(20, 1), LocalStore(other.root))


def test_not_into_another_jobs_store(source: LocalStore, tmp_path: Path) -> None:
    """There it could be taken for one of that job's own chain."""
    other = Store(tmp_path / "other")
    (other.root / "store.json").write_bytes(seal(StoreIdentity("s-2", "team/other")))
    with pytest.raises(StoreMisconfigured, match="is the store of job team/other"):
        copy_checkpoint(source, name(20, 1), LocalStore(other.root))
    with pytest.raises(StoreMisconfigured, match="is already the store of job team/other"):
        copy_store(source, LocalStore(other.root))


def test_two_copies_of_one_at_once(source: LocalStore, tmp_path: Path, monkeypatch) -> None:
    """One may take the other's half file for a leftover: no marker stands over what is not there."""
    mine, other = (LocalStore(tmp_path / "far", visibility_seconds=0.0) for _ in range(2))
    stream, turns = copying._stream, [copying._stream]

    def overtaken(way: copying._Way, file: str, size: int) -> object:
        found = stream(way, file, size)
        if turns:  # the other one began before, and now puts a half file in place of ours
            turns.pop()
            other.delete(f"{name(20, 1)}/{file}")
            (tmp_path / "far" / name(20, 1) / file).write_bytes(b"half")
        return found

    monkeypatch.setattr(copying, "_stream", overtaken)
    with pytest.raises(StorageUnavailable, match=r"changed by somebody else.*the same command goes on"):
        copy_checkpoint(source, name(20, 1), mine)
    assert mine.size(f"{name(20, 1)}/{MARKER_FILE}") is None
    copy_checkpoint(source, name(20, 1), mine)
    assert same(source, mine, name(20, 1))


def test_a_file_that_another_copy_makes_just_now(source: LocalStore, tmp_path: Path, monkeypatch) -> None:
    """It may be half; this is no clash of two checkpoints."""
    target = LocalStore(tmp_path / "far", visibility_seconds=0.0)
    opened = target.open_write

    def beaten(path: str, expected_bytes: int = 0) -> object:
        target.path(path).write_bytes(b"")
        return opened(path, expected_bytes)

    monkeypatch.setattr(target, "open_write", beaten)
    with pytest.raises(StorageUnavailable, match="is another copy of it being made"):
        copy_checkpoint(source, name(20, 1), target)


# ---- a whole store ----------------------------------------------------------------------------------------


def test_a_whole_store_moves(source: LocalStore, target: AnyStore) -> None:
    """Owner, records and chain; the branch that was left stays behind."""
    told: list[str] = []
    moved = copy_store(source, target, tell=lambda copied: told.append(copied.checkpoint))
    assert (moved.owner, moved.records) == ("local/train", 2)
    assert told == [name(25, 2), name(20, 1), name(10, 1)]
    assert survey(target).resume_points == told
    assert target.size(f"{name(30, 1)}/{MARKER_FILE}") is None


def test_records_come_before_checkpoints(source: LocalStore, tmp_path: Path, monkeypatch) -> None:
    """A job that begins there too early must know that something is missing, and what is newest is first."""
    target = LocalStore(tmp_path / "far", visibility_seconds=0.0)

    def unavailable(*_: object) -> object:
        raise StorageUnavailable("away")

    monkeypatch.setattr(target, "make_directory", lambda name: unavailable() if "step" in name else None)
    (tmp_path / "far" / "records").mkdir(parents=True)
    with pytest.raises(StorageUnavailable):
        copy_store(source, target)
    assert len(survey(target).records) == 2
    monkeypatch.undo()
    assert len(copy_store(source, target).checkpoints) == 3


def test_a_store_that_was_gone_on_in_is_not_touched(made: Store, source: LocalStore, tmp_path: Path) -> None:
    """Its records are not those of the source any more."""
    copy_store(source, LocalStore(tmp_path / "far"))
    other = Store.__new__(Store)
    other.root = tmp_path / "far"
    other.record(3, parent=name(25, 2))
    with pytest.raises(StoreMisconfigured, match="a job has gone on there"):
        copy_store(source, LocalStore(tmp_path / "far"))


def test_retention_meanwhile_costs_nothing(made: Store, source: LocalStore, tmp_path: Path) -> None:
    """The job trains on: what it deletes before it could be held is left out."""

    @contextmanager
    def hold(checkpoint: str) -> Iterator[None]:
        if checkpoint == name(20, 1):
            remove(source, checkpoint)
        held.append(checkpoint)
        yield

    held: list[str] = []
    target = LocalStore(tmp_path / "far", visibility_seconds=0.0)
    moved = copy_store(source, target, hold=hold)
    assert held == [name(25, 2), name(20, 1), name(10, 1)]
    assert [one.checkpoint for one in moved.checkpoints] == [name(25, 2), name(10, 1)]
