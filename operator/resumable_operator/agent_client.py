"""Signed calls to one agent, and its signed stream of events. ``agents.AgentPool`` is the only caller.

A call carries a counter that the agent accepts once, so calls to one agent go one after the other. What the
agent says without a valid signature is not believed: it counts as unreachable, with a warning. Only the boot
id and the counter to sign with are taken unsigned, because a false one can do no more than make the next
call fail.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from resumable_operator.agent_http import Call, Connection, Reply, Session, request
from resumable_operator.agent_stream import (
    SHOWN_CHARACTERS,
    Beat,
    Endpoint,
    EventStream,
    json_object,
    network_errors,
)
from resumable_operator.errors import AgentNotBelieved, AgentRefused, AgentUnreachable
from resumable_training.contract import signing
from resumable_training.contract.assignment import Assignment, Member, Request
from resumable_training.contract.codec import from_json, from_plain, to_json
from resumable_training.contract.events import HEARTBEAT_SECONDS, SILENT_SECONDS, AgentState

__all__ = ["AgentClient", "Beat", "Endpoint", "EventStream", "assignment_json", "new_session", "silent_after"]

CONNECT_SECONDS = 1.0
CALL_SECONDS = 3.0
RESIGN_CODES = ("stale_counter", "wrong_boot")

Answer = TypeVar("Answer", Reply, "Connection | Reply")


def silent_after(heartbeat_seconds: float) -> float:
    """How long a stream that was asked for such heartbeats may be quiet before it counts as broken."""
    return max(SILENT_SECONDS, 2 * heartbeat_seconds + 1.0)


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


def new_session() -> Session:
    """Connections to any number of agents."""
    return Session()


class AgentClient:
    """Calls to one agent.

    Raises (all methods):
        AgentUnreachable: no answer in time, or one that is not signed by the agent.
        AgentRefused: the agent understood and said no.
    """

    def __init__(self, session: Session, endpoint: Endpoint) -> None:
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

    async def events(self, after: int, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> EventStream:
        """The stream from event ``after`` on. Needs ``boot_id``, since events are numbered within a boot."""
        path = f"/v1/events?after={after}"
        if heartbeat_seconds > HEARTBEAT_SECONDS:
            path += f"&heartbeat_ms={heartbeat_seconds * 1000:.0f}"
        with network_errors(self.endpoint):
            async with self._lock:
                silence = silent_after(heartbeat_seconds)
                answer = await self._signed("GET", path, b"", self._session.stream, silence)
                counter = self._counter
            if isinstance(answer, Reply):
                raise AgentNotBelieved("words", f"{self._name}: status {answer.status} for its events")
        return EventStream(answer, self.endpoint, self.boot_id, counter)

    async def hello(self) -> str:
        """Ask for the boot id and the counter; returns the boot id."""
        with network_errors(self.endpoint):
            reply = await self._session.reply(self._to_send("GET", "/healthz", b"", {}, CALL_SECONDS))
            plain = json_object(reply.body)
            self._adopt(plain)
        if plain.get("worker", self.endpoint.worker) != self.endpoint.worker:  # an address used again
            raise AgentUnreachable(f"{self._name}: {plain['worker']} answers at its address")
        return self.boot_id

    # ---- inside --------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, body: bytes) -> AgentState:
        with network_errors(self.endpoint):
            async with self._lock, asyncio.timeout(CALL_SECONDS):
                if not self.boot_id:
                    await self.hello()
                reply = await self._signed(method, path, body, self._session.reply, CALL_SECONDS)
                self._verify(reply, self._counter)
            if reply.status != 200:
                raise self._refusal(reply)
            return from_json(AgentState, reply.body)

    async def _signed(
        self,
        method: str,
        path: str,
        body: bytes,
        send: Callable[[Call], Awaitable[Answer]],
        seconds: float,
    ) -> Answer:
        """Send, signing once more when the agent has restarted or has heard another operator meanwhile."""
        answer = await send(self._sign(method, path, body, seconds))
        if isinstance(answer, Reply) and answer.status == 401:
            plain = json_object(answer.body)
            if plain.get("code") not in RESIGN_CODES:
                said = str(plain.get("message"))[:SHOWN_CHARACTERS]
                raise AgentNotBelieved("key", f"{self._name} does not accept our key: {said}")
            self._adopt(plain)
            answer = await send(self._sign(method, path, body, seconds))
            if isinstance(answer, Reply) and answer.status == 401:
                raise AgentUnreachable(f"{self._name} refused a call that was signed twice")
        return answer

    def _sign(self, method: str, path: str, body: bytes, seconds: float) -> Call:
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
        return self._to_send(method, path, body, headers, seconds)

    def _to_send(self, method: str, path: str, body: bytes, headers: dict[str, str], seconds: float) -> Call:
        data = request(method, self.endpoint.host, path, headers, body)
        return Call(self.endpoint.address, self.endpoint.port, data, CONNECT_SECONDS, seconds)

    def _verify(self, reply: Reply, counter: int) -> None:
        wanted = signing.sign_reply(self.endpoint.key, self.boot_id, counter, reply.status, reply.body)
        given = reply.headers.get(signing.HEADER_SIGNATURE.lower(), "")
        if not signing.signatures_equal(wanted, given):
            message = f"{self._name}: its reply (status {reply.status}) is not signed by it"
            raise AgentNotBelieved("words", message)

    def _refusal(self, reply: Reply) -> AgentRefused:
        plain = json_object(reply.body)
        said = str(plain.get("message", "refused"))
        return AgentRefused(str(plain.get("code", reply.status)), f"{self._name}: {said}")

    def _adopt(self, plain: dict[str, Any]) -> None:
        boot_id, counter = str(plain.get("boot_id", "")), from_plain(int, plain.get("counter"), "counter")
        self._counter = max(counter, self._counter) if boot_id == self.boot_id else counter
        self.boot_id = boot_id

    @property
    def _name(self) -> str:
        return f"agent of {self.endpoint.worker}"
