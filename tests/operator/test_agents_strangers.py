"""Whoever answers at a worker's address and means ill: sends elsewhere, never ends, counts beyond bounds."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from asked_agents import JOB, distrust, endpoint, kinds, until
from fake_agent import KEY, FakeAgent

from resumable_operator.agent_client import AgentClient, Endpoint, new_session
from resumable_operator.agent_link import OPENED_AT_ONCE, fold_state
from resumable_operator.agents import AgentPool
from resumable_operator.errors import AgentNotBelieved
from resumable_training.contract import events
from resumable_training.contract.assignment import Request
from resumable_training.contract.events import AgentState, Event

STOP = Request("stop", attempt=1)


async def serve_raw(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> asyncio.Server:
    """A server that reads one request's head and then does what it likes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            await answer(writer)
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_stranger_sends_us_nowhere(agent: FakeAgent, status: int) -> None:
    """Whoever answers at a worker's address can't make the operator call somebody else."""

    async def elsewhere(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status} Moved\r\nLocation: http://127.0.0.1:{agent.port}/healthz\r\n"
        writer.write(head.encode() + b"Content-Length: 0\r\n\r\n")
        await writer.drain()

    async with await serve_raw(elsewhere) as server, new_session() as session:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AgentNotBelieved):
            await AgentClient(session, dataclasses.replace(endpoint(agent), port=port)).state()
    assert agent.asked_health == 0
    assert agent.calls == []


async def test_an_endless_reply_fills_no_memory(agent: FakeAgent) -> None:
    """A reply without an end is left when it is longer than any agent's, whatever it answers."""
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        while sent < 64 << 20:
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()
            sent += 0x10000

    async with await serve_raw(endless) as server, new_session() as session:
        ours = dataclasses.replace(endpoint(agent), port=server.sockets[0].getsockname()[1])
        client = AgentClient(session, ours)
        with pytest.raises(AgentNotBelieved, match="too long"):
            await client.hello()
        with pytest.raises(AgentNotBelieved, match="too long"):
            await client.events(0)
    assert sent < 32 << 20


async def test_few_streams_are_opened_at_once(agent: FakeAgent, pool: AgentPool) -> None:
    """One that waits for its turn is not silent: nobody has asked it yet."""
    gate = pool._gates.first
    for _ in range(OPENED_AT_ONCE):
        await gate.acquire()
    await pool.sync(JOB, [endpoint(agent)], {})
    await asyncio.sleep(0)
    waiting = pool.agents(JOB)["w-0-1"]
    assert (waiting.connected, waiting.state) == (False, None)
    assert waiting.last_heard is not None
    assert agent.asked_health == 0
    gate.release()
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    assert not gate.locked(), "the turn is over when the stream is open"


async def test_agents_that_do_not_answer_keep_nobody_waiting(agent: FakeAgent, pool: AgentPool) -> None:
    """They wait for one another; those that are asked for the first time pass by."""
    for _ in range(OPENED_AT_ONCE):
        await pool._gates.again.acquire()
    await pool.sync(JOB, [Endpoint("w-1-1", "127.0.0.1", 1, KEY)], {})
    await until(lambda: pool._gates.again._waiters)
    assert pool.agents(JOB)["w-1-1"].last_heard is None
    await pool.sync(JOB, [Endpoint("w-1-1", "127.0.0.1", 1, KEY), endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)


@pytest.mark.parametrize("name", ["attempt", "first_seq", "last_seq", "now_ms", "master_port"])
@pytest.mark.parametrize("number", [2**60, 10**30, -1])
async def test_a_state_that_counts_beyond_all_bounds(
    agent: FakeAgent, pool: AgentPool, name: str, number: int
) -> None:
    """It would be the base of what is counted next, so it is not taken in, in a stream or in a reply."""
    good, wrong = agent.state, {name: number}
    agent.state = dataclasses.replace(agent.state, **wrong)  # type: ignore[arg-type]
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: distrust(pool) == "words")
    assert pool.agents(JOB)[agent.worker].state is None
    with pytest.raises(AgentNotBelieved):
        await pool.request(JOB, agent.worker, STOP)
    agent.state = good
    agent.break_streams()
    await until(lambda: pool.agents(JOB)[agent.worker].state == good)


async def test_events_beyond_count(
    agent: FakeAgent, pool: AgentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more are kept than there is room for; the others are asked for when those are folded."""
    monkeypatch.setattr("resumable_operator.agent_link.MOST_EVENTS", 5)
    for number in range(12):
        agent.tell(events.WARNING, message=str(number))
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: distrust(pool) == "words")
    assert len(kinds(pool)) == 5
    folded = 0
    while folded < 12:
        await until(lambda: kinds(pool))
        folded += len(pool.consume(JOB, {"boot-1": folded + len(kinds(pool))}))
    assert kinds(pool) == []


async def test_a_boot_with_an_endless_name(agent: FakeAgent, pool: AgentPool) -> None:
    """The name of a boot is kept in status: one that fills it is not believed."""
    agent.boot_id = "b" * 100_000
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: distrust(pool) == "words")
    assert len(pool.agents(JOB)[agent.worker].distrust.message) < 300  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (events.RANKS_STARTED, {"ranks": 5}),
        (events.ATTEMPT_ENDED, {"outcome": {"a": 1}}),
        (events.RANK_EXITED, {}),
    ],
)
def test_odd_data_of_an_event(kind: str, data: dict[str, object]) -> None:
    """Signed nonsense in an event is no state that could not be stored, and ends no stream."""
    state = AgentState("boot", "w", attempt=2, state="running", ranks_alive=2, last_seq=4)
    after = fold_state(state, Event(5, 0, kind, 2, "boot", data))
    assert (after.outcome, after.ranks_alive >= 0) == (None, True)
