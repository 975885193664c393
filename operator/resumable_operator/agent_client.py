"""Signed calls to one agent, and its signed stream of events. ``agents.AgentPool`` is the only caller.

A call carries a counter that the agent accepts once, so calls to one agent go one after the other. What the
agent says without a valid signature is not believed: it counts as unreachable, with a warning. Only the boot
id and the counter to sign with are taken unsigned, because a false one can do no more than make the next
call fail.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from resumable_operator.errors import AgentNotBelieved, AgentRefused, AgentUnreachable
from resumable_training.contract import signing
from resumable_training.contract.assignment import Assignment, Member, Request
from resumable_training.contract.codec import from_json, from_plain, to_json
from resumable_training.contract.events import HEARTBEAT_SECONDS, SNAPSHOT, AgentState, Event

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
CALL_SECONDS = 3.0
_TIMES = re.compile(r'"(?:at_ms|now_ms)":(\d+)')
LINE_BYTES = 1 << 20
SHOWN_CHARACTERS = 200  # of what a stranger says
RESIGN_CODES = ("stale_counter", "wrong_boot")


_SNAPSHOT = f'"kind":"{SNAPSHOT}"'


def silent_after(heartbeat_seconds: float) -> float:
    """How long a stream that was asked for such heartbeats may be quiet before it counts as broken."""
    return max(6 * HEARTBEAT_SECONDS, 2 * heartbeat_seconds + 1.0)


_NO_MEMBERS = b'"members":[]'
_KEPT_MEMBERS = 16
_members_json: OrderedDict[int, tuple[tuple[Member, ...], bytes]] = OrderedDict()


def assignment_json(assignment: Assignment) -> bytes:
    """Its JSON. The members, the same for all workers of an attempt, are written once: a thousand
    assignments of a thousand members each would be a million."""
    body = to_json(replace(assignment, members=()))
    return body.replace(_NO_MEMBERS, b'"members":' + _json_of_members(assignment.members), 1)


def _json_of_members(members: tuple[Member, ...]) -> bytes:
    """By identity of the tuple, which the entry keeps alive."""
    known = _members_json.get(id(members))
    if known is None:
        known = _members_json[id(members)] = members, to_json(members)
        while len(_members_json) > _KEPT_MEMBERS:
            _members_json.popitem(last=False)
    return known[1]


@dataclass(frozen=True)
class Beat:
    """A snapshot like the one before it in this stream: almost all lines of a large fleet, so not parsed."""

    now_ms: int


@dataclass(frozen=True)
class Endpoint:
    """Where an agent is and what signs the calls to it."""

    worker: str
    address: str
    port: int
    key: bytes

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"


def new_session() -> aiohttp.ClientSession:
    """A session for any number of agents: no connection limit, no cookies, no proxies from the environment.

    Connections are not kept: a kept one that died with its agent would make a call fail that need not.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=LINE_BYTES,
        auto_decompress=False,
        trust_env=False,
    )


class AgentClient:
    """Calls to one agent.

    Raises (all methods):
        AgentUnreachable: no answer in time, or one that is not signed by the agent.
        AgentRefused: the agent understood and said no.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.boot_id = ""
        self._counter = 0
        self._session = session
        self._lock = asyncio.Lock()

    async def assign(self, assignment: Assignment) -> AgentState:
        """PUT the assignment; the state tells rank 0's master port."""
        return await self._call("PUT", "/v1/assignment", assignment_json(assignment))

    async def request(self, request: Request) -> AgentState:
        """POST the request."""
        return await self._call("POST", "/v1/request", to_json(request))

    async def state(self) -> AgentState:
        """GET the whole state."""
        return await self._call("GET", "/v1/state", b"")

    @asynccontextmanager
    async def events(
        self, after: int, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> AsyncIterator[AsyncIterator[Event | Beat]]:
        """The stream from event ``after`` on. Needs ``boot_id``, since events are numbered within a boot."""
        path = f"/v1/events?after={after}"
        if heartbeat_seconds > HEARTBEAT_SECONDS:
            path += f"&heartbeat_ms={heartbeat_seconds * 1000:.0f}"
        silence = silent_after(heartbeat_seconds)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        with _unreachable(self.endpoint):
            async with self._lock:
                response, counter = await self._signed("GET", path, b"", timeout)
            try:
                if response.status != 200:
                    raise AgentNotBelieved("words", f"{self._name}: status {response.status} for its events")
                yield self._lines(response, counter)
            finally:
                response.close()

    async def hello(self) -> str:
        """Ask for the boot id and the counter; returns the boot id."""
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS)
        with _unreachable(self.endpoint):
            url = self.endpoint.url + "/healthz"
            async with self._session.get(url, timeout=timeout, allow_redirects=False) as response:
                plain = _object(await _read(response))
            self._adopt(plain)
        if plain.get("worker", self.endpoint.worker) != self.endpoint.worker:  # an address used again
            raise AgentUnreachable(f"{self._name}: {plain['worker']} answers at its address")
        return self.boot_id

    # ---- inside --------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, body: bytes) -> AgentState:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS)
        with _unreachable(self.endpoint):
            async with self._lock, asyncio.timeout(CALL_SECONDS):
                if not self.boot_id:
                    await self.hello()
                response, counter = await self._signed(method, path, body, timeout)
                async with response:
                    data = await _read(response)
            self._verify(response, counter, data)
            if response.status != 200:
                raise self._refusal(response.status, data)
            return from_json(AgentState, data)

    async def _signed(
        self, method: str, path: str, body: bytes, limits: aiohttp.ClientTimeout
    ) -> tuple[aiohttp.ClientResponse, int]:
        """Send, signing once more when the agent has restarted or has heard another operator meanwhile."""
        response = await self._send(method, path, body, limits)
        if response.status == 401:
            plain = _object(await _read(response))
            response.close()
            if plain.get("code") not in RESIGN_CODES:
                said = str(plain.get("message"))[:SHOWN_CHARACTERS]
                raise AgentNotBelieved("key", f"{self._name} does not accept our key: {said}")
            self._adopt(plain)
            response = await self._send(method, path, body, limits)
            if response.status == 401:
                response.close()
                raise AgentUnreachable(f"{self._name} refused a call that was signed twice")
        return response, self._counter

    async def _send(
        self, method: str, path: str, body: bytes, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        self._counter += 1
        key = self.endpoint.key
        signature = signing.sign_request(key, method, path, body, self.boot_id, self._counter)
        headers = {
            signing.HEADER_KEY_ID: signing.key_id(key),
            signing.HEADER_BOOT_ID: self.boot_id,
            signing.HEADER_COUNTER: str(self._counter),
            signing.HEADER_SIGNATURE: signature,
            "Content-Type": "application/json",
        }
        return await self._session.request(
            method,
            self.endpoint.url + path,
            data=body or None,
            headers=headers,
            timeout=limits,
            allow_redirects=False,  # a stranger must not send us anywhere
        )

    async def _lines(self, response: aiohttp.ClientResponse, counter: int) -> AsyncIterator[Event | Beat]:
        boot_id, index, snapshot = self.boot_id, 0, ""
        async for raw in response.content:
            plain = _object(raw)
            line, number = str(plain.get("l")), plain.get("i")
            wanted = signing.sign_line(self.endpoint.key, boot_id, counter, index, line.encode())
            if number != index or not signing.signatures_equal(wanted, str(plain.get("s"))):
                message = f"{self._name}: line {index} of its stream is not signed by it"
                raise AgentNotBelieved("words", message)
            index += 1
            timeless = _TIMES.sub("", line) if _SNAPSHOT in line else ""
            if timeless and timeless == snapshot:
                yield Beat(max(int(text) for text in _TIMES.findall(line)))
                continue
            yield from_json(Event, line.encode())
            snapshot = timeless or snapshot

    def _verify(self, response: aiohttp.ClientResponse, counter: int, body: bytes) -> None:
        wanted = signing.sign_reply(self.endpoint.key, self.boot_id, counter, response.status, body)
        if not signing.signatures_equal(wanted, response.headers.get(signing.HEADER_SIGNATURE, "")):
            message = f"{self._name}: its reply (status {response.status}) is not signed by it"
            raise AgentNotBelieved("words", message)

    def _refusal(self, status: int, body: bytes) -> AgentRefused:
        plain = _object(body)
        return AgentRefused(
            str(plain.get("code", status)), f"{self._name}: {plain.get('message', 'refused')}"
        )

    def _adopt(self, plain: dict[str, Any]) -> None:
        boot_id, counter = str(plain.get("boot_id", "")), from_plain(int, plain.get("counter"), "counter")
        self._counter = max(counter, self._counter) if boot_id == self.boot_id else counter
        self.boot_id = boot_id

    @property
    def _name(self) -> str:
        return f"agent of {self.endpoint.worker}"


@contextmanager
def _unreachable(endpoint: Endpoint) -> Iterator[None]:
    """Map what the network raises to AgentUnreachable, and nonsense to AgentNotBelieved."""
    try:
        yield
    except (aiohttp.ClientResponseError, ValueError) as error:
        what = str(error)[:SHOWN_CHARACTERS] or type(error).__name__
        raise AgentNotBelieved("words", f"agent of {endpoint.worker}: nonsense: {what}") from error
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        what = str(error) or type(error).__name__
        raise AgentUnreachable(f"agent of {endpoint.worker} at {endpoint.url}: {what}") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, at most LINE_BYTES and within CALL_SECONDS: an agent's replies are small, and a
    stranger's must neither fill our memory nor keep us."""
    data = bytearray()
    async with asyncio.timeout(CALL_SECONDS):
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > LINE_BYTES:
                raise ValueError("the reply is too long")
    return bytes(data)


def _object(data: bytes) -> dict[str, Any]:
    plain = json.loads(data)
    if not isinstance(plain, dict):
        raise ValueError("not a JSON object")
    return plain
