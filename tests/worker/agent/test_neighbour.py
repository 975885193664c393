"""The ring: who watches whom, and when a neighbour counts as unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent import neighbour
from resumable_training.agent.neighbour import (
    ACCEPTED,
    ANSWERED,
    NOTHING,
    REFUSED,
    SILENT_SECONDS,
    STALLED_SECONDS,
    NeighbourWatch,
    PeerView,
    asked,
    forgiven,
    next_member,
    observe,
    verdict_at,
)
from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Member

MEMBERS = tuple(Member(f"w{i}", i, 1, "127.0.0.1", 7000 + i, i, 1) for i in range(3))
WANTED = Assignment("n/j", "uid", 1, "d", "w0", MEMBERS, "127.0.0.1", 1)
LOST, BACK = events.PEER_UNREACHABLE, events.PEER_REACHABLE
NEVER = 1e6


@pytest.mark.parametrize(("worker", "peer"), [("w0", "w1"), ("w1", "w2"), ("w2", "w0")])
def test_ring(worker: str, peer: str) -> None:
    """The next member in order; the last watches the first."""
    found = next_member(replace(WANTED, worker=worker))
    assert found is not None
    assert found.worker == peer


def test_alone() -> None:
    """A single worker watches nobody."""
    assert next_member(replace(WANTED, members=MEMBERS[:1])) is None


# ---- what is made of what is seen: rows of (seconds, sign), told -------------------------------------------


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        pytest.param([(0, ANSWERED), (1, REFUSED)], [None, LOST], id="nobody listens: at once"),
        pytest.param([(0, NOTHING), (2.3, NOTHING), (2.4, NOTHING)], [None, None, LOST], id="a dead machine"),
        pytest.param([(0, NOTHING), (2.3, ANSWERED), (4, NOTHING)], [None] * 3, id="an answer counts anew"),
        pytest.param(
            [(0, NOTHING), (1, ACCEPTED), (3, ACCEPTED), (9.9, ACCEPTED), (10, ACCEPTED)],
            [None, None, None, None, LOST],
            id="a stopped agent, its machine alive",
        ),
        pytest.param(
            [(0, NOTHING), (1, ACCEPTED), (3.3, NOTHING), (3.4, NOTHING)],
            [None, None, None, LOST],
            id="stopped, then dead",
        ),
        pytest.param(
            [(0, REFUSED), (1, REFUSED), (2, ANSWERED), (3, ANSWERED)],
            [LOST, None, BACK, None],
            id="told once, taken back once",
        ),
    ],
)
def test_verdicts(seen: list[tuple[float, str]], told: list[str | None]) -> None:
    """What is told for what is seen, row by row."""
    view, found = PeerView(), []
    for now, sign in seen:
        view, kind = observe(view, sign, now)
        found.append(kind)
    assert found == told


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.sampled_from([ANSWERED, ACCEPTED, NOTHING]))))
def test_no_verdict_without_a_long_silence(steps: list[tuple[float, str]]) -> None:
    """Unless refused, a peer is called lost only when nothing of its machine was seen for ``SILENT_SECONDS``,
    or no answer for ``STALLED_SECONDS``; and then it is."""
    view, now = PeerView(), 0.0
    answered_at: float | None = None
    seen_at: float | None = None
    for seconds, sign in steps:
        now += seconds
        view, kind = observe(view, sign, now)
        if sign == ANSWERED:
            answered_at = seen_at = None
            continue
        answered_at = now if answered_at is None else answered_at
        seen_at = now if seen_at is None or sign == ACCEPTED else seen_at
        overdue = now - seen_at >= SILENT_SECONDS or now - answered_at >= STALLED_SECONDS
        assert kind is None or overdue
        assert not (overdue and view.reachable)


def test_a_pause_of_two_seconds_is_none() -> None:
    """A machine that stands still for 2 s right after a question has answered before the verdict; one that is
    gone is called lost within 3 s, the longest way to the next question included."""
    assert verdict_at(asked(PeerView(), 100.0)) - 100.0 > 2.0 + neighbour.INTERVAL_SECONDS / 2
    assert neighbour.INTERVAL_SECONDS + SILENT_SECONDS < 2.75


def test_own_pause_is_forgiven() -> None:
    """Whoever was stopped itself begins to wait anew."""
    waiting = PeerView(waiting_since=1.0, taken_at=1.5)
    assert forgiven(waiting, 9.0) == PeerView(waiting_since=9.0)
    assert forgiven(PeerView(), 9.0) == PeerView()


# ---- real connections ------------------------------------------------------------------------------------


class Peer:
    """Serves as an agent does; ``answer`` None: it takes connections and says nothing."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.questions = 0
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> int:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return int(self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.questions += 1
                if self.answer is not None:
                    writer.write(self.answer)


def healthy(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: keep-alive\r\n\r\n%s" % (len(body), body)


GOOD = healthy(b'{"worker":"w1"}')


@asynccontextmanager
async def watching(port: int) -> AsyncIterator[tuple[NeighbourWatch, list[str]]]:
    told: list[str] = []
    watch = NeighbourWatch(replace(MEMBERS[1], agent_port=port), told.append, lambda: False)
    task = asyncio.create_task(watch.run())
    try:
        yield watch, told
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting leads to a verdict."""
    monkeypatch.setattr(neighbour, "SILENT_SECONDS", NEVER)
    monkeypatch.setattr(neighbour, "STALLED_SECONDS", NEVER)


@pytest.mark.usefixtures("patient")
async def test_a_killed_agent_is_noticed_at_once() -> None:
    """Its connection ends and nobody listens any more: told without waiting; and back when it is back."""
    peer = Peer(GOOD)
    port = await peer.start()
    async with watching(port) as (watch, told):
        await until(lambda: peer.questions >= 3)
        assert (peer.connections, told, watch.view) == (1, [], PeerView())
        await peer.stop()
        await until(lambda: told == [LOST])
        await peer.start(port)
        await until(lambda: told == [LOST, BACK])
        await peer.stop()


@pytest.mark.usefixtures("patient")
async def test_a_broken_connection_is_no_loss() -> None:
    """The agent is there and was only turned away, as a stranger too many: asked again, nothing told."""
    peer = Peer(GOOD)
    async with watching(await peer.start()) as (_, told):
        for number in range(3):
            await until(lambda number=number: peer.questions > number)
            peer.writers[-1].transport.abort()
            await until(lambda number=number: peer.connections > number + 1)
        assert told == []
        await peer.stop()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        pytest.param(healthy(b'{"worker":"other"}'), True, id="another worker at a reused address"),
        pytest.param(healthy(b"[1]"), False, id="not an object"),
        pytest.param(healthy(b" " * 10000), False, id="too long"),
        pytest.param(healthy(b"[" * 3000), False, id="nested without end"),
        pytest.param(b"nonsense\r\n\r\n", False, id="no length"),
    ],
)
async def test_only_the_right_worker_counts(answer: bytes, lost: bool) -> None:
    """Something else at its address is not our neighbour; nonsense alone proves nothing."""
    peer = Peer(answer)
    async with watching(await peer.start()) as (watch, told):
        await until(lambda: peer.questions >= 3)
        await until(lambda: told == ([LOST] if lost else []))
        assert watch.view.waiting_since is not None
        await peer.stop()


async def test_a_stopped_agent_is_not_a_dead_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes connections while it does not answer: that is waited for longer."""
    monkeypatch.setattr(neighbour, "SILENT_SECONDS", 1.0)  # longer than a question, shorter than three
    peer = Peer(None)
    async with watching(await peer.start()) as (_, told):
        await until(lambda: peer.connections >= 4)
        assert told == []
        monkeypatch.setattr(neighbour, "STALLED_SECONDS", 0.1)
        await until(lambda: told == [LOST])
        await peer.stop()


async def test_a_machine_that_drops_all_packets_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing answers, not even to a new connection: lost after ``SILENT_SECONDS``, whatever a stopped agent
    is given."""
    monkeypatch.setattr(neighbour, "STALLED_SECONDS", NEVER)
    with full_listener() as port:
        async with watching(port) as (_, told):
            await until(lambda: told == [LOST])


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port whose backlog is full: the kernel drops what asks for a connection, as a dead machine would."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(address)
        yield address[1]


async def test_with_its_own_network_cut_it_hears_nobody() -> None:
    """The fault injection cuts both ways: nothing is asked."""
    peer = Peer(GOOD)
    port = await peer.start()
    cut = True
    told: list[str] = []
    watch = NeighbourWatch(replace(MEMBERS[1], agent_port=port), told.append, lambda: cut)
    task = asyncio.create_task(watch.run())
    await until(lambda: told == [LOST])
    assert peer.questions == 0
    cut = False
    await until(lambda: told == [LOST, BACK])
    task.cancel()
    await peer.stop()
