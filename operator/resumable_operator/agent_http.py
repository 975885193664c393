"""As much of an HTTP client as calls to agents need: a request and its whole reply, or a stream of lines.

One connection for each: a kept one that died with its agent would make a call fail that need not. Lines are
handed over as they are read, without a task switch, a queue or a timer for each: the operator of a large
fleet reads thousands of short lines a second, and little else that it does costs as much. Nobody who answers
at an agent's address can send us elsewhere, or more than ``LONGEST_BYTES`` at once.
``agent_client`` is the only caller.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

LONGEST_BYTES = 1 << 20  # of a reply, and of a line: an agent's are small
LONGEST_HEAD = 32 * 1024  # bytes of status and headers
LONGEST_SIZE = 16  # characters that tell the size of a chunk
BURST_BYTES = 8 << 20  # of a stream: more than an agent's whole log
BYTES_A_SECOND = 128 << 10  # of a stream beyond that; an agent tells some hundred lines a minute
_SIZE = re.compile(rb"[0-9a-fA-F]{1,%d}" % LONGEST_SIZE)

Take = Callable[[bytes], bool]  # a line; true: no more of them


class NotHttp(ValueError):
    """What came is not HTTP/1.1 as agents speak it, or too long."""


@dataclass(frozen=True)
class Call:
    """A request. Times in seconds: to connect, and until all is answered (of a stream: of silence)."""

    address: str
    port: int
    data: bytes
    connect_seconds: float
    seconds: float


@dataclass(frozen=True)
class Reply:
    """``headers``: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def request(method: str, host: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The text of a request, the only one of its connection."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Session:
    """The connections of one owner; those still open end with it. Use within one event loop."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for connection in tuple(self._open):
            connection.end(ConnectionAbortedError("closed by ourselves"))

    async def reply(self, call: Call) -> Reply:
        """All that is answered.

        Raises:
            OSError: no connection, or it broke; TimeoutError: it took too long.
            NotHttp
        """
        async with asyncio.timeout(call.seconds):
            connection = await self._connect(call)
            try:
                await connection.ended()
                return connection.reply()
            finally:
                connection.end()

    async def stream(self, call: Call) -> Connection | Reply:
        """A connection to ``read`` from when the status is 200, else all that is answered.

        Raises:
            as ``reply``
        """
        connection = await self._connect(call)
        try:
            async with asyncio.timeout(call.seconds):
                if await connection.status() == 200:
                    connection.watch_silence(call.seconds)
                    return connection
                await connection.ended()
                reply = connection.reply()
        except BaseException:
            connection.end()
            raise
        connection.end()
        return reply

    async def _connect(self, call: Call) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(call.connect_seconds):
            _, connection = await loop.create_connection(
                lambda: Connection(self._open), call.address, call.port
            )
        connection.transport.write(call.data)
        return connection


class Connection(asyncio.Protocol):
    """One request's connection. What is awaited here raises what ended it, if that was an error."""

    transport: asyncio.Transport

    def __init__(self, register: set[Connection]) -> None:
        self._loop = asyncio.get_running_loop()
        self._register = register
        self._data = b""  # not looked at yet
        self._status = 0
        self._headers: dict[str, str] = {}
        self._left: int | None = None  # bytes until the end of the body, or of the chunk; None: not known
        self._chunked = False
        self._text = bytearray()  # of the body; of a stream that is read: the beginning of a line
        self._take: Take | None = None
        self._error: Exception | None = None
        self._is_over = False
        self._heard_at = self._filled_at = self._loop.time()
        self._room = float(BURST_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    # ---- for who waits -------------------------------------------------------------------------------

    async def status(self) -> int:
        await self._until(lambda: self._status != 0)
        return self._status

    async def ended(self) -> None:
        """Nothing more will come."""
        await self._until(lambda: self._is_over)

    async def read(self, take: Take) -> None:
        """Hand each line to ``take``, as it comes, until that says to stop or the stream ends.

        Raises:
            what ``take`` raises
        """
        text, self._text, self._take = bytes(self._text), bytearray(), take
        self._guarded(lambda: self._split(text))
        await self.ended()

    def reply(self) -> Reply:
        return Reply(self._status, self._headers, bytes(self._text))

    def watch_silence(self, seconds: float) -> None:
        """End when nothing has come for so long. One timer for all lines, which looks when the last came."""
        left = self._heard_at + seconds - self._loop.time()
        if left <= 0:
            self.end(TimeoutError(f"silent for {seconds:.1f} s"))
        elif not self._is_over:
            self._timer = self._loop.call_later(left, self.watch_silence, seconds)

    def end(self, error: Exception | None = None) -> None:
        """Close it, if that is still to be done."""
        if self._is_over:
            return
        self._is_over, self._error = True, error
        self._register.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self.transport.close()
        else:
            self.transport.abort()
        self._wake()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds() and not self._is_over:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- for the event loop --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._register.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._heard_at = self._loop.time()
        self._data += data
        self._guarded(self._advance)
        self._slow_down(len(data))

    def _slow_down(self, count: int) -> None:
        """Whoever tells without end is read no faster than others can bear."""
        now = self._heard_at
        self._room = min(BURST_BYTES, self._room + (now - self._filled_at) * BYTES_A_SECOND) - count
        self._filled_at = now
        if self._room < 0 and not self._is_over:
            self.transport.pause_reading()
            self._loop.call_later(-self._room / BYTES_A_SECOND, self._go_on)

    def _go_on(self) -> None:
        if not self._is_over:
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        complete = self._status and not self._chunked and self._left is None
        self.end(
            None if complete and exc is None else exc or ConnectionResetError("the connection broke off")
        )

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- raised where it is waited for
            self.end(error)

    # ---- what comes ----------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self._status == 0 and not self._read_head():
            return
        if self._chunked:
            self._read_chunks()
        else:
            self._read_plain()

    def _read_head(self) -> bool:
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if len(head) > LONGEST_HEAD:
            raise NotHttp("the head of the reply is too long")
        if not end:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _is_number(words[1], 3):
            raise NotHttp(f"no HTTP: {first[:80]!r}")
        fields = (line.partition(":") for line in lines)
        self._headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self._chunked = "chunked" in self._headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._chunked else self._length()
        self._data, self._status = rest, int(words[1])
        self._wake()
        return True

    def _length(self) -> int | None:
        text = self._headers.get("content-length")
        if text is None:
            return None  # until the connection ends
        if not _is_number(text, 18):
            raise NotHttp(f"no length: {text[:80]!r}")
        if int(text) > LONGEST_BYTES:
            raise NotHttp("the reply is too long")
        return int(text)

    def _read_plain(self) -> None:
        data, self._data = self._data, b""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        self._deliver(data)
        if self._left == 0:
            self.end()

    def _read_chunks(self) -> None:
        """``size CR LF data CR LF`` and so on; size 0 is the end. ``_left`` counts the second CR LF, too."""
        data, at, texts, is_last = self._data, 0, [], False
        while at < len(data) and not is_last:
            if self._left:
                stop = min(at + self._left, len(data))
                texts.append(data[at : max(at, min(at + self._left - 2, stop))])
                at, self._left = stop, self._left - (stop - at)
                continue
            end = data.find(b"\r\n", at, at + LONGEST_SIZE + 2)
            if end < 0 and len(data) - at <= LONGEST_SIZE:
                break
            if end < 0:
                raise NotHttp(f"no size of a chunk: {data[at : at + 80]!r}")
            number = _hexadecimal(data[at:end].partition(b";")[0])
            at, self._left, is_last = end + 2, number + 2, number == 0
        self._data = data[at:]
        self._deliver(b"".join(texts))  # all at once: they may be many, and tiny
        if is_last:
            self.end()

    def _deliver(self, data: bytes) -> None:
        if self._take is not None:
            self._split(data)
            return
        self._text += data
        if len(self._text) > LONGEST_BYTES:
            raise NotHttp("the reply is too long")

    def _split(self, data: bytes) -> None:
        assert self._take is not None
        whole, end, rest = data.rpartition(b"\n")
        lines = bytes(self._text + whole).split(b"\n") if end else []
        if end:
            self._text.clear()
        self._text += rest
        if len(self._text) > LONGEST_BYTES:
            raise NotHttp("a line is too long")
        for line in lines:  # also those that came with the end of the stream
            if self._take is None:
                return
            if self._take(line):
                self._take = None
                self.end()


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def _hexadecimal(text: bytes) -> int:
    if not _SIZE.fullmatch(text):
        raise NotHttp(f"no size of a chunk: {text[:80]!r}")
    return int(text, 16)
