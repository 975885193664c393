"""A process's end of what its agent keeps beyond a rank's death (``contract.keeping``). No torch.

A writer tells what it stores, so that it may go on when its rank dies; a rank of the next attempt waits for
such writers, and finds the memory they stored from. Without an agent, or with one that does not answer,
there is nothing to find and nothing outlives a rank: nobody may depend on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from resumable_training.contract import env, keeping
from resumable_training.contract.framing import Inbox, Message, send

T = TypeVar("T")
_ANSWER_SECONDS = 10.0  # for what an agent does at once, on a busy machine
_SETTLE_SECONDS = 150.0  # an agent bounds its writers itself; this is for one that is broken
_NEWER = 0.5  # weight of the newest measurement


@dataclass(frozen=True)
class Flight:
    """How a save ended that was in flight when its rank died."""

    checkpoint: str
    step: int
    ok: bool
    message: str
    bytes: int  # of the checkpoint; 0: unknown
    seconds: float  # from its copy to its commit; 0: unknown
    waited: float  # seconds from its ranks' end


@dataclass(frozen=True)
class Held:
    """A copy that was held until its rank died. ``durable_seconds``: what saves took lately; 0: unknown."""

    copied_at: float  # monotonic
    durable_seconds: float


class _Link:
    """Connected and welcome. Raises OSError from its methods when the agent is gone or silent."""

    def __init__(self, path: str, role: str, rank: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(_ANSWER_SECONDS)
            self.socket.connect(path)
            self._inbox = Inbox(self.socket)
            self.say(
                kind=keeping.HELLO,
                role=role,
                attempt=int(os.environ[env.ATTEMPT]),
                rank=rank,
                slot=int(os.environ.get("LOCAL_RANK", "0")),
                slots=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
                pid=os.getpid(),
            )
            self.hear()
        except (OSError, KeyError, ValueError) as error:
            self.socket.close()
            raise OSError(f"{path}: {error}") from error

    def say(self, *descriptors: int, **message: Any) -> None:
        send(self.socket, message, descriptors)

    def hear(self, seconds: float = _ANSWER_SECONDS) -> Message:
        self.socket.settimeout(seconds)
        message = self._inbox.receive()
        if message is None:
            raise ConnectionResetError("the agent closed the connection, or did not answer in time")
        return message

    def descriptor(self) -> int:
        """The next one that came with a message; the caller's own from now on."""
        if not self._inbox.descriptors:
            raise ConnectionResetError("the agent sent no descriptor")
        return self._inbox.descriptors.pop(0)

    def close(self) -> None:
        for descriptor in self._inbox.descriptors:
            os.close(descriptor)
        self.socket.close()


class WriterLink:
    """Of a writer that its agent lets outlive its rank; without the agent this process ends at once."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._durable = 0.0  # seconds from copy to commit, lately
        self._since = self._worth_from = time.monotonic()
        threading.Thread(target=self._watch, name="checkpoint-keeper", daemon=True).start()

    @staticmethod
    def connect(rank: int) -> WriterLink | None:
        """None: this writer is to end with its rank."""
        path = os.environ.get(env.KEEPER)
        if not path:
            return None
        try:
            return WriterLink(_Link(path, keeping.WRITER, rank))
        except OSError:
            return None

    def _watch(self) -> None:
        """An agent says nothing to a writer; its end is the end."""
        self._link.socket.settimeout(None)
        with contextlib.suppress(OSError):
            while self._link.socket.recv(4096):
                continue
        os._exit(137)

    def arena(self, descriptor: int, size: int) -> None:
        self._say(descriptor, kind=keeping.ARENA, bytes=size)

    def flight(
        self, checkpoint: str, step: int, samples: int, content: Message, held: Held | None = None
    ) -> None:
        """The copy is complete, and will be stored; ``content``: what lies in the arena."""
        now = time.monotonic()
        self._since = now  # for a copy that was held: what it takes to store it begins here
        worth = (held.copied_at if held else now) - self._worth_from
        durable = self._durable or (held.durable_seconds if held else 0.0)
        descriptor = os.memfd_create("resumable-content", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(json.dumps(content, separators=(",", ":")).encode())
            self._say(
                descriptor,
                kind=keeping.FLIGHT,
                checkpoint=checkpoint,
                step=step,
                samples=samples,
                durable=round(durable, 3),
                worth=round(worth, 3),
                held=held is not None,
            )
        finally:
            os.close(descriptor)

    def landed(self, checkpoint: str, outcome: Message) -> None:
        """How it ended."""
        seconds = time.monotonic() - self._since
        if outcome["ok"]:
            before = self._durable or seconds
            self._durable = before + _NEWER * (seconds - before)
            self._worth_from = self._since
        told = {name: outcome.get(name) for name in ("ok", "message", "bytes")}
        self._say(kind=keeping.LANDED, checkpoint=checkpoint, seconds=round(seconds, 3), **told)

    def _say(self, *descriptors: int, **message: Any) -> None:
        with contextlib.suppress(OSError):  # ``_watch`` sees it too
            self._link.say(*descriptors, **message)


class RankLink:
    """Of a rank that begins where another has ended. Its methods do without where the agent fails."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._link: _Link | None = None
        self._broken = not os.environ.get(env.KEEPER)

    def await_flights(self) -> list[Flight]:
        """Wait until no writer of an older attempt is left on this worker; how their flights ended."""
        return self._ask(self._await_flights, [])

    def _await_flights(self, link: _Link) -> list[Flight]:
        link.say(kind=keeping.AWAIT)
        flights = link.hear(_SETTLE_SECONDS)["flights"]
        return [
            Flight(
                str(one["checkpoint"]),
                int(one["step"]),
                bool(one["ok"]),
                str(one["message"] or ""),
                int(one["bytes"] or 0),
                float(one["seconds"] or 0.0),
                float(one["waited"]),
            )
            for one in flights
        ]

    def find(self, checkpoint: str) -> list[tuple[int, int, int]]:
        """(bytes, arena, content) of all memory on this worker that holds something of it; descriptors."""
        return self._ask(lambda link: self._find(link, checkpoint), [])

    def _find(self, link: _Link, checkpoint: str) -> list[tuple[int, int, int]]:
        link.say(kind=keeping.FIND, checkpoint=checkpoint)
        found: list[tuple[int, int, int]] = []
        while (message := link.hear())["kind"] == keeping.FOUND:
            found.append((int(message["bytes"]), link.descriptor(), link.descriptor()))
        return found

    def take(self, size: int) -> int | None:
        """Memory of at least that size to copy into, as a descriptor; what does not fit is freed."""
        return self._ask(lambda link: self._take(link, size), None)

    def free(self) -> None:
        """Give up the memory that is kept for this rank's place."""
        self.take(0)

    def _take(self, link: _Link, size: int) -> int | None:
        link.say(kind=keeping.TAKE, bytes=size)
        return link.descriptor() if link.hear()["bytes"] >= size else None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._broken = None, True

    def _ask(self, question: Callable[[_Link], T], otherwise: T) -> T:
        if self._broken:
            return otherwise
        try:
            if self._link is None:
                self._link = _Link(os.environ[env.KEEPER], keeping.RANK, self._rank)
            return question(self._link)
        except (OSError, KeyError, TypeError, ValueError):
            self.close()
            return otherwise
