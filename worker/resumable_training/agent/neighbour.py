"""Heartbeat to the next agent in the ring: a second witness when the operator can't hear one.

The next member in the assignment's order is asked for ``/healthz`` once a second. ``observe`` is PURE.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Member

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 1.0
UNREACHABLE_SECONDS = 3.0  # of failures


@dataclass(frozen=True)
class PeerView:
    """``failing_since``: seconds of the monotonic clock; None: it answered last time."""

    reachable: bool = True
    failing_since: Optional[float] = None


def observe(view: PeerView, answered: bool, now: float) -> Tuple[PeerView, Optional[str]]:
    """Fold one heartbeat; the second value is the kind of event to send, if any."""
    if answered:
        return PeerView(), None if view.reachable else events.PEER_REACHABLE
    since = now if view.failing_since is None else view.failing_since
    if view.reachable and now - since >= UNREACHABLE_SECONDS:
        return PeerView(False, since), events.PEER_UNREACHABLE
    return PeerView(view.reachable, since), None


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

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            answered = not self._is_cut() and await answers(self.peer)
            self.view, kind = observe(self.view, answered, time.monotonic())
            if kind:
                self._on_change(kind)
            await asyncio.sleep(max(0.0, began + INTERVAL_SECONDS - time.monotonic()))


async def answers(peer: Member) -> bool:
    """Is that worker's agent there? Another worker's at the same address does not count."""
    try:
        body = await asyncio.wait_for(_get_health(peer), TIMEOUT_SECONDS)
        return bool(json.loads(body).get("worker") == peer.worker)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError, AttributeError):
        return False


async def _get_health(peer: Member) -> bytes:
    reader, writer = await asyncio.open_connection(peer.address, peer.agent_port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
        reply = await reader.read(65536)
        while b"\r\n\r\n" not in reply or not reply.endswith(b"}"):
            more = await reader.read(65536)
            if not more:
                break
            reply += more
    finally:
        writer.close()
    return reply.partition(b"\r\n\r\n")[2]
