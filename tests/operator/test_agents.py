"""The agent pool: signed both ways, nothing lost, no state ahead of its events."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from asked_agents import JOB, distrust, endpoint, kinds, until
from fake_agent import KEY, FakeAgent
from hypothesis import example, given
from hypothesis import strategies as st

from resumable_operator.agent_client import AgentClient, Endpoint, assignment_json, new_session
from resumable_operator.agent_link import fold_state
from resumable_operator.agents import AgentPool, heartbeat_seconds
from resumable_operator.clock import SystemClock
from resumable_operator.errors import AgentNotBelieved, AgentRefused, AgentUnreachable
from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Member, Request
from resumable_training.contract.codec import from_json
from resumable_training.contract.events import AgentState, Event

STOP = Request("stop", attempt=1)


async def test_request_is_signed_and_answered(agent: FakeAgent) -> None:
    """A call reaches the agent as sent; the answer is its state; a second call uses a higher counter."""
    agent.state = dataclasses.replace(agent.state, attempt=3, master_port=4242)
    async with new_session() as session:
        client = AgentClient(session, endpoint(agent))
        assert (await client.request(STOP)).master_port == 4242
        assert (await client.state()).attempt == 3
    assert [call[:2] for call in agent.calls] == [("POST", "/v1/request"), ("GET", "/v1/state")]
    assert agent.calls[0][2]["kind"] == "stop"


async def test_counter_of_another_operator(agent: FakeAgent) -> None:
    """When another operator has used higher numbers the call is signed once more and succeeds."""
    async with new_session() as session:
        client = AgentClient(session, endpoint(agent))
        await client.state()
        agent.counter += 1000
        await client.request(STOP)
    assert agent.counter == 1002


async def test_restarted_agent(agent: FakeAgent) -> None:
    """A new boot of the agent is noticed by its answer and the call is signed for it."""
    async with new_session() as session:
        client = AgentClient(session, endpoint(agent))
        await client.state()
        agent.restart("boot-2")
        await client.request(STOP)
        assert client.boot_id == "boot-2"


async def test_refusal_carries_its_code(agent: FakeAgent) -> None:
    """A signed no is an AgentRefused with the machine's word for it."""
    agent.answer = (409, {"code": "older_attempt", "message": "attempt 1 is over"})
    async with new_session() as session:
        with pytest.raises(AgentRefused, match="attempt 1 is over") as caught:
            await AgentClient(session, endpoint(agent)).request(STOP)
    assert caught.value.code == "older_attempt"


async def test_forged_reply_is_no_reply(agent: FakeAgent) -> None:
    """An answer with a wrong signature is not believed."""
    agent.forge = "reply"
    async with new_session() as session:
        with pytest.raises(AgentNotBelieved, match="not signed") as caught:
            await AgentClient(session, endpoint(agent)).state()
    assert caught.value.kind == "words"


async def test_wrong_key_is_unreachable(agent: FakeAgent) -> None:
    """An agent that does not know our key is told apart from one that says no."""
    wrong = dataclasses.replace(endpoint(agent), key=b"w" * 32)
    async with new_session() as session:
        with pytest.raises(AgentNotBelieved, match="key") as caught:
            await AgentClient(session, wrong).state()
    assert caught.value.kind == "key"


async def test_nobody_there() -> None:
    """A closed port is unreachable, at once."""
    async with new_session() as session:
        with pytest.raises(AgentUnreachable):
            await AgentClient(session, Endpoint("w", "127.0.0.1", 1, KEY)).state()


async def test_silent_peer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that accepts and never answers costs no more than the bound."""
    monkeypatch.setattr("resumable_operator.agent_client.CALL_SECONDS", 0.1)
    server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with new_session() as session:
            with pytest.raises(AgentUnreachable):
                await asyncio.wait_for(
                    AgentClient(session, Endpoint("w", "127.0.0.1", port, KEY)).state(), 10
                )
    finally:
        server.close()


async def test_a_dead_agent_is_told_at_once(agent: FakeAgent, pool: AgentPool) -> None:
    """Its stream breaks and nobody listens any more, which is known without waiting for silence; until it is
    back."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    woken: list[str] = []
    pool.subscribe(woken.append)
    await agent.__aexit__()
    await until(lambda: pool.agents(JOB)["w-0-1"].refused)
    seen = pool.agents(JOB)["w-0-1"]
    assert not seen.connected
    assert seen.last_heard is not None
    assert woken
    await agent.__aenter__()
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    assert not pool.agents(JOB)["w-0-1"].refused


async def test_whom_a_neighbour_calls_lost_is_asked(
    agent: FakeAgent, pool: AgentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of few heartbeats would tell late whether it is there: one that answers is not lost, one whose
    answer fails is, though its stream has not ended yet; not while that has just spoken."""
    async with FakeAgent("w-1-1", "boot-2") as peer:
        await pool.sync(JOB, [endpoint(agent), endpoint(peer)], {})
        await until(lambda: all(seen.connected for seen in pool.agents(JOB).values()))
        agent.tell(events.PEER_UNREACHABLE, worker="w-1-1")
        await until(lambda: ("GET", "/v1/state") in [call[:2] for call in peer.calls])
        assert not pool.agents(JOB)["w-1-1"].refused
        peer.deaf = True
        peer.beat()
        link = pool._jobs[JOB]["w-1-1"]
        await link._check_now()
        assert not pool.agents(JOB)["w-1-1"].refused
        monkeypatch.setattr("resumable_operator.agent_link.FRESH_SECONDS", 0.0)
        agent.tell(events.PEER_UNREACHABLE, worker="w-1-1")
        await until(lambda: pool.agents(JOB)["w-1-1"].refused)
        assert pool.agents(JOB)["w-1-1"].connected
        peer.beat()
        await until(lambda: not pool.agents(JOB)["w-1-1"].refused)


async def test_events_are_told_as_they_come(agent: FakeAgent, pool: AgentPool) -> None:
    """Whoever wants to act without a pass gets each event but progress, once."""
    told: list[tuple[str, str, str]] = []
    pool.subscribe(lambda _: None, None, lambda key, worker, event: told.append((key, worker, event.kind)))
    await pool.sync(JOB, [endpoint(agent)], {})
    agent.tell(events.PROGRESS, rank=0)
    agent.tell(events.HANG, rank=0)
    await until(lambda: told == [(JOB, "w-0-1", events.HANG)])


async def test_a_newcomer_is_connected_to_before_its_turn(agent: FakeAgent, pool: AgentPool) -> None:
    """Once, and only for a job that is followed; the job's own turn keeps that stream."""
    pool.meet(JOB, endpoint(agent), {})
    assert pool.agents(JOB) == {}
    await pool.sync(JOB, [], {})
    pool.meet(JOB, endpoint(agent), {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    link = pool._jobs[JOB]["w-0-1"]
    pool.meet(JOB, endpoint(agent), {})
    await pool.sync(JOB, [endpoint(agent)], {})
    assert pool._jobs[JOB]["w-0-1"] is link


async def test_the_end_of_ranks_is_awaited(agent: FakeAgent, pool: AgentPool) -> None:
    """Until the agent says so, of that attempt; who is not heard is not waited for, nor anybody for long."""
    agent.state = dataclasses.replace(agent.state, attempt=2, state="running")
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].state is not None)
    await asyncio.wait_for(pool.stopped(JOB, 1, ["w-0-1", "w-1-1"], 60.0), 10)
    await asyncio.wait_for(pool.stopped(JOB, 2, ["w-0-1"], 0.05), 10)
    waiting = asyncio.create_task(pool.stopped(JOB, 2, ["w-1-1", "w-0-1"], 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    agent.tell(events.ATTEMPT_ENDED, attempt=2, outcome="stopped")
    await asyncio.wait_for(waiting, 10)


async def test_events_arrive_and_wake(agent: FakeAgent, pool: AgentPool) -> None:
    """Events come as they happen, and each wakes the job."""
    woken: list[str] = []
    pool.subscribe(woken.append)
    agent.tell(events.AGENT_STARTED)
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: kinds(pool) == [events.AGENT_STARTED])
    woken.clear()
    agent.tell(events.HANG, rank=0)
    await until(lambda: kinds(pool) == [events.AGENT_STARTED, events.HANG])
    assert JOB in woken


async def test_stream_begins_after_the_cursor(agent: FakeAgent, pool: AgentPool) -> None:
    """What status has folded is not asked for again, and not shown again."""
    for _ in range(3):
        agent.tell(events.WARNING, message="x")
    await pool.sync(JOB, [endpoint(agent)], {"boot-1": 2})
    await until(lambda: agent.asked_after == [2] and kinds(pool, {"boot-1": 2}) == [events.WARNING])


async def test_broken_stream_goes_on_where_it_was(agent: FakeAgent, pool: AgentPool) -> None:
    """After a break the missing events are fetched, none twice."""
    agent.tell(events.WARNING, message="1")
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: len(kinds(pool)) == 1)
    agent.break_streams()
    agent.tell(events.WARNING, message="2")
    await until(lambda: len(kinds(pool)) == 2)
    assert agent.asked_after == [0, 1]
    assert pool.agents(JOB)[agent.worker].connected


async def test_lost_connection_is_shown(agent: FakeAgent, pool: AgentPool) -> None:
    """An agent that went away is shown as not connected, with its last state."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)[agent.worker].connected)
    await agent.__aexit__()
    await until(lambda: not pool.agents(JOB)[agent.worker].connected)
    assert pool.agents(JOB)[agent.worker].state is not None


async def test_forged_line_is_dropped(
    agent: FakeAgent, pool: AgentPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A line with a wrong signature never becomes an event; the stream is broken off with a warning."""
    agent.forge = "line"
    agent.tell(events.ATTEMPT_ENDED, outcome="succeeded")
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: "not signed" in caplog.text)
    assert kinds(pool) == []
    assert not pool.agents(JOB)[agent.worker].connected


async def test_restart_counts_events_anew(agent: FakeAgent, pool: AgentPool) -> None:
    """Events of a new boot are new events, and those of the old one stay until they are folded."""
    agent.tell(events.WARNING, message="old")
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: len(kinds(pool)) == 1)
    agent.restart("boot-2")
    agent.tell(events.AGENT_STARTED)
    await until(lambda: kinds(pool) == [events.WARNING, events.AGENT_STARTED])
    assert agent.asked_after == [0, 0]


async def test_state_is_not_ahead_of_its_events(agent: FakeAgent, pool: AgentPool) -> None:
    """A snapshot that says "ended" is held back until the events that it counts are there."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)[agent.worker].state is not None)
    agent.state = dataclasses.replace(agent.state, state="ended", attempt=1, last_seq=1)
    agent.answer = None
    await pool.request(JOB, agent.worker, STOP)
    shown = pool.agents(JOB)[agent.worker].state
    assert shown is not None
    assert shown.state == "idle"
    agent.tell(events.ATTEMPT_ENDED, outcome="failed")
    await until(lambda: kinds(pool) == [events.ATTEMPT_ENDED])
    shown = pool.agents(JOB)[agent.worker].state
    assert shown is not None
    assert shown.state == "ended"


async def test_progress_changes_no_state(agent: FakeAgent, pool: AgentPool) -> None:
    """A state that only counts reports which are known is no news; one from before them is not shown."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)[agent.worker].connected)
    woken, reports = list[str](), list[str]()
    pool.subscribe(woken.append, reports.append)
    before = agent.state
    for step in range(1, 4):
        agent.tell(events.PROGRESS, rank=0, step=step)
    await until(lambda: len(reports) == 3)
    agent.state = dataclasses.replace(before, last_seq=3, now_ms=5)
    await pool.request(JOB, agent.worker, STOP)
    assert woken == []
    agent.state = dataclasses.replace(before, last_seq=1, unfit=True)
    await pool.request(JOB, agent.worker, STOP)
    shown = pool.agents(JOB)[agent.worker].state
    assert shown is not None
    assert not shown.unfit
    agent.state = dataclasses.replace(before, last_seq=3, unfit=True)
    await pool.request(JOB, agent.worker, STOP)
    assert woken == [JOB]


async def test_progress_is_coalesced(agent: FakeAgent, pool: AgentPool) -> None:
    """Of the reports of one rank only the newest is kept; other events keep their place."""
    for step in range(1, 4):
        agent.tell(events.PROGRESS, rank=0, step=step)
        agent.tell(events.CHECKPOINT, step=step)
    agent.tell(events.PROGRESS, rank=1, step=1)
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: len(agent.log) == 7 and kinds(pool)[-1:] == [events.PROGRESS])
    kept = [(event.event.kind, event.event.data["step"]) for event in pool.events(JOB, {})]
    assert kept == [("checkpoint", 1), ("checkpoint", 2), ("progress", 3), ("checkpoint", 3), ("progress", 1)]


async def test_consumed_events_are_dropped(agent: FakeAgent, pool: AgentPool) -> None:
    """Consuming returns what a written status has folded, once."""
    for _ in range(3):
        agent.tell(events.WARNING, message="x")
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: len(kinds(pool)) == 3)
    assert [event.event.seq for event in pool.consume(JOB, {"boot-1": 2})] == [1, 2]
    assert pool.consume(JOB, {"boot-1": 2}) == []
    assert len(kinds(pool)) == 1


async def test_last_words_of_an_ended_worker(agent: FakeAgent, pool: AgentPool) -> None:
    """A worker that has ended keeps its unread events until they are folded, then it is forgotten."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)[agent.worker].connected)
    agent.tell(events.ATTEMPT_ENDED, outcome="drained")
    await until(lambda: len(kinds(pool)) == 1)
    agent.break_streams()
    await pool.sync(JOB, [], {})
    assert kinds(pool) == [events.ATTEMPT_ENDED]
    with pytest.raises(AgentUnreachable):
        await pool.request(JOB, agent.worker, STOP)
    pool.consume(JOB, {"boot-1": 1})
    assert pool.agents(JOB) == {}


async def test_times_are_on_our_clock(agent: FakeAgent, pool: AgentPool) -> None:
    """An agent's monotonic milliseconds become seconds of the operator's clock, never in its future."""
    clock = SystemClock()
    agent.state = dataclasses.replace(agent.state, now_ms=5000)
    event = agent.tell(events.WARNING, message="x")
    before = clock.now()
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: kinds(pool))
    (timed,) = pool.events(JOB, {})
    ago = 5.0 - event.at_ms / 1000
    assert before - ago - 0.1 <= timed.at <= clock.now() - ago + 0.1


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (events.RANKS_STARTED, {"ranks": [0, 1]}, {"state": "running", "ranks_alive": 2}),
        (events.RANK_EXITED, {"rank": 0}, {"ranks_alive": 1}),
        (
            events.ATTEMPT_ENDED,
            {"outcome": "failed"},
            {"state": "ended", "outcome": "failed", "ranks_alive": 0},
        ),
        (events.DRAIN_REQUESTED, {"reason": "sigterm"}, {"terminating": True, "state": "draining"}),
        (events.DRAIN_REQUESTED, {"reason": "scale"}, {"terminating": False, "state": "draining"}),
        (events.PEER_UNREACHABLE, {"worker": "b"}, {"unreachable_peer": "b"}),
        (events.PEER_REACHABLE, {"worker": "b"}, {"unreachable_peer": None}),
        (events.UNFIT, {"rank": 0}, {"unfit": True}),
    ],
)
def test_events_change_the_state(kind: str, data: dict[str, object], expected: dict[str, object]) -> None:
    """Between two snapshots the state follows the events."""
    state = AgentState("boot", "w", attempt=2, state="running", ranks_alive=2, last_seq=4)
    after = fold_state(state, Event(5, 0, kind, 2, "boot", data))
    assert {name: getattr(after, name) for name in expected} == expected
    assert after.last_seq == 5


def test_events_of_an_older_attempt_change_nothing() -> None:
    """A late end of attempt 1 does not end attempt 2."""
    state = AgentState("boot", "w", attempt=2, state="running", ranks_alive=2, last_seq=4)
    after = fold_state(state, Event(5, 0, events.ATTEMPT_ENDED, 1, "boot", {"outcome": "stopped"}))
    assert after == dataclasses.replace(state, last_seq=5)


# ---- agents that are not believed ----------------------------------------------------------------------


async def test_an_agent_with_another_key_is_shown_as_such(agent: FakeAgent, pool: AgentPool) -> None:
    """It answers and knows none of our keys: neither silent nor heard, and told at once."""
    woken: list[str] = []
    pool.subscribe(woken.append)
    await pool.sync(JOB, [dataclasses.replace(endpoint(agent), key=b"w" * 32)], {})
    await until(lambda: distrust(pool) == "key")
    assert woken
    assert not pool.agents(JOB)["w-0-1"].connected


async def test_a_forged_stream_is_not_believed_until_it_is_signed_again(
    agent: FakeAgent, pool: AgentPool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is taken in; one warning, and none of it is left when the true agent is back."""
    agent.forge = "line"
    agent.tell(events.HANG, rank=0)
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: distrust(pool) == "words")
    assert kinds(pool) == []
    assert caplog.text.count("not signed") == 1
    agent.forge = ""
    agent.break_streams()
    await until(lambda: kinds(pool) == [events.HANG])
    assert distrust(pool) == ""


async def test_nonsense_in_the_stream_breaks_nothing(agent: FakeAgent, pool: AgentPool) -> None:
    """Signed, and still nonsense: said, not taken in, and asked again."""
    agent.log.append(Event(1, 10**400, events.WARNING, 1, agent.boot_id, {}))
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: distrust(pool) == "words")
    agent.log.clear()
    agent.tell(events.HANG, rank=0)
    agent.break_streams()
    await until(lambda: kinds(pool) == [events.HANG])


async def test_a_stranger_at_the_address(pool: AgentPool) -> None:
    """Some server that speaks no HTTP is no agent, and stops nothing."""

    async def rave(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 220 mail ready\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(rave, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        await pool.sync(JOB, [Endpoint("w-0-1", "127.0.0.1", port, KEY)], {})
        await until(lambda: distrust(pool) == "words")
    finally:
        server.close()


async def test_another_workers_agent_at_the_address(pool: AgentPool) -> None:
    """A pod's address that another pod got is no word about ours: it is not heard."""
    async with FakeAgent(worker="other-0-1") as agent, new_session() as session, asyncio.timeout(10):
        ours = dataclasses.replace(endpoint(agent), worker="w-0-1")
        with pytest.raises(AgentUnreachable, match="other-0-1 answers"):
            await AgentClient(session, ours).state()
        await pool.sync(JOB, [ours], {})
        await until(lambda: agent.asked_health >= 3)
        assert distrust(pool) == ""
        assert pool.agents(JOB)["w-0-1"].last_heard is None


async def test_progress_wakes_by_its_own_way(agent: FakeAgent, pool: AgentPool) -> None:
    """Reports of progress, most of all events, are told apart from what needs a look at once."""
    woken: list[str] = []
    progressed: list[str] = []
    pool.subscribe(woken.append, progressed.append)
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    woken.clear()
    agent.tell(events.PROGRESS, rank=0)
    await until(lambda: progressed == [JOB])
    assert woken == []
    agent.tell(events.HANG, rank=0)
    await until(lambda: woken)


@pytest.mark.parametrize(
    ("streams", "seconds"), [(1, 0.5), (750, 0.5), (1500, 1.0), (9000, 6.0), (10**6, 10.0)]
)
def test_a_large_fleet_speaks_less_often(streams: int, seconds: float) -> None:
    """Together all streams speak a bounded number of times a second; small ones are not slowed down."""
    assert heartbeat_seconds(streams) == seconds


async def test_streams_are_opened_anew_when_the_fleet_has_grown(
    agent: FakeAgent, pool: AgentPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wanted heartbeat is asked for without the agent seeming away, and silence is judged by it."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    assert pool.agents(JOB)["w-0-1"].silent_after == events.SILENT_SECONDS
    monkeypatch.setattr("resumable_operator.agents.TURNS_A_SECOND", 0.25)
    seen: list[bool] = []
    pool.subscribe(lambda _job: seen.append(pool.agents(JOB)["w-0-1"].connected))
    await until(lambda: pool._heartbeat_seconds == 4.0)
    agent.beat()
    await until(lambda: "4000" in agent.asked_heartbeats)
    agent.tell(events.HANG, rank=0)
    await until(lambda: kinds(pool) == [events.HANG])
    assert all(seen)
    assert pool.agents(JOB)["w-0-1"].silent_after == 9.0


async def test_a_repeated_snapshot_is_a_heartbeat(agent: FakeAgent, pool: AgentPool) -> None:
    """It moves the time of the last word and changes nothing else; a changed one is read."""
    await pool.sync(JOB, [endpoint(agent)], {})
    await until(lambda: pool.agents(JOB)["w-0-1"].connected)
    woken: list[str] = []
    pool.subscribe(woken.append)
    before = pool.agents(JOB)["w-0-1"]
    agent.state = dataclasses.replace(agent.state, now_ms=777)
    agent.beat()
    await until(lambda: (pool.agents(JOB)["w-0-1"].last_heard or 0) > (before.last_heard or 0))
    assert pool.agents(JOB)["w-0-1"].state == before.state
    assert woken == []
    agent.state = dataclasses.replace(agent.state, now_ms=888, unfit=True)
    agent.beat()
    await until(lambda: woken)
    state = pool.agents(JOB)["w-0-1"].state
    assert state is not None
    assert state.unfit


@given(
    names=st.lists(st.text(max_size=12), max_size=4),
    env=st.dictionaries(st.text(max_size=20), st.text(max_size=20)),
)
@example(names=["w"], env={"X": '"members":[]', '"members":[]': "y"})
def test_an_assignment_is_sent_as_it_is(names: list[str], env: dict[str, str]) -> None:
    """Writing the members once for all workers changes nothing of what each of them reads."""
    members = tuple(Member(name, place, 1, "10.0.0.1", 1, place, 1) for place, name in enumerate(names))
    part = Assignment("ns/j", "uid", 1, "d", "w", members, "10.0.0.1", 0, env=env)
    for worker in ("w", "v"):
        sent = dataclasses.replace(part, worker=worker)
        assert from_json(Assignment, assignment_json(sent)) == sent
