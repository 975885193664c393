"""The signed stream of one agent's events, line by line. ``agent_client`` opens it, ``agent_link`` reads it.

What an agent says without a valid signature is not believed. Almost all lines of a large fleet are snapshots
like the one before: those are checked, and not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from resumable_operator.agent_http import Connection
from resumable_operator.errors import AgentNotBelieved, AgentUnreachable
from resumable_training.contract import signing
from resumable_training.contract.codec import from_plain
from resumable_training.contract.events import SNAPSHOT, Event

SHOWN_CHARACTERS = 200  # of what a stranger says
_COUNTS = re.compile(r'"(at_ms|last_seq|now_ms)":(\d+)')  # what differs between two snapshots of one state
_SNAPSHOT = f'"kind":"{SNAPSHOT}"'


@dataclass(frozen=True)
class Endpoint:
    """Where an agent is and what signs the calls to it."""

    worker: str
    address: str
    port: int
    key: bytes

    @property
    def host(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"


@dataclass(frozen=True)
class Beat:
    """A snapshot like the one before it in this stream, but for the number of its newest event."""

    now_ms: int


Hear = Callable[[Event | Beat], bool]  # true: that is enough


class EventStream:
    """An open stream. ``close`` it."""

    def __init__(self, connection: Connection, endpoint: Endpoint, boot_id: str, counter: int) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._boot_id, self._counter, self._index = boot_id, counter, 0
        self._snapshot = ""

    async def read(self, hear: Hear) -> None:
        """Tell ``hear`` of each line until it has enough, or the stream ends.

        Raises:
            AgentUnreachable, AgentNotBelieved, and what ``hear`` raises
        """
        with network_errors(self._endpoint):
            await self._connection.read(lambda raw: hear(self._heard(raw)))

    def close(self) -> None:
        self._connection.end()

    def _heard(self, raw: bytes) -> Event | Beat:
        plain = json_object(raw)
        text = str(plain.get("l"))
        line = text.encode()
        wanted = signing.sign_line(self._endpoint.key, self._boot_id, self._counter, self._index, line)
        if plain.get("i") != self._index or not signing.signatures_equal(wanted, str(plain.get("s"))):
            worker = self._endpoint.worker
            message = f"agent of {worker}: line {self._index} of its stream is not signed by it"
            raise AgentNotBelieved("words", message)
        self._index += 1
        if _SNAPSHOT not in text:
            return from_plain(Event, json_object(line))
        timeless = _COUNTS.sub("", text)
        if timeless == self._snapshot:
            return Beat(max(int(number) for name, number in _COUNTS.findall(text) if name != "last_seq"))
        event = from_plain(Event, json_object(line))
        self._snapshot = timeless
        return event


@contextmanager
def network_errors(endpoint: Endpoint) -> Iterator[None]:
    """Map what the network raises to AgentUnreachable, and nonsense to AgentNotBelieved."""
    try:
        yield
    except ValueError as error:
        what = str(error)[:SHOWN_CHARACTERS] or type(error).__name__
        raise AgentNotBelieved("words", f"agent of {endpoint.worker}: nonsense: {what}") from error
    except OSError as error:  # TimeoutError is one
        what = str(error) or type(error).__name__
        raise AgentUnreachable(f"agent of {endpoint.worker} at {endpoint.url}: {what}") from error


def json_object(data: bytes) -> dict[str, Any]:
    """Raises: ValueError."""
    plain = orjson.loads(data)
    if not isinstance(plain, dict):
        raise ValueError("not a JSON object")
    return plain
