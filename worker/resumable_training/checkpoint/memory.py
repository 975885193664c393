"""Files of a checkpoint, made again from the memory that they were stored from. No torch.

A writer stores a rank's file from an arena: archives in a fixed order, heads and tails around the values that
lie there. Where the arena is still held by this worker's agent, with its seal unbroken, the same bytes come
from it without storage. Nothing is believed: each block is compared with the manifest's hash, as one that was
read from storage, and what does not agree is read there.

All ranks of the worker see the same arenas: a block that one of them has found right where it lies need not
be copied to be handed on.
"""

from __future__ import annotations

import json
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import xxhash

from resumable_training.checkpoint import cargo
from resumable_training.checkpoint.blocks import Place
from resumable_training.checkpoint.frames import frame
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.contract.manifest import FileEntry

Piece = bytes | tuple[int, int]  # literal, or (first byte in the arena, bytes)


class NotUsable(ValueError):
    """An arena does not hold what it should; the text says why."""


class RememberedFile:
    """One rank's file, as it would be read from storage. Owns ``arena``, a descriptor."""

    def __init__(self, arena: int, pieces: Sequence[Piece], seal: bytes = b"", seal_at: int = 0) -> None:
        """``seal``: what stands at ``seal_at`` of the arena while its content is the one that is meant."""
        self._arena = arena
        self._pieces = pieces
        self._seal, self._seal_at = seal, seal_at
        self._view: memoryview | None = None  # of the arena
        self._begins = [0]  # of each piece in the file, and the end
        for piece in pieces:
            self._begins.append(self._begins[-1] + _length(piece))

    @property
    def size(self) -> int:
        return self._begins[-1]

    @property
    def identity(self) -> tuple[int, int]:
        """Of the arena, on this machine."""
        status = os.fstat(self._arena)
        return status.st_dev, status.st_ino

    @property
    def is_sealed(self) -> bool:
        return os.pread(self._arena, len(self._seal), self._seal_at) == self._seal

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Bytes ``start`` to ``stop`` of the file where they lie: first byte of each part, and the part.

        Raises:
            NotUsable: it has fewer, or the arena was given back.
        """
        if stop > self.size:
            raise NotUsable(f"it has {self.size} bytes")
        number = bisect_right(self._begins, start) - 1
        while start < stop:
            piece, inside = self._pieces[number], start - self._begins[number]
            size = min(_length(piece) - inside, stop - start)
            if size:
                whole, at = (memoryview(piece), 0) if isinstance(piece, bytes) else (self._all(), piece[0])
                yield start, whole[at + inside : at + inside + size]
            start, number = start + size, number + 1

    def _all(self) -> memoryview:
        if self._view is not None and os.fstat(self._arena).st_size < len(self._view):
            raise NotUsable("it was given back")  # and must not be touched
        if self._view is None:
            try:
                self._view = memoryview(mmap.mmap(self._arena, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
            except (OSError, ValueError) as error:
                raise NotUsable(f"it was given back: {error}") from error
        return self._view

    def read_into(self, at: int, where: memoryview) -> None:
        """Bytes of the file from ``at`` on, as many as there is room for.

        Not through a mapping: a copy by the system needs no page faults, and other threads go on.

        Raises:
            NotUsable: it has fewer, or the arena was given back.
        """
        if at + len(where) > self.size:
            raise NotUsable(f"it has {self.size} bytes")
        number, done = bisect_right(self._begins, at) - 1, 0
        while done < len(where):
            inside = at + done - self._begins[number]
            done += self._copy(self._pieces[number], inside, where[done:])
            number += 1

    def _copy(self, piece: Piece, inside: int, where: memoryview) -> int:
        """What there is room for of a piece, from ``inside`` on; how many bytes."""
        size = min(_length(piece) - inside, len(where))
        if isinstance(piece, bytes):
            where[:size] = piece[inside : inside + size]
            return size
        done = 0
        while done < size:
            came = os.preadv(self._arena, [where[done:size]], piece[0] + inside + done)
            if came == 0:
                raise NotUsable("it was given back")
            done += came
        return size

    def close(self) -> None:
        """What is mapped stays, until nothing refers to it."""
        self._view = None
        os.close(self._arena)


class Memory:
    """What this worker remembers of one checkpoint, by file."""

    def __init__(self, files: Mapping[str, RememberedFile] | None = None) -> None:
        self._files = dict(files or {})

    def __bool__(self) -> bool:
        return bool(self._files)

    def holds(self, place: Place) -> bool:
        """Whether this block can be asked for; only one that a manifest vouches for."""
        return bool(place.hash) and place.file in self._files

    def fill(self, place: Place, where: memoryview) -> bool:
        """Put the block there, if what is remembered is what the manifest vouches for."""
        if not self.holds(place):
            return False
        try:
            self._files[place.file].read_into(place.at, where)
        except (NotUsable, OSError):
            return False
        return xxhash.xxh3_128_hexdigest(where) == place.hash

    def is_right(self, place: Place) -> bool:
        """Whether the block is what the manifest vouches for, where it lies."""
        if not self.holds(place):
            return False
        found = xxhash.xxh3_128()
        try:
            for _, part in self.parts(place.file, place.at, place.at + place.length):
                found.update(part)
        except (NotUsable, OSError):
            return False
        return found.hexdigest() == place.hash

    def parts(self, file: str, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Bytes of a file that is held, where they lie; see ``RememberedFile.parts``."""
        return self._files[file].parts(start, stop)

    def identities(self) -> dict[str, tuple[int, int]]:
        """By file: which memory it is, on this machine."""
        return {name: file.identity for name, file in self._files.items()}

    def broken(self) -> str:
        """The first file whose memory is no longer what it was when it was found; or ""."""
        return next((name for name, file in self._files.items() if not file.is_sealed), "")

    def close(self) -> None:
        """Nothing is read any more: another one may be given the memory."""
        for file in self._files.values():
            file.close()
        self._files = {}


def remember(keeper: RankLink, checkpoint: str, files: Mapping[str, FileEntry]) -> Memory:
    """What is held on this worker of a checkpoint with these files.

    An arena that is not whole, or has a file of another size, is left out.
    """
    found: dict[str, RememberedFile] = {}
    for size, arena, content in keeper.find(checkpoint):
        try:
            name, file = _open(arena, size, content)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            os.close(arena)
            continue  # storage has it
        finally:
            os.close(content)
        if name in files and files[name].bytes == file.size and name not in found:
            found[name] = file
        else:
            file.close()
    return Memory(found)


def _open(arena: int, size: int, content: int) -> tuple[str, RememberedFile]:
    """The file gets the arena. Raises NotUsable, or what a description that is none leads to."""
    told = json.loads(os.pread(content, os.fstat(content).st_size, 0))  # others share its position
    seal = bytes.fromhex(told["seal"])
    smalls = [cargo.Small(key, tuple(path), *rest) for key, path, *rest in told["smalls"]]
    pieces = list(_pieces(cargo.from_plain(told["items"]), smalls))
    if any(not isinstance(one, bytes) and not 0 <= one[0] <= one[0] + one[1] <= size for one in pieces):
        raise NotUsable("what it is said to hold lies outside")
    if not any(seal) or os.pread(arena, len(seal), size) != seal:
        raise NotUsable("another copy was begun in it")
    return str(told["file"]), RememberedFile(arena, pieces, seal, size)


def _pieces(items: Sequence[cargo.Item], smalls: Sequence[cargo.Small]) -> Iterator[Piece]:
    """The file as ``cargo.store_cargo`` writes it."""
    for item in (*items, *(small.item() for small in smalls if not small.pickled)):
        head, tail = frame(item.dtype, item.sizes, item.bytes)
        yield head
        yield item.at, item.bytes
        yield tail
    for small in smalls:
        if small.pickled:
            yield small.at, small.bytes


def _length(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1]
