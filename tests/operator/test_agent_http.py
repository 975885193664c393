"""Reading from whoever answers at an agent's address: every line once, and never at the others' expense."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator import agent_http
from resumable_operator.agent_http import Call, Connection, NotHttp, Session

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Call]:
    """A call to a server that reads a request's head and then does what it likes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            await answer(writer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Call("127.0.0.1", port, agent_http.request("GET", "x", "/", {}, b""), 5.0, 30.0)


class Deaf(asyncio.Transport):
    """Takes everything and does nothing."""

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def chunked(text: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in itertools.chain(sizes, itertools.repeat(7)):
        part = text[at : at + size]
        if not part:
            return b"".join(parts)
        parts.append(b"%x\r\n%s\r\n" % (len(part), part))
        at += size
    raise AssertionError("unreachable")


def split_at(data: bytes, sizes: list[int]) -> list[bytes]:
    cuts = [0, *itertools.accumulate(sizes), len(data)]
    return [piece for start, end in itertools.pairwise(cuts) if (piece := data[start:end])]


SIZES = st.lists(st.integers(1, 40), max_size=30)


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=12),
    chunks=SIZES,
    reads=SIZES,
)
async def test_lines_arrive_however_they_are_cut(
    lines: list[bytes], chunks: list[int], reads: list[int]
) -> None:
    """Each line once, in order, whatever the chunks and the pieces in which they come; a rest is no line."""
    connection, heard = Connection(set()), []
    connection.connection_made(Deaf())
    text = b"".join(line + b"\n" for line in lines) + b"rest"
    first, *more = split_at(HEAD + chunked(text, chunks) + b"0\r\n\r\n", reads)
    connection.data_received(first)
    reading = asyncio.create_task(connection.read(lambda line: heard.append(bytes(line)) or False))  # type: ignore[func-returns-value]
    await asyncio.sleep(0)
    for piece in more:
        connection.data_received(piece)
    await reading
    assert heard == lines


@pytest.mark.parametrize("size", [b"", b"-1", b"1g", b"0x5", b"f" * 40, b"1" + b";" * 60])
async def test_no_size_of_a_chunk(size: bytes) -> None:
    """What is no size ends the stream."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + size + b"\r\nx\r\n")
        await writer.drain()

    async def read(call: Call, session: Session) -> None:
        stream = await session.stream(call)
        assert isinstance(stream, Connection)
        await stream.read(lambda _line: False)

    async with answering(answer) as call, Session() as session:
        with pytest.raises(NotHttp):
            await read(call, session)


async def test_tiny_chunks_keep_nobody_else_waiting() -> None:
    """A megabyte without a line's end, byte by byte, is read in no time: the event loop goes on."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for _ in range(250):
            writer.write(b"1\r\nx\r\n" * 4000)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)

    async with answering(answer) as call, Session() as session:
        stream = await session.stream(call)
        assert isinstance(stream, Connection)
        ticking = asyncio.create_task(tick())
        await stream.read(lambda _line: False)
        ticking.cancel()
    assert longest < 1.0


async def test_who_tells_without_end_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a burst only so much a second; and once it stops, nothing of what it said is lost."""
    monkeypatch.setattr(agent_http, "BURST_BYTES", 1 << 20)
    monkeypatch.setattr(agent_http, "BYTES_A_SECOND", 1 << 20)
    line, heard, told = b"x" * 999 + b"\n", 0, 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal told
        writer.write(HEAD)
        for _ in range(60):
            text = line * 100
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            told += 100
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def hear(_line: bytes) -> bool:
        nonlocal heard
        heard += 1
        return False

    async with answering(answer) as call, Session() as session:
        stream = await session.stream(call)
        assert isinstance(stream, Connection)
        began = time.monotonic()
        await stream.read(hear)
        taken = time.monotonic() - began
    assert heard == told == 6000
    assert taken > 3.0, "6 MB with a burst of 1 MiB and 1 MiB a second"
