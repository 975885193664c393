"""What lies in a rank's arena and how it is to be stored, and the act of storing it. No torch.

The training process describes its cargo once, and again when it changes; the writer process stores it: one
file per rank, the archives of all pieces one after another, hashed on the way. Bytes go from the arena to the
store without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

from resumable_training.checkpoint.frames import frame
from resumable_training.checkpoint.marking import Blob, Path, Piece, Tensor, Written
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import BlockHasher
from resumable_training.contract.manifest import BLOCK_BYTES, FileEntry

_AROUND_BYTES = 1024  # of an archive, about
_PIECE_BYTES = 1 << 18  # what a core's own cache holds: hashed twice, read from memory once
_WRITE_BYTES = 1 << 20  # at a time: a file system takes many pages together for less than one by one


@dataclass(frozen=True)
class Item:
    """A box of a tensor: ``bytes`` of the arena from ``at`` on, row by row. ``shape``: of the whole."""

    key: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    at: int
    bytes: int


class Small(NamedTuple):
    """A value whose size changes from save to save: a pickle, or the bytes of a one-dimensional tensor."""

    key: str
    path: Path
    pickled: bool
    at: int
    bytes: int

    def item(self) -> Item:
        return Item(self.key, self.path, "uint8", (self.bytes,), (0,), (self.bytes,), self.at, self.bytes)


def file_name(rank: int) -> str:
    """As DCP names it."""
    return f"__{rank}_0.distcp"


def to_plain(items: Iterable[Item]) -> list[list[Any]]:
    """Lists and numbers, for JSON."""
    return [[i.key, i.path, i.dtype, i.shape, i.offsets, i.sizes, i.at, i.bytes] for i in items]


def from_plain(plain: Sequence[Sequence[Any]]) -> list[Item]:
    """Reverse of ``to_plain``."""
    return [
        Item(key, tuple(path), dtype, tuple(shape), tuple(offsets), tuple(sizes), at, size)
        for key, path, dtype, shape, offsets, sizes, at, size in plain
    ]


@dataclass(frozen=True)
class Stored:
    """One rank's file: its entry in the manifest, and what is in it."""

    file: str
    entry: FileEntry
    written: Written


def store_cargo(
    store: Store,
    name: str,
    rank: int,
    items: Sequence[Item],
    smalls: Sequence[Small],
    arena: memoryview,
    look: Callable[[], None],
) -> Stored | None:
    """Write one rank's file of checkpoint ``name``; durable at the end. None: there is nothing to write.

    Args:
        look: called before each block; raises to end the write.

    Raises:
        CheckpointError: the store failed.
    """
    if not items and not smalls:
        return None
    file = file_name(rank)
    expected = sum(one.bytes for one in items) + sum(one.bytes for one in smalls)
    expected += _AROUND_BYTES * (len(items) + len(smalls))
    with store.open_write(f"{name}/{file}", expected) as stream:
        output = _Output(stream, arena, look)
        written = Written()
        for item in (*items, *(small.item() for small in smalls if not small.pickled)):
            _add(written, item, output.archive(item, file))
        for small in smalls:
            if small.pickled:
                at = output.position
                output.take(small.at, small.bytes)
                written.blobs[small.key] = Blob(small.path, file, at, small.bytes)
        moment("save.written")
    return Stored(file, output.hasher.entry(), written)


def _add(written: Written, item: Item, piece: Piece) -> None:
    tensor = written.tensors.get(item.key) or Tensor(item.dtype, item.shape, item.path)
    written.tensors[item.key] = replace(tensor, pieces=(*tensor.pieces, piece))


class _Output:
    """Writes strictly forward, and hashes what it writes."""

    def __init__(self, stream: BinaryIO, arena: memoryview, look: Callable[[], None]) -> None:
        self._stream = stream
        self._arena = arena
        self._look = look
        self.hasher = BlockHasher()
        self.position = 0

    def archive(self, item: Item, file: str) -> Piece:
        begin = self.position
        head, tail = frame(item.dtype, item.sizes, item.bytes)
        self._put(head)
        self.take(item.at, item.bytes)
        self._put(tail)
        return Piece(item.offsets, item.sizes, file, begin, self.position - begin)

    def take(self, at: int, size: int) -> None:
        """``size`` bytes of the arena, in pieces."""
        for begin in range(at, at + size, BLOCK_BYTES):
            self._look()
            end = min(begin + BLOCK_BYTES, at + size)
            for write in range(begin, end, _WRITE_BYTES):
                self._put(self._arena[write : min(write + _WRITE_BYTES, end)])

    def _put(self, data: bytes | memoryview) -> None:
        for begin in range(0, len(data), _PIECE_BYTES):
            self.hasher.update(data[begin : begin + _PIECE_BYTES])
        self._stream.write(data)
        self.position += len(data)
