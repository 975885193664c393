"""The directory store: create-only, durable, and never where no volume is mounted."""

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from resumable_training.checkpoint import local
from resumable_training.checkpoint.errors import (
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    StoreNotFound,
)
from resumable_training.checkpoint.local import LocalStore, file_system_type


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, visibility_seconds=0.2)


@pytest.fixture(params=["link", "no link"])
def any_store(
    request: pytest.FixtureRequest, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> LocalStore:
    """On a file system with hard links, and on one without."""
    if request.param == "no link":

        def refuse(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    return store


def test_create_only_once(any_store: LocalStore) -> None:
    """The second create is refused, the first content stays, and no temporary file is left."""
    any_store.create("a", b"one")
    with pytest.raises(StoreExists):
        any_store.create("a", b"two")
    assert any_store.read("a") == b"one"
    assert os.listdir(any_store.root) == ["a"]


def test_a_failed_create_leaves_nothing(any_store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a create: no file under the name, none beside it, "cannot tell"."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageUnavailable, match="No space left"):
        any_store.create("a", b"one")
    assert os.listdir(any_store.root) == []


def test_a_link_whose_answer_was_lost_is_ours(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NFS a repeated request is refused although the first made the link: the count of links tells."""
    real = os.link

    def twice(source: Path, target: Path) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", twice)
    store.create("a", b"one")
    assert store.read("a") == b"one"


def _race(
    root: str, start: "multiprocessing.synchronize.Event", mine: bytes, queue: "multiprocessing.Queue[bool]"
) -> None:
    start.wait(30)
    try:
        LocalStore(root).create("prize", mine)
        queue.put(True)
    except StoreExists:
        queue.put(False)


def test_of_racing_writers_exactly_one_wins(store: LocalStore) -> None:
    """Eight processes create one name at once: one winner, and its content is what is there."""
    context = multiprocessing.get_context("fork")
    start, queue = context.Event(), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(store.root), start, b"%d" % index, queue))
        for index in range(8)
    ]
    for racer in racers:
        racer.start()
    start.set()
    wins = [queue.get(timeout=30) for _ in racers]
    for racer in racers:
        racer.join(30)
    assert sum(wins) == 1
    assert store.read("prize") in {b"%d" % index for index in range(8)}


def test_put_replaces_at_once(store: LocalStore) -> None:
    """A put is seen whole, the old content or the new, and leaves no temporary file."""
    store.put("a", b"one")
    store.put("a", b"two")
    assert store.read("a") == b"two"
    assert [entry.name for entry in store.entries()] == ["a"]


def test_temporary_files_are_not_listed(store: LocalStore) -> None:
    """What a killed writer left is no content."""
    (store.root / ".tmp-1234").write_bytes(b"half")
    assert store.entries() == []


def test_a_missing_root_is_never_made(tmp_path: Path) -> None:
    """After an unmount nothing may be written under the mount point."""
    store = LocalStore(tmp_path / "volume", visibility_seconds=0.0)
    for write in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.make_directory("step-00000001.1"),
        lambda: store.open_write("step-00000001.1/s").__enter__(),
    ):
        with pytest.raises((StoreNotFound, StorageUnavailable)):
            write()
    assert not store.root.exists()
    store.prepare_root()
    assert store.root.is_dir()


def test_a_directory_that_shows_up_late_is_waited_for(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NFS another rank's new directory may be seen late: the listing is repeated meanwhile."""
    listed = []
    real = os.listdir

    def late(path: Path) -> list[str]:
        listed.append(path)
        (store.root / "d").mkdir(exist_ok=True)
        return real(path)

    store.visibility_seconds = 30.0
    monkeypatch.setattr(local.os, "listdir", late)
    with store.open_write("d/s") as stream:
        stream.write(b"x")
    assert listed == [store.root]


def test_a_directory_that_never_shows_up_is_named(store: LocalStore) -> None:
    """The message says NFS and what to look at."""
    with pytest.raises(StorageUnavailable, match=r"NFS.*actimeo"), store.open_write("d/s"):
        pass


@pytest.mark.parametrize("name", ["../x", "a/../b", "/x", "a//b", "."])
def test_names_never_leave_the_root(store: LocalStore, name: str) -> None:
    """A name with dots or empty parts is our own bug and is refused."""
    with pytest.raises(ValueError):
        store.path(name)


def test_errors_of_the_system_are_cannot_tell(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error is neither "missing" nor "there"."""

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "stat", broken)
    monkeypatch.setattr(os, "listdir", broken)
    with pytest.raises(StorageUnavailable, match="Input/output"):
        store.size("a")
    with pytest.raises(StorageUnavailable, match="Input/output"):
        store.entries()


def test_file_system_type_is_known_for_proc() -> None:
    """The kind of file system decides how long a late name is waited for."""
    assert file_system_type(Path("/proc/self")) == "proc"


def test_file_system_type_is_that_behind_a_link(tmp_path: Path) -> None:
    """A link on a local disk to a directory on NFS is on NFS."""
    (tmp_path / "store").symlink_to("/proc/self")
    assert file_system_type(tmp_path / "store" / "fd") == "proc"


def test_odd_things_in_a_directory_hide_nothing(store: LocalStore) -> None:
    """A link to itself, one to nothing, a pipe: not listed, no files, and the rest is."""
    (store.root / "loop").symlink_to("loop")
    (store.root / "nowhere").symlink_to("/nonexistent/x")
    os.mkfifo(store.root / "pipe")
    store.put("a", b"one")
    (store.root / "d").mkdir()
    assert [(entry.name, entry.is_directory) for entry in store.entries()] == [("a", False), ("d", True)]
    assert [store.size(odd) for odd in ("nowhere", "pipe", "d")] == [None, None, None]


def test_of_a_checkpoint_that_is_kept_elsewhere_only_the_link_goes(store: LocalStore, tmp_path: Path) -> None:
    """Somebody moved it to other storage and left a link: what is there stays whole."""
    elsewhere, name = tmp_path / "elsewhere", "step-00000010.1"
    elsewhere.mkdir()
    for file in (".metadata", "shard"):
        (elsewhere / file).write_bytes(b"x")
    (store.root / name).symlink_to(elsewhere)
    assert store.size(f"{name}/.metadata") == 1
    store.delete(f"{name}/.metadata")
    store.delete_tree(name)
    assert not (store.root / name).is_symlink()
    assert sorted(os.listdir(elsewhere)) == [".metadata", "shard"]


def test_two_who_delete_the_same_leave_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other one was faster with is passed over, and the rest goes."""
    for number in range(6):
        (store.root / "d" / str(number)).mkdir(parents=True)
        (store.root / "d" / str(number) / "shard").write_bytes(b"x")
    real, calls = os.unlink, []

    def unlink(path: object, **options: object) -> None:
        calls.append(path)
        if len(calls) % 2:
            real(path, **options)  # the other one
        real(path, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    store.delete_tree("d")
    assert store.entries() == []


def test_a_file_is_no_root(tmp_path: Path) -> None:
    """Trying again would not help, so it is the user's to mend; by a link it may be a directory elsewhere."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StoreMisconfigured, match="file is no directory: set another one"):
        LocalStore(tmp_path / "file").prepare_root()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    LocalStore(tmp_path / "link").prepare_root()


@pytest.mark.parametrize("times", [1, 100])
def test_files_that_come_into_a_directory_being_removed(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank writes on that has not heard that the save failed; one that goes on for ever is said."""
    store, left = LocalStore(tmp_path), [times]
    store.make_directory("d")
    rmdir = os.rmdir

    def late(path: str, **more: Any) -> None:
        if left[0]:
            left[0] -= 1
            (tmp_path / "d" / f"late-{left[0]}").touch()
        rmdir(path, **more)

    monkeypatch.setattr(os, "rmdir", late)
    if times == 1:
        store.delete_tree("d")
        assert not (tmp_path / "d").exists()
        return
    with pytest.raises(StorageUnavailable, match="not empty"):
        store.delete_tree("d")
