"""Simulated agents: the signed API of any number of agents on one listening socket, and no ranks at all.

Which agent a connection is for follows from the address that it was made to. An agent takes assignments and
requests as a real one does (contract/, agent/server.py), says that its ranks run or have ended, sends
heartbeats, and reports progress as often as a real one. Built to cost little: what is sent over and over is
a text with holes. ``sim_pods`` makes agents and ends them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from resumable_training.agent.rank import OTHER_REPORT_SECONDS, RANK_0_REPORT_SECONDS
from resumable_training.contract import CONTRACT_VERSION, events, signing
from resumable_training.contract.codec import to_json, to_plain
from resumable_training.contract.events import HEARTBEAT_SECONDS, AgentState, Event, ProgressReport

CONNECT_SECONDS = 1.0  # from the start of ranks until they use the library
STEP_SECONDS = 0.4
SAMPLES_A_STEP = 64
MASTER_PORT, PORTS = 20_000, 1_000  # the first, and how many are held in turn
_HOLE = 7_777_777_777_777_777  # a number that is replaced in prepared texts

Assigned = Callable[["SimAgent", int, int], None]  # agent, attempt, number of members
Noted = Callable[["SimAgent", str], None]  # something on a recovery's way: see sim_cluster.WAY


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _holed(event: Event) -> list[bytes]:
    """The text of a line's event, in pieces between its numbers; its keys are sorted."""
    return to_json(event).split(b"%d" % _HOLE)


def _filled(pieces: list[bytes], *numbers: int) -> bytes:
    texts = (b"%d" % number for number in numbers)
    return b"".join(itertools.chain.from_iterable(itertools.zip_longest(pieces, texts, fillvalue=b"")))


class SimAgent:
    """One agent. ``told`` is called when it has taken an assignment, ``noted`` when it is asked to stop, and
    when its events are asked for."""

    def __init__(self, worker: str, job: str, key: bytes, told: Assigned, noted: Noted) -> None:
        self.worker, self.job, self.key = worker, job, key
        self.noted = noted
        self.boot_id = secrets.token_hex(8)
        self.counter = 0
        self.streams: set[Stream] = set()
        self.alive = True
        self.log: list[tuple[int, bytes]] = []  # number and text of all events but progress
        self.last_seq = 0
        self.attempt, self.digest, self.port = 0, "", 0
        self.next_port = MASTER_PORT  # held ready, as a real agent does
        self.state, self.outcome = "idle", ""
        self.ranks: list[int] = []
        self.started_ms = 0
        self._told = told
        self._snapshot: list[bytes] = []
        self._progress: list[bytes] = []
        self.emit(events.AGENT_STARTED, 0)

    # ---- what it says --------------------------------------------------------------------------------

    def emit(self, kind: str, attempt: int, **data: Any) -> None:
        """Append an event; ``flush`` sends it."""
        self.last_seq += 1
        event = Event(self.last_seq, now_ms(), kind, attempt, self.boot_id, data)
        self.log.append((self.last_seq, to_json(event)))

    def flush(self) -> None:
        """Send what is new to all streams."""
        self._snapshot = []
        for stream in self.streams:
            stream.send_log()

    def current(self, at_ms: int, last_seq: int) -> AgentState:
        return AgentState(
            boot_id=self.boot_id,
            worker=self.worker,
            attempt=self.attempt,
            digest=self.digest,
            master_port=self.port,
            state=self.state,
            outcome=self.outcome or None,
            ranks_alive=len(self.ranks) if self.state == "running" else 0,
            last_seq=last_seq,
            now_ms=at_ms,
            contract_version=CONTRACT_VERSION,
            next_port=self.next_port,
        )

    def snapshot(self) -> bytes:
        """Text of a heartbeat."""
        if not self._snapshot:
            state = to_plain(self.current(_HOLE, _HOLE))
            self._snapshot = _holed(Event(0, _HOLE, events.SNAPSHOT, self.attempt, self.boot_id, state))
        at = now_ms()
        return _filled(self._snapshot, at, self.last_seq, at)

    @property
    def trains(self) -> bool:
        """Its ranks use the library by now, and run."""
        return self.state == "running" and now_ms() - self.started_ms >= CONNECT_SECONDS * 1000

    @property
    def report_seconds(self) -> float:
        return RANK_0_REPORT_SECONDS if self.ranks and self.ranks[0] == 0 else OTHER_REPORT_SECONDS

    def progress(self) -> bytes:
        """Text of a progress report: steps of constant length since the ranks started."""
        if not self._progress:
            report = ProgressReport(
                rank=self.ranks[0],
                started_ms=self.started_ms,
                settled_ms=_HOLE,
                phase="productive",
                step=_HOLE,
                samples=_HOLE,
                phase_ms={"setup": 700, "rendezvous": 100, "restoring": 200, "productive": _HOLE},
                step_seconds=STEP_SECONDS,
                loss=2.5,
            )
            self._progress = _holed(
                Event(_HOLE, _HOLE, events.PROGRESS, self.attempt, self.boot_id, to_plain(report))
            )
        self.last_seq += 1
        at = now_ms()
        productive = max(0, at - self.started_ms - 1000)
        step = int(productive / 1000 / STEP_SECONDS)
        return _filled(self._progress, at, productive, step * SAMPLES_A_STEP, at, step, self.last_seq)

    # ---- what it is told -----------------------------------------------------------------------------

    def assign(self, plain: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        attempt, digest = plain["attempt"], plain["digest"]
        if attempt < self.attempt:
            return 409, {"code": "older_attempt", "message": f"attempt {self.attempt} was assigned"}
        if attempt == self.attempt and digest != self.digest:
            return 409, {"code": "other_membership", "message": "the same attempt with other members"}
        if attempt > self.attempt:
            self._begin(plain)
        self._told(self, attempt, len(plain["members"]))
        return 200, to_plain(self.current(now_ms(), self.last_seq))

    def _begin(self, plain: dict[str, Any]) -> None:
        if self.state == "running":
            self.end(events.STOPPED)
        (own,) = [member for member in plain["members"] if member["worker"] == self.worker]
        self.attempt, self.digest = plain["attempt"], plain["digest"]
        self.port = plain["master_port"] or self.next_port
        self.next_port = MASTER_PORT + self.attempt % PORTS
        self.ranks = list(range(own["first_rank"], own["first_rank"] + own["ranks"]))
        self.state, self.outcome, self.started_ms, self._progress = "running", "", now_ms(), []
        world = sum(member["ranks"] for member in plain["members"])
        data = {"world_size": world, "ranks": self.ranks, "master_port": self.port, "resume_from": ""}
        self.emit(events.ASSIGNED, self.attempt, **data)
        self.emit(events.RANKS_STARTED, self.attempt, ranks=self.ranks)
        self.flush()
        asyncio.get_running_loop().call_later(CONNECT_SECONDS, self._connect, self.attempt)

    def _connect(self, attempt: int) -> None:
        if (self.attempt, self.state) != (attempt, "running"):
            return
        for rank in self.ranks:
            self.emit(events.RANK_CONNECTED, attempt, rank=rank, pid=1000 + rank)
        if 0 in self.ranks:
            self.emit(events.RESTORED, attempt, step=0, samples=0, checkpoint=None, record=1, seconds=0.2)
        self.flush()
        for stream in self.streams:
            stream.begin_progress()

    def request(self, plain: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.state == "running" and plain["attempt"] in (0, self.attempt):
            if plain["kind"] in ("stop", "shutdown"):
                self.noted(self, "stopped")
                self.end(events.STOPPED)
            elif plain["kind"] == "drain":
                self.end(events.DRAINED)
        return 200, to_plain(self.current(now_ms(), self.last_seq))

    def end(self, outcome: str) -> None:
        """All its ranks end now."""
        code = 80 if outcome == events.DRAINED else -9
        for rank in self.ranks:
            self.emit(events.RANK_EXITED, self.attempt, rank=rank, code=code, own=False)
        self.emit(events.ATTEMPT_ENDED, self.attempt, outcome=outcome)
        self.state, self.outcome = "ended", outcome
        self.flush()

    def die(self) -> None:
        """As a process that is killed: the kernel closes its connections."""
        self.alive = False
        for stream in tuple(self.streams):
            stream.connection.transport.close()


class Stream:
    """One reader of an agent's events."""

    def __init__(self, connection: Connection, agent: SimAgent, after: int, heartbeat: float) -> None:
        self.connection, self.agent = connection, agent
        self._counter, self._index = agent.counter, 0
        self._sent, self._heartbeat = after if after <= agent.last_seq else 0, heartbeat
        self._slow = heartbeat > HEARTBEAT_SECONDS
        self._loop = asyncio.get_running_loop()
        self._beat_timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        agent.streams.add(self)
        self._beat()
        self.begin_progress()

    def close(self) -> None:
        self.agent.streams.discard(self)
        for timer in (self._beat_timer, self._progress_timer):
            if timer is not None:
                timer.cancel()

    def send_log(self) -> None:
        new = [text for number, text in self.agent.log if number > self._sent]
        if new:
            self._send(*new)
            self._sent = self.agent.last_seq

    def _beat(self) -> None:
        """A snapshot; one that counts unsent events comes before them, as from a real agent."""
        texts = [self.agent.snapshot()]
        texts += [text for number, text in self.agent.log if number > self._sent]
        if self._slow and self.agent.trains:
            texts.append(self.agent.progress())
        self._sent = self.agent.last_seq
        self._send(*texts)
        self._beat_timer = self._loop.call_later(self._heartbeat, self._beat)

    def begin_progress(self) -> None:
        """Reports in between; a reader that asked for fewer heartbeats gets them with those."""
        if not self._slow and self._progress_timer is None and self.agent.trains:
            self._report()

    def _report(self) -> None:
        self._progress_timer = None
        if self.agent.trains:
            self._send(self.agent.progress())
            self._sent = self.agent.last_seq
            self._progress_timer = self._loop.call_later(self.agent.report_seconds, self._report)

    def _send(self, *texts: bytes) -> None:
        lines = []
        for text in texts:
            sign = signing.sign_line(self.agent.key, self.agent.boot_id, self._counter, self._index, text)
            quoted = text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            lines.append(b'{"i": %d, "l": "%s", "s": "%s"}\n' % (self._index, quoted, sign.encode()))
            self._index += 1
        data = b"".join(lines)
        self.connection.transport.write(b"%x\r\n%s\r\n" % (len(data), data))


class Fleet:
    """All agents by address, and the one socket that they share.

    Attributes:
        opened: time (monotonic) of the first stream of each agent since ``mark``.
    """

    def __init__(self) -> None:
        self.agents: dict[str, SimAgent] = {}
        self.opened: dict[SimAgent, float] = {}

    async def serve(self, port: int) -> asyncio.Server:
        """On all addresses of the machine."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Connection(self), "0.0.0.0", port, backlog=4096)

    def mark(self) -> None:
        self.opened = {}

    def streams(self) -> int:
        return sum(len(agent.streams) for agent in self.agents.values())


class Connection(asyncio.Protocol):
    """One connection: one request, as the operator makes them, or a stream."""

    transport: asyncio.Transport

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._agent: SimAgent | None = None
        self._stream: Stream | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._agent = self._fleet.agents.get(transport.get_extra_info("sockname")[0])
        if self._agent is None or not self._agent.alive:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stream is not None:
            self._stream.close()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end or self._agent is None or self._stream is not None:
            return
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        if len(body) >= int(headers.get("content-length", "0")):
            method, target, _ = first.split(" ")
            self._answer(self._agent, method, target, headers, body)

    def _answer(
        self, agent: SimAgent, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> None:
        if target == "/healthz":
            self._reply(200, self._hello(agent))
            return
        counter = int(headers[signing.HEADER_COUNTER.lower()])
        denied = self._why_denied(agent, method, target, headers, body, counter)
        if denied:
            self._reply(401, {"code": denied, "message": denied, **self._hello(agent)})
            return
        agent.counter = counter
        if target.startswith("/v1/events"):
            self._begin_stream(agent, target)
        elif target == "/v1/assignment":
            self._reply(*agent.assign(json.loads(body)), agent)
        else:
            self._reply(*agent.request(json.loads(body)), agent)

    def _hello(self, agent: SimAgent) -> dict[str, Any]:
        return {
            "boot_id": agent.boot_id,
            "worker": agent.worker,
            "counter": agent.counter,
            "contract_version": CONTRACT_VERSION,
        }

    def _why_denied(
        self, agent: SimAgent, method: str, target: str, headers: dict[str, str], body: bytes, counter: int
    ) -> str:
        if headers[signing.HEADER_BOOT_ID.lower()] != agent.boot_id:
            return "wrong_boot"
        wanted = signing.sign_request(agent.key, method, target, body, agent.boot_id, counter)
        if headers[signing.HEADER_SIGNATURE.lower()] != wanted:
            return "bad_signature"
        return "stale_counter" if counter <= agent.counter else ""

    def _begin_stream(self, agent: SimAgent, target: str) -> None:
        query = parse_qs(urlsplit(target).query)
        heartbeat = float(query.get("heartbeat_ms", ["0"])[0]) / 1000
        self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        self._fleet.opened.setdefault(agent, time.monotonic())
        agent.noted(agent, "followed")
        self._stream = Stream(self, agent, int(query["after"][0]), max(HEARTBEAT_SECONDS, heartbeat))

    def _reply(self, status: int, answer: dict[str, Any], signer: SimAgent | None = None) -> None:
        body = to_json(answer)
        signature = ""
        if signer is not None:
            sign = signing.sign_reply(signer.key, signer.boot_id, signer.counter, status, body)
            signature = f"{signing.HEADER_SIGNATURE}: {sign}\r\n"
        head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(body)}\r\n{signature}Connection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
