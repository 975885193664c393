"""Heartbeat to the next agent in the ring: a second witness when the operator can't hear one.

The next member in the assignment's order is asked for ``/healthz`` several times a second, over a connection
that is kept: when its agent dies that connection ends, and what meets the next one decides.

- Refused, or somebody else is there: that agent is gone. Unreachable at once.
- No answer, not even of its machine's kernel: gone or cut off. Unreachable after ``SILENT_SECONDS``.
- Its machine takes connections, its agent does not answer: stopped or starved, which may pass. Unreachable
  after ``STALLED_SECONDS``.

``asked``, ``observe``, ``verdict_at`` and ``forgiven`` are PURE.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, replace
from typing import Callable, Optional, Tuple

from resumable_training.agent.bounded import within
from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Member

INTERVAL_SECONDS = 0.25  # between questions
ANSWER_SECONDS = 0.5  # for an answer, then the question is asked anew on another connection; and to connect
SILENT_SECONDS = 2.4  # a machine that stands still for 2 s is not called lost
STALLED_SECONDS = 10.0
GAP_SECONDS = 1.5  # between two looks: this agent was stopped itself, silence proves nothing
_BREAK_SECONDS = 0.02  # a process that is killed closes its connections before the port, or after it

ANSWERED, REFUSED, ACCEPTED, NOTHING = "answered", "refused", "accepted", "nothing"

_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,4})\r\n", re.IGNORECASE)
_TROUBLE = (
    OSError,
    asyncio.TimeoutError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
    ValueError,
    RecursionError,  # of JSON that nests without end
)


@dataclass(frozen=True)
class PeerView:
    """What is known of the peer. Times are seconds of the monotonic clock.

    ``waiting_since``: when the oldest question without an answer was asked; None: all were answered.
    ``taken_at``: when its machine last took a connection on which no answer came.
    """

    reachable: bool = True
    waiting_since: Optional[float] = None
    taken_at: Optional[float] = None


def asked(view: PeerView, now: float) -> PeerView:
    """A question goes out."""
    return replace(view, waiting_since=now) if view.waiting_since is None else view


def observe(view: PeerView, sign: str, now: float) -> Tuple[PeerView, Optional[str]]:
    """Fold what came of a question; the second value is the kind of event to send, if any."""
    if sign == ANSWERED:
        return PeerView(), None if view.reachable else events.PEER_REACHABLE
    view = asked(view, now)
    if sign == ACCEPTED:
        view = replace(view, taken_at=now)
    if view.reachable and (sign == REFUSED or now >= verdict_at(view)):
        return replace(view, reachable=False), events.PEER_UNREACHABLE
    return view, None


def verdict_at(view: PeerView) -> float:
    """When the peer is called unreachable, should nothing more be seen of it."""
    if view.waiting_since is None:
        return float("inf")
    seen_at = view.waiting_since if view.taken_at is None else view.taken_at
    return min(seen_at + SILENT_SECONDS, view.waiting_since + STALLED_SECONDS)


def forgiven(view: PeerView, now: float) -> PeerView:
    """This agent was stopped itself: an answer may have come, and lies there unread."""
    return view if view.waiting_since is None else PeerView(view.reachable, now)


def next_member(assignment: Assignment) -> Optional[Member]:
    """PURE: the neighbour to watch; None for a worker that is alone."""
    members = assignment.members
    if len(members) < 2:
        return None
    return members[(members.index(assignment.member()) + 1) % len(members)]


class NeighbourWatch:
    """Watches one peer until cancelled.

    Args:
        on_change: called with the kind of event.
        is_cut: whether this agent's own network is cut (fault injection): then nothing answers.
    """

    def __init__(self, peer: Member, on_change: Callable[[str], None], is_cut: Callable[[], bool]) -> None:
        self.peer = peer
        self.view = PeerView()
        self._on_change = on_change
        self._is_cut = is_cut
        self._line: Optional[_Line] = None
        self._looked_at = time.monotonic()

    async def run(self) -> None:
        try:
            while True:
                await self._ask()
        finally:
            self._hang_up()

    async def _ask(self) -> None:
        """One question, and the pause after it."""
        began = self._look()
        self.view = asked(self.view, began)
        sign = NOTHING if self._is_cut() else await self._answer()
        now = self._look()
        self.view, kind = observe(self.view, sign, now)
        if kind:
            self._on_change(kind)
        if sign != ANSWERED:
            self._hang_up()
        pause = min(max(0.0, began + INTERVAL_SECONDS - now), self._left())
        if self._line is None:
            await asyncio.sleep(pause)
        elif await self._line.breaks_within(pause):
            self._hang_up()  # and ask who is there now
            await asyncio.sleep(_BREAK_SECONDS)

    def _left(self) -> float:
        """Seconds until the peer would be called unreachable; a little, when they are over."""
        if not self.view.reachable:
            return INTERVAL_SECONDS
        return max(_BREAK_SECONDS, verdict_at(self.view) - time.monotonic())

    def _look(self) -> float:
        """The time; a gap since the last look is forgiven."""
        now = time.monotonic()
        if now - self._looked_at > GAP_SECONDS:
            self.view = forgiven(self.view, now)
        self._looked_at = now
        return now

    async def _answer(self) -> str:
        """Ask on the line there is, else on a new one."""
        limit = min(ANSWER_SECONDS, self._left())
        try:
            if self._line is None:
                opening = asyncio.open_connection(self.peer.address, self.peer.agent_port)
                self._line = _Line(*await within(opening, limit))
            return await self._line.ask(self.peer.worker, limit)
        except ConnectionRefusedError:
            return REFUSED
        except _TROUBLE:
            return NOTHING

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None


class _Line:
    """A connection to the peer's agent that is kept from question to question."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._is_new = True

    async def ask(self, worker: str, limit: float) -> str:
        """What comes of one question.

        Raises:
            _TROUBLE: the line broke, or what came is no answer.
        """
        self._writer.write(_QUESTION)
        try:
            body = await within(self._read(), limit)
        except asyncio.TimeoutError:
            # Of an old line nobody knows whether the machine at its other end is still there.
            return ACCEPTED if self._is_new else NOTHING
        self._is_new = False
        plain = json.loads(body)
        if not isinstance(plain, dict):
            raise ValueError("not an answer of an agent")
        return ANSWERED if plain.get("worker") == worker else REFUSED  # an address used again

    async def _read(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:
            raise ValueError("an answer without a length")
        return await self._reader.readexactly(int(length.group(1)))

    async def breaks_within(self, seconds: float) -> bool:
        """Wait so long; True, at once, when the other side closes it, or says what it was not asked."""
        try:
            await within(self._reader.read(1), seconds)
        except asyncio.TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._writer.transport.abort()
