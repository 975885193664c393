"""What every store must do, in a directory (with hard links and without) and on a real S3 server."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from resumable_training.checkpoint.errors import StoreExists, StoreNotFound
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.s3 import S3Store
from resumable_training.checkpoint.store import Store

KINDS = ["directory", "directory without links", "s3"]


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.cluster if kind == "s3" else ()) for kind in KINDS]
)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store of each kind."""
    if request.param == "s3":
        return S3Store(request.getfixturevalue("s3_url"))
    if request.param == "directory without links":

        def refuse(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    return LocalStore(tmp_path, visibility_seconds=0.2)


def names(store: Store, directory: str = "") -> list[str]:
    return [entry.name for entry in store.entries(directory)]


def test_created_only_once(store: Store) -> None:
    """The second create is refused, and the first content stays."""
    store.create("a", b"one")
    with pytest.raises(StoreExists):
        store.create("a", b"two")
    assert store.read("a") == b"one"
    assert names(store) == ["a"]


def _race(store: Store, start: threading.Event, mine: bytes, wins: list[bytes]) -> None:
    start.wait(30)
    try:
        store.create("prize", mine)
    except StoreExists:
        return
    wins.append(mine)


def test_of_racing_writers_exactly_one_wins(store: Store) -> None:
    """Eight create one name at once: one winner, and its content is what is there."""
    start, wins = threading.Event(), list[bytes]()
    racers = [threading.Thread(target=_race, args=(store, start, b"%d" % index, wins)) for index in range(8)]
    for racer in racers:
        racer.start()
    start.set()
    for racer in racers:
        racer.join(60)
    assert [store.read("prize")] == wins


def test_put_replaces(store: Store) -> None:
    """A put makes or replaces; nothing else is seen beside."""
    store.put("a", b"one")
    store.put("a", b"two")
    assert store.read("a") == b"two"
    assert names(store) == ["a"]


def test_reads_and_sizes(store: Store) -> None:
    """Ranges, also beyond the end; sizes; empty files; absent names."""
    store.create("a", b"0123456789")
    store.create("empty", b"")
    assert store.read("a", 2, 3) == b"234"
    assert store.read("a", 8, 100) == b"89"
    assert store.read("a", 8) == b"89"
    assert store.read("a", 10, 5) == store.read("a", 20, 5) == store.read("a", 3, 0) == b""
    assert store.read("empty") == store.read("empty", 0, 5) == b""
    assert (store.size("a"), store.size("empty"), store.size("b")) == (10, 0, None)
    assert store.entries("nowhere") == []
    for name in ("b", "nowhere/b"):
        with pytest.raises(StoreNotFound):
            store.read(name)
        with pytest.raises(StoreNotFound):
            store.read(name, 0, 5)
        with pytest.raises(StoreNotFound), store.open_read(name):
            pass


def test_entries_say_what_lies_below(store: Store) -> None:
    """Files with sizes and times, directories as such, sorted; a claimed directory is seen though empty."""
    store.make_directory("d")
    store.make_directory("e")
    store.create("d/x", b"123")
    store.create("d.txt", b"1")
    listed = {
        entry.name: (entry.is_directory, None if entry.is_directory else entry.bytes)
        for entry in store.entries()
    }
    assert listed == {"d": (True, None), "d.txt": (False, 1), "e": (True, None)}
    assert names(store) == sorted(listed)
    (inner,) = store.entries("d")
    assert (inner.name, inner.bytes, inner.is_directory) == ("x", 3, False)
    assert abs(inner.modified - os.stat("/proc/self").st_mtime) < 3600
    assert store.entries("e") == []


def test_a_directory_is_claimed_once(store: Store) -> None:
    """The second claim is refused, and so is one of a directory that has content."""
    store.make_directory("d")
    store.create("d/x", b"")
    for name in ("d", "d"):
        with pytest.raises(StoreExists):
            store.make_directory(name)


def test_a_removed_directory_can_be_claimed_anew(store: Store) -> None:
    """What is deleted is gone with all below; doing it twice is harmless."""
    store.make_directory("d")
    store.make_directory("dd")
    store.create("dd/kept", b"")
    for name in ("a", "b"):
        with store.open_write(f"d/{name}") as stream:
            stream.write(b"x")
    store.delete("d/a")
    store.delete("d/a")
    assert names(store, "d") == ["b"]
    store.delete_tree("d")
    store.delete_tree("d")
    store.delete("d/b")
    assert store.entries("d") == []
    assert store.size("d/b") is None
    assert names(store, "dd") == ["kept"]
    store.make_directory("d")


def test_the_root_is_never_deleted(store: Store) -> None:
    """An empty name is our own bug."""
    with pytest.raises(ValueError, match="root"):
        store.delete_tree("")


def test_streams_are_written_and_read_anywhere(store: Store) -> None:
    """A file of several parts comes back whole, and piece by piece from any place."""
    data = os.urandom(20_000_003)
    store.make_directory("d")
    with store.open_write("d/s", len(data)) as stream:
        for start in range(0, len(data), 7_000_001):
            stream.write(memoryview(data)[start : start + 7_000_001])
    assert store.size("d/s") == len(data)
    with store.open_read("d/s") as stream:
        assert stream.read() == data
        assert stream.read() == b""
        for place in (0, 8 * 1024 * 1024 - 3, 16 * 1024 * 1024 + 5, len(data) - 4):
            assert stream.seek(place) == stream.tell() == place
            assert stream.read(9) == data[place : place + 9]
        assert stream.seek(-2, os.SEEK_END) == len(data) - 2
        assert stream.read() == data[-2:]


def test_a_stream_takes_values_as_they_are_at_the_call(store: Store) -> None:
    """A writer's buffer may be used again at once: torch writes from memory that it then frees."""
    buffer = bytearray(b"a" * 1000)
    store.make_directory("d")
    with store.open_write("d/s") as stream:
        for letter in (b"a", b"b", b"c"):
            buffer[:] = letter * 1000
            stream.write(buffer)
    assert store.read("d/s") == b"a" * 1000 + b"b" * 1000 + b"c" * 1000


def test_an_empty_stream_is_a_file(store: Store) -> None:
    """A shard without content exists all the same."""
    store.make_directory("d")
    with store.open_write("d/s"):
        pass
    assert store.size("d/s") == 0
    with store.open_read("d/s") as stream:
        assert stream.read() == b""


def test_a_shard_is_never_overwritten(store: Store) -> None:
    """Streams are create-only too."""
    store.make_directory("d")
    with store.open_write("d/s") as stream:
        stream.write(b"one")
    with pytest.raises(StoreExists), store.open_write("d/s"):
        pass
    assert store.read("d/s") == b"one"


@pytest.mark.parametrize("name", ["../x", "a/../b", "/x", "a//b", "."])
def test_names_never_leave_the_root(store: Store, name: str) -> None:
    """A name with dots or empty parts is our own bug and is refused."""
    for operation in (store.read, store.size, store.delete, store.delete_tree, store.entries):
        with pytest.raises(ValueError):
            operation(name)


def test_another_process_sees_and_refuses(store: Store) -> None:
    """A name that another process made is read and refused at once."""
    program = f"from resumable_training.checkpoint.stores import open_store; open_store({store.location!r})"
    subprocess.run([sys.executable, "-c", f"{program}.create('theirs', b'them')"], check=True, timeout=60)
    assert store.read("theirs") == b"them"
    with pytest.raises(StoreExists):
        store.create("theirs", b"us")
