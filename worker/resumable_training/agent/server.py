"""The agent's HTTP API: ``/healthz`` and ``/metrics`` open, all else signed; events as a signed stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Dict, List, Optional, Protocol, Set, Tuple
from urllib.parse import parse_qs, urlsplit

from resumable_training.agent import http
from resumable_training.agent.auth import Caller, Denied, Gate
from resumable_training.agent.bounded import within
from resumable_training.agent.http import BadRequest, HttpRequest
from resumable_training.agent.log import EventLog, newest_progress_only
from resumable_training.agent.metrics import CONTENT_TYPE
from resumable_training.contract import CONTRACT_VERSION, events, signing
from resumable_training.contract.codec import to_json, to_plain
from resumable_training.contract.events import (
    HEARTBEAT_SECONDS,
    SLOWEST_HEARTBEAT_SECONDS,
    AgentState,
    Event,
)

IDLE_SECONDS = 75.0  # between requests of one connection
SEND_SECONDS = 10.0  # for a reader that does not read
# Connections without a signed request yet; a descriptor each, and ranks need some too. asyncio lets in up to
# 100 a turn of its loop, and one that is turned away is closed some turns later: in a burst there may be some
# hundreds more for a moment, which is still below the usual limit of 1,024.
MOST_STRANGERS = 128
CUT_ALL = "all"

Answer = Tuple[int, Any]  # status, what to send as JSON


class Api(Protocol):
    """What the server serves."""

    def state(self) -> AgentState: ...

    def metrics(self) -> str: ...

    def heard(self) -> None:
        """An operator with the key is there."""
        ...

    async def assign(self, body: bytes) -> Answer: ...

    async def request(self, body: bytes) -> Answer: ...


class _Stream:
    """One reader of events; ``sent`` is the last number that was handed to the kernel."""

    def __init__(self, sent: int, heartbeat_seconds: float) -> None:
        self.sent = sent
        self.heartbeat_seconds = heartbeat_seconds
        self.index = 0

    def chosen(self, new: List[Event], with_progress: bool) -> List[Event]:
        """What to send of the events that are new to it. A reader that asked for fewer heartbeats gets no
        turn for progress alone, and of several reports of a rank the newest."""
        if self.heartbeat_seconds <= HEARTBEAT_SECONDS:
            return new
        if not with_progress and all(event.kind == events.PROGRESS for event in new):
            return []
        return newest_progress_only(new)


class Server:
    """Serves ``api`` on one address until closed."""

    def __init__(self, api: Api, gate: Gate, log: EventLog, worker: str) -> None:
        self._api = api
        self._gate = gate
        self._log = log
        self._worker = worker
        self._server: Optional[asyncio.AbstractServer] = None
        self._writers: Set[asyncio.StreamWriter] = set()
        self._strangers: Dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._streams: Set[_Stream] = set()
        self._cut_until = float("-inf")
        self._cut_scope = CUT_ALL

    async def open(self, address: str, port: int) -> int:
        """Listen; the port.

        Raises:
            OSError: the address can't be bound.
        """
        self._server = await asyncio.start_server(self._serve, address, port, limit=http.HEADER_LIMIT)
        sockets = self._server.sockets
        assert sockets
        return int(sockets[0].getsockname()[1])

    @property
    def streams(self) -> int:
        """Open event streams."""
        return len(self._streams)

    async def flush(self, timeout_seconds: float) -> None:
        """Wait until every open stream has got all events, at most so long."""
        deadline = time.monotonic() + timeout_seconds
        while any(stream.sent < self._log.last_seq for stream in self._streams):
            if time.monotonic() >= deadline:
                return
            await asyncio.sleep(0.005)

    # fault injection ----------------------------------------------------------------------------------

    def cut(self, seconds: float, scope: str) -> None:
        """From now on, for so long, be unreachable: for the operator alone, or for all."""
        self._cut_until, self._cut_scope = time.monotonic() + seconds, scope
        for writer in self._writers:
            writer.transport.abort()

    def is_cut(self, scope: str = CUT_ALL) -> bool:
        """Is that scope unreachable now? Being cut for all includes the operator."""
        return time.monotonic() < self._cut_until and self._cut_scope in (scope, CUT_ALL)

    # connections --------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self._note_stranger(writer)
        try:
            while not self.is_cut() and await self._serve_one(reader, writer):
                pass
        except BadRequest as error:
            body = to_json({"code": "bad_request", "message": str(error)})
            writer.write(http.reply(error.status, body, {}, keep_alive=False))
        except (OSError, asyncio.TimeoutError):
            pass  # the peer's trouble; it comes back
        except asyncio.CancelledError:
            pass  # the agent ends; passed on, asyncio would log a traceback for every connection
        finally:
            self._writers.discard(writer)
            self._strangers.pop(writer, None)
            if self.is_cut():
                writer.transport.abort()
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    def _note_stranger(self, writer: asyncio.StreamWriter) -> None:
        """Of too many that have not said anything signed, the oldest goes."""
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is over."""
        request = await within(http.read_request(reader), IDLE_SECONDS)
        if request is None:
            return False
        if request.path == "/healthz":
            return await self._send(writer, request, 200, self._health())
        if self.is_cut("operator"):
            writer.transport.abort()
            return False
        if request.path == "/metrics":
            text = self._api.metrics().encode()
            return await self._send_raw(writer, request, 200, text, {"Content-Type": CONTENT_TYPE})
        return await self._serve_signed(writer, request)

    async def _serve_signed(self, writer: asyncio.StreamWriter, request: HttpRequest) -> bool:
        try:
            caller = self._gate.admit(request.method, request.target, request.headers, request.body)
        except Denied as denied:
            answer = {
                "code": denied.code,
                "message": str(denied),
                "counter": self._gate.counter,
                "boot_id": self._gate.boot_id,
            }
            return await self._send(writer, request, 401, answer, denied.caller)
        self._strangers.pop(writer, None)
        self._api.heard()
        if (request.method, request.path) == ("GET", "/v1/events"):
            await self._stream(writer, request, caller)
            return False
        status, answer = await self._route(request)
        return await self._send(writer, request, status, answer, caller)

    async def _route(self, request: HttpRequest) -> Answer:
        route = (request.method, request.path)
        if route == ("GET", "/v1/state"):
            return 200, self._api.state()
        if route == ("PUT", "/v1/assignment"):
            return await self._api.assign(request.body)
        if route == ("POST", "/v1/request"):
            return await self._api.request(request.body)
        return 404, {"code": "not_found", "message": "no %s %s here" % route}

    def _health(self) -> Dict[str, Any]:
        return {
            "boot_id": self._gate.boot_id,
            "worker": self._worker,
            "counter": self._gate.counter,
            "contract_version": CONTRACT_VERSION,
        }

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        request: HttpRequest,
        status: int,
        answer: Any,
        caller: Optional[Caller] = None,
    ) -> bool:
        body = to_json(answer)
        headers = {"Content-Type": "application/json"}
        if caller:
            headers[signing.HEADER_BOOT_ID] = self._gate.boot_id
            headers[signing.HEADER_SIGNATURE] = signing.sign_reply(
                caller.key, self._gate.boot_id, caller.counter, status, body
            )
        return await self._send_raw(writer, request, status, body, headers)

    async def _send_raw(
        self,
        writer: asyncio.StreamWriter,
        request: HttpRequest,
        status: int,
        body: bytes,
        headers: Dict[str, str],
    ) -> bool:
        writer.write(http.reply(status, body, headers, request.keep_alive))
        await within(writer.drain(), SEND_SECONDS)
        return request.keep_alive

    # events -------------------------------------------------------------------------------------------

    async def _stream(self, writer: asyncio.StreamWriter, request: HttpRequest, caller: Caller) -> None:
        stream = _Stream(self._first_wanted(request), _heartbeat_seconds(request))
        self._streams.add(stream)
        try:
            writer.write(http.stream_head({"Content-Type": "application/jsonl"}))
            await self._follow(writer, stream, caller)
        finally:
            self._streams.discard(stream)

    def _first_wanted(self, request: HttpRequest) -> int:
        """The number after which to begin. One that this boot never reached is another boot's: all is new."""
        number = _number(request, "after", 0)
        return number if number <= self._log.last_seq else 0

    async def _follow(self, writer: asyncio.StreamWriter, stream: _Stream, caller: Caller) -> None:
        snapshot_due = time.monotonic()
        while not writer.transport.is_closing():
            lines: List[Event] = []
            if time.monotonic() >= snapshot_due:
                lines.append(self._snapshot())
                snapshot_due = time.monotonic() + stream.heartbeat_seconds
            seen = self._log.last_seq
            lines += stream.chosen(self._log.after(stream.sent), with_progress=bool(lines))
            if lines:
                await self._send_lines(writer, stream, caller, lines)
                self._api.heard()
            await self._log.wait_beyond(seen, max(0.0, snapshot_due - time.monotonic()))

    async def _send_lines(
        self, writer: asyncio.StreamWriter, stream: _Stream, caller: Caller, lines: List[Event]
    ) -> None:
        data = b""
        for event in lines:
            text = to_json(event)
            sign = signing.sign_line(caller.key, self._gate.boot_id, caller.counter, stream.index, text)
            data += json.dumps({"i": stream.index, "l": text.decode(), "s": sign}).encode() + b"\n"
            stream.index += 1
        writer.write(http.chunk(data))
        await within(writer.drain(), SEND_SECONDS)
        stream.sent = max(stream.sent, lines[-1].seq)

    def _snapshot(self) -> Event:
        state = self._api.state()
        return Event(0, state.now_ms, events.SNAPSHOT, state.attempt, state.boot_id, to_plain(state))


def _number(request: HttpRequest, name: str, default: int) -> int:
    text = parse_qs(urlsplit(request.target).query).get(name, [str(default)])[0]
    if not http.is_number(text) or len(text) > 18:
        raise BadRequest(400, "%s=%s is not a number" % (name, text))
    return int(text)


def _heartbeat_seconds(request: HttpRequest) -> float:
    """Of snapshots in a stream: as often as agreed, or as seldom as its reader asks for."""
    asked = _number(request, "heartbeat_ms", 0) / 1000
    return min(SLOWEST_HEARTBEAT_SECONDS, max(HEARTBEAT_SECONDS, asked))
