"""A seekable stream over a file that is read block by block, with a few blocks kept. No torch.

DCP reads its files by offset, with many small reads in between; object storage answers each request in tens
of milliseconds, and our manifest has a hash for each block. So whole blocks are fetched, and checked if the
manifest is at hand.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import xxhash

from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import FileEntry

KEPT_BLOCKS = 4

Fetch = Callable[[int], bytes]  # block number -> its bytes


class BlockStream(io.RawIOBase):
    """Reads ``size`` bytes through ``fetch``; holds at most ``KEPT_BLOCKS`` blocks in memory."""

    def __init__(self, size: int, block_bytes: int, fetch: Fetch) -> None:
        self._size = size
        self._block_bytes = block_bytes
        self._fetch = fetch
        self._at = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer, except at the end."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        done = 0
        while done < wanted:
            number, inside = divmod(self._at, self._block_bytes)
            part = memoryview(self._block(number))[inside : inside + wanted - done]
            if not part:
                raise StorageUnavailable(f"block {number} is shorter than it was")
            view[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done

    def readall(self) -> bytes:
        return self.read(max(0, self._size - self._at)) or b""

    def _block(self, number: int) -> bytes:
        if number in self._kept:
            self._kept.move_to_end(number)
        else:
            self._kept[number] = self._fetch(number)
            if len(self._kept) > KEPT_BLOCKS:
                self._kept.popitem(last=False)
        return self._kept[number]


def verified_stream(store: Store, name: str, entry: FileEntry, block_bytes: int) -> BlockStream:
    """A file that was verified before, checked once more while it is read.

    What differs now is no proof of damage any more: it is read a second time, and then "cannot tell".
    """

    def fetch(number: int) -> bytes:
        for _ in range(2):
            data = store.read(name, number * block_bytes, block_bytes)
            if xxhash.xxh3_128_hexdigest(data) == entry.blocks[number]:
                return data
        raise StorageUnavailable(
            f"{name}: the bytes from {number * block_bytes} on are other ones than a moment ago"
        )

    return BlockStream(entry.bytes, block_bytes, fetch)
