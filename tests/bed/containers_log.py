"""Logs of containers: the plain text in a file, with the time of each piece beside it, as `kubectl logs`
needs it.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PIECE = 1 << 20


@dataclass(frozen=True)
class LogOptions:
    """The options of the API's pods/log. `since` in seconds since the epoch; `limit_bytes` of the answer."""

    follow: bool = False
    tail_lines: int | None = None
    since: float | None = None
    limit_bytes: int | None = None
    timestamps: bool = False


class ContainerLog:
    """What one run of a container printed. `write` until `close`; readable at any time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("wb", buffering=0)
        self._size = 0
        self._offsets: list[int] = []  # of each piece as it was read ...
        self._times: list[float] = []  # ... and when
        self._closed = False
        self._news = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Append."""
        self._offsets.append(self._size)
        self._times.append(time.time())
        self._file.write(data)
        self._size += len(data)
        self._tell()

    def close(self) -> None:
        """Nothing more comes: followers end."""
        self._closed = True
        self._file.close()
        self._tell()

    async def read(self, options: LogOptions) -> AsyncIterator[bytes]:
        """The text in pieces; with `follow` until the container has ended."""
        left = options.limit_bytes
        async for piece in self._lines(options):
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if left == 0:
                return

    async def _lines(self, options: LogOptions) -> AsyncIterator[bytes]:
        position = self._start(options)
        while True:
            self._news.clear()
            closed = self._closed
            while data := self._read(position, whole_lines=options.timestamps and not closed):
                yield self._stamped(data, position) if options.timestamps else data
                position += len(data)
            if closed or not options.follow:
                return
            if closed == self._closed:
                await self._news.wait()

    def _start(self, options: LogOptions) -> int:
        position = 0
        if options.since is not None:
            positions = [
                at for at, when in zip(self._offsets, self._times, strict=True) if when >= options.since
            ]
            position = positions[0] if positions else self._size
        if options.tail_lines is not None:
            position = max(position, self._tail(options.tail_lines))
        return position

    def _tail(self, lines: int) -> int:
        """Where the last `lines` lines begin."""
        if lines <= 0:
            return self._size
        data = self.path.read_bytes()
        at = len(data) - 1  # a newline at the very end ends the last line
        for _ in range(lines):
            at = data.rfind(b"\n", 0, max(at, 0))
            if at < 0:
                return 0
        return at + 1

    def _read(self, position: int, whole_lines: bool) -> bytes:
        with self.path.open("rb") as file:
            file.seek(position)
            data = file.read(PIECE)
        if whole_lines and len(data) < PIECE:
            return data[: data.rfind(b"\n") + 1]
        return data

    def _stamped(self, data: bytes, position: int) -> bytes:
        lines = []
        for line in data.splitlines(keepends=True):
            when = self._times[bisect_right(self._offsets, position) - 1]
            lines.append(f"{_nanoseconds(when)} ".encode() + line)
            position += len(line)
        return b"".join(lines)

    def _tell(self) -> None:
        self._news.set()


def _nanoseconds(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
