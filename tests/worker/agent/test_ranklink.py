"""The socket between agent and ranks: who is let in, and what of its messages is passed on."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from resumable_training.agent.ranklink import RankLink

HELLO = {"kind": "hello", "rank": 0, "pid": os.getpid(), "version": 1}


class Link:
    """A RankLink of which this process is rank 0, and what it heard."""

    def __init__(self, directory: str) -> None:
        self.heard: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.link = RankLink(
            str(Path(directory, "s")),
            lambda: {0: os.getsid(0), 1: 1},
            lambda rank, pid, message: self.heard.append(dict(message, rank=rank, by=pid)),
            self.warnings.append,
        )

    async def connect(self, *lines: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self.link.path)
        for line in lines:
            writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        await writer.drain()
        return reader, writer


@pytest.fixture
async def opened() -> AsyncIterator[Link]:
    with tempfile.TemporaryDirectory(prefix="rtj-", dir="/tmp") as directory:
        link = Link(directory)
        await link.link.open()
        yield link
        link.link.close()
        assert os.listdir(directory) == []


async def test_messages_both_ways(opened: Link) -> None:
    """After hello, reports come in order and messages reach the rank; to others they are lost."""
    reader, writer = await opened.connect(HELLO, {"kind": "warning", "message": "w"})
    writer.write(json.dumps({"kind": "checkpoint", "step": 5}).encode() + b"\n")
    await opened.link.settle(0)
    while len(opened.heard) < 3:
        await asyncio.sleep(0.01)
    assert [message["kind"] for message in opened.heard] == ["hello", "warning", "checkpoint"]
    assert {message["by"] for message in opened.heard} == {os.getpid()}
    assert (opened.link.connected(0), opened.link.pid(0), opened.link.pid(1)) == (True, os.getpid(), None)
    opened.link.send(1, "drain")
    opened.link.send(0, "drain", reason="scale", seconds=3.0)
    assert json.loads(await reader.readline()) == {"kind": "drain", "reason": "scale", "seconds": 3.0}
    writer.close()


@pytest.mark.parametrize(
    "first",
    [
        {"kind": "warning", "message": "no hello"},
        {**HELLO, "rank": 1},
        {**HELLO, "rank": 7},
        {**HELLO, "rank": "0"},
        {**HELLO, "pid": 2**22 + 1},
        {**HELLO, "pid": 10**30},
        b"nonsense\n",
        b"[]\n",
        b"[" * 50_000 + b"\n",
    ],
)
async def test_strangers_are_turned_away(opened: Link, first: object) -> None:
    """No hello, another rank's number, or a process that is none: closed, with a warning."""
    await _assert_turned_away(opened, first)


async def test_process_of_another_session_is_turned_away(opened: Link) -> None:
    """It is no rank of this attempt, whatever it says."""
    stranger = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    try:
        await _assert_turned_away(opened, {**HELLO, "pid": stranger.pid})
    finally:
        stranger.kill()
        await stranger.wait()


async def _assert_turned_away(opened: Link, first: object) -> None:
    reader, writer = await opened.connect(first)
    assert await reader.read() == b""
    assert opened.heard == []
    assert len(opened.warnings) == 1
    writer.close()


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\n",
        b'{"kind": "dance"}\n',
        b'"' + b"x" * 200_000 + b'"\n',
        b"\xff\n",
        b'{"kind":' * 5_000 + b"\n",
    ],
)
async def test_one_bad_message_is_not_the_end(opened: Link, bad: bytes) -> None:
    """It is lost with a warning; the rank can still be asked to drain."""
    reader, writer = await opened.connect(HELLO, bad, {"kind": "checkpoint", "step": 1})
    while not opened.heard or opened.heard[-1]["kind"] != "checkpoint":
        await asyncio.sleep(0.01)
    assert opened.warnings
    opened.link.send(0, "drain")
    assert b"drain" in await reader.readline()
    writer.close()


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
async def test_not_a_number_becomes_null(opened: Link, number: bytes) -> None:
    """What Python writes for NaN must not break the agent's own stream."""
    _, writer = await opened.connect(HELLO, b'{"kind": "warning", "message": %s}\n' % number)
    while len(opened.heard) < 2:
        await asyncio.sleep(0.01)
    assert opened.heard[1]["message"] is None
    writer.close()


async def test_settle_takes_in_what_an_ended_rank_sent(opened: Link) -> None:
    """Everything in the socket is heard before the exit is told, also when a child holds it open."""
    _, writer = await opened.connect(HELLO, *[{"kind": "checkpoint", "step": step} for step in range(500)])
    while not opened.link.connected(0):
        await asyncio.sleep(0)
    await opened.link.settle(0)
    assert len(opened.heard) == 501
    writer.close()
