"""The unix socket between the agent and its ranks: JSON lines both ways (``contract.rankwire``).

One socket for each attempt, so that a rank of an older one can't reach the new. A peer is believed to be a
rank when its process is in that rank's session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import select
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

from resumable_training.contract import rankwire

_LINE_LIMIT = 64 * 1024  # an event with it in must fit a reader's line
_SETTLE_TURNS = 1000


@dataclass
class _Link:
    rank: int
    pid: int  # the process that said hello: a wrapper script's child, maybe
    writer: asyncio.StreamWriter
    ended: bool = False


class RankLink:
    """Server side of one attempt.

    Args:
        path: of the socket; short (108 bytes).
        leaders: answers rank -> pid of its session's leader.
        on_message: called with (rank, pid, message) for every message, ``hello`` first.
        warn: called with a sentence when a peer breaks the rules.
    """

    def __init__(
        self,
        path: str,
        leaders: Callable[[], Dict[int, int]],
        on_message: Callable[[int, int, Dict[str, Any]], None],
        warn: Callable[[str], None],
    ) -> None:
        self.path = path
        self._leaders = leaders
        self._on_message = on_message
        self._warn = warn
        self._links: Dict[int, _Link] = {}
        self._server: Optional[asyncio.AbstractServer] = None

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_LINE_LIMIT)

    def close(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.writer.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def connected(self, rank: int) -> bool:
        return rank in self._links

    def pid(self, rank: int) -> Optional[int]:
        """Process that speaks for the rank; None before hello."""
        link = self._links.get(rank)
        return link.pid if link else None

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Queue a message; one for a rank that is not connected, or has gone, is lost."""
        link = self._links.get(rank)
        if link is not None and not link.ended and not link.writer.is_closing():
            link.writer.write(json.dumps({"kind": kind, **fields}).encode() + b"\n")

    async def settle(self, rank: int) -> None:
        """Let all that an ended rank has sent be handled; does not wait for what its children hold open."""
        link = self._links.get(rank)
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)
            if link is None or link.ended or not _readable(link.writer):
                break
        for _ in range(3):  # what has been read is handled by the connection's own task
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. Before hello a broken rule ends it; after, only that message is lost."""
        link: Optional[_Link] = None
        try:
            while True:
                try:
                    line = await reader.readline()
                    if not line:
                        return
                    message = _parse(line)
                    link = link or self._admit(message, writer)
                except ValueError as error:  # not a message, or longer than the limit
                    self._warn("a message from %s is not understood: %s" % (_name(link), error))
                    if link is None:
                        return
                else:
                    self._on_message(link.rank, link.pid, message)
        except ConnectionError:
            pass  # the rank's end is seen by waitpid
        except asyncio.CancelledError:
            pass  # the agent ends; passed on, asyncio would log a traceback
        finally:
            if link is not None:
                link.ended = True
            writer.close()

    def _admit(self, message: Dict[str, Any], writer: asyncio.StreamWriter) -> _Link:
        """The first message must be ``hello``, from a process of that rank's session."""
        rank, pid = message.get("rank"), message.get("pid")
        if message["kind"] != rankwire.HELLO or not isinstance(rank, int) or not isinstance(pid, int):
            raise ValueError("it did not say hello")
        leader = self._leaders().get(rank)
        if leader is None or _session(pid) != leader:
            raise ValueError("process %d is not rank %d of this attempt" % (pid, rank))
        link = _Link(rank, pid, writer)
        self._links[rank] = link
        return link


def _parse(line: bytes) -> Dict[str, Any]:
    try:  # what is no finite number is no JSON and could not be sent on
        message = json.loads(line, parse_float=_finite, parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError("nested so deeply that nobody meant it") from error
    if not isinstance(message, dict) or message.get("kind") not in rankwire.FROM_RANK:
        raise ValueError("unknown message %r" % line[:80])
    return message


def _finite(text: str) -> Optional[float]:
    number = float(text)
    return number if math.isfinite(number) else None


def _name(link: Optional[_Link]) -> str:
    return "rank %d" % link.rank if link else "a process that did not say hello"


def _session(pid: int) -> Optional[int]:
    try:
        return os.getsid(pid)
    except (OSError, OverflowError):
        return None


def _readable(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))
