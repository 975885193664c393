"""The blocks of a checkpoint's files, and reading several of them at once. No torch, no NumPy.

A block is what a manifest has a hash for, and what one rank reads: object storage answers each request in
tens of milliseconds, so pieces are large and several are asked for at a time.
"""

from __future__ import annotations

import io
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import xxhash

from resumable_training.checkpoint.errors import CheckpointError, StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import FileEntry

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 6  # reads in flight
SILENT_SECONDS = 300.0  # a store that answers none of them for so long is given up

Fetch = Callable[[int], bytes]  # block number -> its bytes


@dataclass(frozen=True)
class Place:
    """One block: where it lies, and what its hash must be ("": nobody knows)."""

    file: str
    at: int  # bytes from the file's begin
    length: int
    hash: str = ""


class Blocks:
    """All blocks of some files under one numbering, by name of file and then by place."""

    def __init__(
        self, sizes: Mapping[str, int], block_bytes: int, hashes: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """``hashes``: of each block of a file; one for each, or none."""
        self.block_bytes = block_bytes
        self._first: dict[str, int] = {}
        self.places: list[Place] = []
        for file, size in sorted(sizes.items()):
            self._first[file] = len(self.places)
            known = (hashes or {}).get(file, ())
            for number, at in enumerate(range(0, size, block_bytes)):
                self.places.append(
                    Place(file, at, min(block_bytes, size - at), known[number] if known else "")
                )

    def __len__(self) -> int:
        return len(self.places)

    def numbers(self, file: str, start: int, stop: int) -> range:
        """The blocks that hold bytes ``start`` to ``stop`` of a file."""
        if start >= stop:
            return range(0)
        first = self._first[file]
        return range(first + start // self.block_bytes, first + (stop - 1) // self.block_bytes + 1)


def in_parallel(
    work: Callable[[T], R],
    todo: Iterable[T],
    where: str,
    *,
    at_once: int = AT_ONCE,
) -> Iterator[tuple[T, R]]:
    """Do ``work`` on several threads; each thing with its result, as they come.

    A read that hangs in the kernel can't be ended: its thread is left behind, and does not keep the process.

    Raises:
        StorageUnavailable: none was done for SILENT_SECONDS; the text says ``where``.
        Exception: whatever ``work`` raises; nothing new is begun then.
    """
    waiting = deque(todo)
    done: queue.SimpleQueue[tuple[T, Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        while True:
            try:
                one = waiting.popleft()
            except IndexError:
                return
            try:
                done.put((one, work(one), None))
            except Exception as error:  # noqa: BLE001  raised again by the thread that waits
                waiting.clear()
                done.put((one, None, error))

    count = len(waiting)
    for _ in range(min(at_once, count)):
        threading.Thread(target=run, name="checkpoint-read", daemon=True).start()
    try:
        for _ in range(count):
            one, result, error = done.get(timeout=SILENT_SECONDS)
            if error is not None:
                raise error
            yield one, result
    except queue.Empty:
        raise StorageUnavailable(f"{where} has not answered a read for {SILENT_SECONDS:.0f} s") from None
    finally:
        waiting.clear()


def in_order(work: Callable[[T], R], todo: Iterable[T], *, at_once: int = AT_ONCE) -> Iterator[tuple[T, R]]:
    """As ``in_parallel``, in the order of ``todo`` and with at most ``at_once`` results waiting."""
    flying: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(at_once, "checkpoint-read") as pool:
        try:
            for one in todo:
                flying.append((one, pool.submit(work, one)))
                if len(flying) == at_once:
                    first, future = flying.popleft()
                    yield first, future.result()
            while flying:
                first, future = flying.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class BlockStream(io.RawIOBase):
    """A seekable stream over ``size`` bytes that come block by block.

    Whoever reads on from block to block gets the next ``ahead`` fetched meanwhile. Holds two blocks more.
    """

    def __init__(self, size: int, block_bytes: int, fetch: Fetch, ahead: int = 0) -> None:
        self._size = size
        self._block_bytes = block_bytes
        self._fetch = fetch
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(ahead, "checkpoint-stream") if ahead else None
        self._at = 0
        self._last = -1  # block that was used last
        self._kept: dict[int, bytes | Future[bytes]] = {}  # used last comes last

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

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _block(self, number: int) -> bytes:
        if self._pool is not None and number == self._last + 1:
            self._fetch_ahead(self._pool, number)
        self._last = number
        found = self._kept.pop(number, None)
        data = found.result() if isinstance(found, Future) else found
        if data is None:
            data = self._fetch(number)
        self._kept[number] = data
        while len(self._kept) > self._ahead + 2:
            behind = next((one for one in self._kept if one < number), None)
            del self._kept[behind if behind is not None else next(iter(self._kept))]
        return data

    def _fetch_ahead(self, pool: ThreadPoolExecutor, number: int) -> None:
        end = -(-self._size // self._block_bytes)
        for later in range(number, min(number + 1 + self._ahead, end)):
            if later not in self._kept:
                self._kept[later] = pool.submit(self._fetch, later)


class BlockDiffers(CheckpointError):
    """Bytes of a file are not those that the manifest vouches for."""

    def __init__(self, at: int, length: int) -> None:
        super().__init__(f"{length} bytes from {at} on")
        self.at = at
        self.length = length


def verified_stream(store: Store, name: str, entry: FileEntry, block_bytes: int) -> BlockStream:
    """A file whose every block is compared with the manifest when it is read.

    Raises (when it is read):
        BlockDiffers: two reads of a block were wrong; the one who reads knows the checkpoint's name.
    """

    def fetch(number: int) -> bytes:
        at = number * block_bytes
        length = min(block_bytes, entry.bytes - at)
        for _ in range(2):
            data = store.read(name, at, length)
            if xxhash.xxh3_128_hexdigest(data) == entry.blocks[number]:
                return data
        if len(data) != length:  # its size was right a moment ago
            raise StorageUnavailable(f"{name}: {len(data)} bytes came from {at} on")
        raise BlockDiffers(at, length)

    return BlockStream(entry.bytes, block_bytes, fetch)
