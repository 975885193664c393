"""The ring: who watches whom, and when a neighbour counts as unreachable."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from resumable_training.agent.neighbour import PeerView, answers, next_member, observe
from resumable_training.contract.assignment import Assignment, Member

MEMBERS = tuple(Member(f"w{i}", i, 1, "127.0.0.1", 7000 + i, i, 1) for i in range(3))
WANTED = Assignment("n/j", "uid", 1, "d", "w0", MEMBERS, "127.0.0.1", 1)


@pytest.mark.parametrize(("worker", "peer"), [("w0", "w1"), ("w1", "w2"), ("w2", "w0")])
def test_ring(worker: str, peer: str) -> None:
    """The next member in order; the last watches the first."""
    found = next_member(replace(WANTED, worker=worker))
    assert found is not None
    assert found.worker == peer


def test_alone() -> None:
    """A single worker watches nobody."""
    assert next_member(replace(WANTED, members=MEMBERS[:1])) is None


def test_told_once_and_taken_back_once() -> None:
    """Three seconds of failures make it unreachable; the first answer makes it reachable."""
    heartbeats = [(True, 0), (False, 1), (False, 3), (False, 4), (False, 9), (True, 10), (True, 11)]
    view, told = PeerView(), []
    for answered, now in heartbeats:
        view, kind = observe(view, answered, float(now))
        told.append(kind)
    assert told == [None, None, None, "peer_unreachable", None, "peer_reachable", None]


def test_a_single_answer_starts_the_count_anew() -> None:
    """Failures with an answer between them are no silence."""
    view, told = PeerView(), []
    for now in range(20):
        view, kind = observe(view, now % 3 == 0, float(now))
        told.append(kind)
    assert told == [None] * 20


@pytest.mark.parametrize(
    ("reply", "counts"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"worker":"w1"}', True),
        (b'HTTP/1.1 200 OK\r\n\r\n{"worker":"other"}', False),
        (b"HTTP/1.1 200 OK\r\n\r\n[1]", False),
        (b"nonsense", False),
        (b"", False),
    ],
)
async def test_only_the_right_worker_counts(reply: bytes, counts: bool) -> None:
    """Something else at a reused address is not our neighbour."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = replace(MEMBERS[1], agent_port=port)
    assert await answers(peer) is counts
    server.close()
    await server.wait_closed()
    assert await answers(peer) is False
