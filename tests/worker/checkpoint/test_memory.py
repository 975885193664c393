"""Files made again from the memory that they were stored from: the same bytes, or none at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.checkpoint import memory
from resumable_training.checkpoint.arena import SEAL_BYTES, Arena
from resumable_training.checkpoint.blocks import Blocks
from resumable_training.checkpoint.cargo import Item, Small, Stored, file_name, store_cargo, to_plain
from resumable_training.checkpoint.catalog import Item as Entry
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.read import Reader
from resumable_training.contract.manifest import FileEntry

NAME = "step-00000010.1"
ITEMS = [
    Item("model.a", ("model", "a"), "float32", (30, 3), (0, 0), (20, 3), 0, 240),
    Item("model.a", ("model", "a"), "float32", (30, 3), (20, 0), (10, 3), 256, 120),
    Item("model.empty", ("model", "empty"), "int64", (0, 5), (0, 0), (0, 5), 384, 0),
    Item("model.b", ("model", "b"), "bfloat16", (7,), (0,), (7,), 384, 14),
]
SMALLS = [
    Small("pickled", ("pickled",), True, 448, 50),
    Small("text", ("text",), False, 498, 33),
    Small("more", ("more",), True, 531, 1),
]
FILE = file_name(2)


class Shelf(RankLink):
    """What an agent would hand out."""

    def __init__(self, *found: tuple[int, int, int]) -> None:
        super().__init__(0)
        self.found = found

    def find(self, checkpoint: str) -> list[tuple[int, int, int]]:
        assert checkpoint == NAME
        return [(size, os.dup(arena), os.dup(content)) for size, arena, content in self.found]


class Copied:
    """An arena with something in it, and what was stored of it."""

    def __init__(self, root: Path) -> None:
        self.arena = Arena(1000)
        self.arena.put(0, bytes(number * 7 % 251 for number in range(600)))
        self.seal = self.arena.seal()
        self.store = LocalStore(root)
        self.store.make_directory(NAME)
        view = memoryview(self.arena.tensor.numpy())
        stored = store_cargo(self.store, NAME, 2, ITEMS, SMALLS, view, lambda: None)
        assert isinstance(stored, Stored)
        self.entry: FileEntry = stored.entry
        self.told: dict[str, Any] = {
            "file": FILE,
            "seal": self.seal,
            "items": to_plain(ITEMS),
            "smalls": [[one.key, one.path, one.pickled, one.at, one.bytes] for one in SMALLS],
        }

    def shelf(self, **changes: Any) -> Shelf:
        content = os.memfd_create("content")
        os.write(content, json.dumps({**self.told, **changes}).encode())
        return Shelf((self.arena.bytes, self.arena.descriptor, content))

    def remember(self, **changes: Any) -> memory.Memory:
        return memory.remember(self.shelf(**changes), NAME, {FILE: self.entry})


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def blocks(entry: FileEntry, size: int, hashes: tuple[str, ...] | None = None) -> Blocks:
    return Blocks({FILE: entry.bytes}, size, {FILE: hashes} if hashes is not None else None)


def test_the_block_is_the_one_that_was_stored(copied: Copied) -> None:
    """Heads, values, tails and pickles in the order of the file, right by the manifest's hash."""
    held = copied.remember()
    (place,) = blocks(copied.entry, 8 << 20, copied.entry.blocks).places
    where = memoryview(bytearray(place.length))
    assert held.holds(place)
    assert held.fill(place, where)
    assert bytes(where) == copied.store.read(f"{NAME}/{FILE}")
    held.close()


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_of_the_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Wherever it begins and ends."""
    copied = _once(tmp_path_factory)
    whole = copied.store.read(f"{NAME}/{FILE}")
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    arena, size, content = _opened(copied)
    (_, file) = memory._open(os.dup(arena), size, content)
    where = memoryview(bytearray(stop - start))
    file.read_into(start, where)
    assert bytes(where) == whole[start:stop]
    parts = list(file.parts(start, stop))
    assert b"".join(part for _, part in parts) == whole[start:stop]
    assert all(whole[at : at + len(part)] == part for at, part in parts)
    with pytest.raises(memory.NotUsable):
        file.read_into(start, memoryview(bytearray(len(whole) - start + 1)))
    with pytest.raises(memory.NotUsable):
        list(file.parts(start, len(whole) + 1))
    file.close()


_copied: list[Copied] = []


def _once(factory: pytest.TempPathFactory) -> Copied:
    if not _copied:
        _copied.append(Copied(factory.mktemp("copied")))
    return _copied[0]


def _opened(copied: Copied) -> tuple[int, int, int]:
    ((size, arena, content),) = copied.shelf().found
    return arena, size, content


def test_without_a_hash_nothing_is_believed(copied: Copied) -> None:
    """What no manifest vouches for comes from storage."""
    held = copied.remember()
    (place,) = blocks(copied.entry, 8 << 20).places
    assert not held.holds(place)
    assert not held.fill(place, memoryview(bytearray(place.length)))


def changed(copied: Copied) -> None:
    copied.arena.put(10, b"x")


def begun_again(copied: Copied) -> None:
    copied.arena.break_seal()


def copied_again(copied: Copied) -> None:
    copied.arena.seal()


def given_back(copied: Copied) -> None:
    os.ftruncate(copied.arena.descriptor, 0)


def test_memory_that_is_given_back_under_a_reader_is_another_try(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look whether it is right and the next one: the attempt has not ended by that."""
    held = copied.remember()
    is_right = held.is_right

    def and_gone(place: Any) -> bool:
        found = is_right(place)
        given_back(copied)
        return found

    monkeypatch.setattr(held, "is_right", and_gone)
    catalog: Any = SimpleNamespace(items=[Entry("model.a", None, None, FILE, 0, copied.entry.bytes)])
    where = blocks(copied.entry, 8 << 20, copied.entry.blocks)
    reader = Reader(copied.store, NAME, catalog, where, Ranks(None, 0, 1), held)
    with pytest.raises(StorageUnavailable, match="it was given back"):
        reader.peek([0])


@pytest.mark.parametrize("spoil", [changed, begun_again, copied_again, given_back])
def test_a_copy_that_is_not_the_one_is_not_used(copied: Copied, spoil: Callable[[Copied], None]) -> None:
    """Another content under the same seal, a copy that was begun or made later, memory that is gone."""
    (place,) = blocks(copied.entry, 8 << 20, copied.entry.blocks).places
    before = copied.remember()
    assert before.is_right(place)
    assert not before.broken()
    spoil(copied)
    held = copied.remember()
    assert not held.is_right(place)
    assert not held.fill(place, memoryview(bytearray(place.length)))
    assert before.broken() == ("" if spoil is changed else FILE)
    assert before.is_right(place) == (spoil in (begun_again, copied_again))


@pytest.mark.parametrize(
    "changes",
    [
        {"items": to_plain(ITEMS[:-1])},
        {"items": to_plain([*ITEMS[:-1], Item("b", ("b",), "bfloat16", (7,), (0,), (7,), 990, 14)])},
        {"items": to_plain([*ITEMS[:-1], Item("b", ("b",), "bfloat16", (7,), (0,), (7,), -14, 14)])},
        {"items": [["a"]]},
        {"items": 7},
        {"smalls": None},
        {"seal": "not hex"},
        {"seal": "00" * SEAL_BYTES},
        {"file": "__9_0.distcp"},
    ],
)
def test_a_description_that_lies(copied: Copied, changes: dict[str, Any]) -> None:
    """Another size than the manifest's file, places outside the arena, nonsense: storage has it."""
    if changes.get("seal") == "00" * SEAL_BYTES:
        copied.arena.break_seal()
    held = copied.remember(**changes)
    (place,) = blocks(copied.entry, 8 << 20, copied.entry.blocks).places
    assert not held.fill(place, memoryview(bytearray(place.length)))


def test_no_agent_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, or with one that is gone, there is nothing to find and nobody to wait for."""
    for path in ("", "/nowhere/keeper"):
        monkeypatch.setenv("RESUMABLE_KEEPER", path)
        monkeypatch.setenv("RESUMABLE_ATTEMPT", "1")
        link = RankLink(0)
        assert (link.await_flights(), link.find(NAME), link.take(10)) == ([], [], None)
        link.close()
