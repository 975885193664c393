"""The agent's API against a real agent: signatures, replay, cut network, neighbours, the zipapp."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agent_process import AgentProcess, fake_command, wait_until

from resumable_training.agent.ports import bindable
from resumable_training.contract import events
from resumable_training.contract.assignment import Member, Request
from resumable_training.contract.codec import to_json

LONG = fake_command("--steps", "100000", "--step-seconds", "0.02")


def health(agent: AgentProcess) -> dict[str, object] | None:
    """/healthz, unsigned; None when nothing answers."""
    try:
        status, answer = agent.call("GET", "/healthz", headers={})
    except (OSError, http.client.HTTPException):
        return None
    assert status == 200
    return dict(answer)


def test_open_and_signed_paths(tmp_path: Path) -> None:
    """Health and metrics are for everyone; the rest, also what does not exist, is not."""
    with AgentProcess(tmp_path, LONG) as agent:
        assert health(agent) == {
            "boot_id": agent.boot_id,
            "worker": "train-0-1",
            "counter": 0,
            "contract_version": 1,
        }
        assert agent.call("GET", "/metrics", headers={}) == (200, "")
        for method, path in [("GET", "/v1/state"), ("PUT", "/v1/assignment"), ("GET", "/v1/none")]:
            status, answer = agent.call(method, path, headers={})
            assert (status, answer["code"]) == (401, "unknown_key")
        assert agent.call("GET", "/v1/none")[0] == 404
        agent.begin(ranks=1)
        agent.wait_event(events.PROGRESS)
        status, text = agent.call("GET", "/metrics", headers={})
        assert "resumable_agent_step{" in text


def test_tampering_and_replay_are_refused(tmp_path: Path) -> None:
    """Another body, another key, another boot, a used counter: 401 with what is needed to sign anew."""
    with AgentProcess(tmp_path, LONG) as agent:
        body = to_json(Request("stop"))
        path = "/v1/request"
        good = agent.headers("POST", path, body)
        status, answer = agent.call("POST", path, to_json(Request("shutdown")), headers=good)
        assert (status, answer["code"]) == (401, "bad_signature")
        assert agent.call("POST", path, body, headers=good)[0] == 200
        status, answer = agent.call("POST", path, body, headers=good)
        assert (status, answer["code"]) == (401, "stale_counter")
        assert (answer["counter"], answer["boot_id"]) == (agent.counter, agent.boot_id)
        forged = agent.headers("POST", path, body, boot_id="0" * 32)
        connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=20)
        connection.request("POST", path, body=body, headers=forged)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["code"] == "wrong_boot"
        stranger = agent.headers("POST", path, body, key=b"x" * 32)
        status, answer = agent.call("POST", path, body, headers=stranger)
        assert (status, answer["code"]) == (401, "unknown_key")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\ncontent-length: -3\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\ncontent-length: 999999999\r\n\r\n", b"413"),
        (b"PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 70000 + b"\r\n\r\n", b"431"),
    ],
)
def test_malformed_requests(tmp_path: Path, sent: bytes, status: bytes) -> None:
    """Answered with what is wrong; the agent goes on."""
    with AgentProcess(tmp_path, LONG) as agent:
        with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as peer:
            peer.sendall(sent)
            assert peer.recv(65536).split()[1] == status
        assert health(agent)


def test_replay_of_events(tmp_path: Path) -> None:
    """A reader that was away gets a snapshot, then all it missed, then what happens; numbers have no gap."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        seen = agent.wait_event(events.RANK_CONNECTED).seq
        agent.request("stop")
        agent.ended()
        missed = []
        for event in agent.stream(after=seen):
            if not missed and event.seq == 0:
                assert event.kind == events.SNAPSHOT
                assert event.data["state"] == "ended"
                continue
            missed.append(event)
            if event.kind == events.ATTEMPT_ENDED:
                break
        assert [event.seq for event in missed] == list(range(seen + 1, seen + 1 + len(missed)))
        agent.begin(attempt=2, ranks=1)
        assert agent.wait_event(events.RANKS_STARTED, after=missed[-1].seq).attempt == 2


def test_a_number_of_another_boot_replays_all(tmp_path: Path) -> None:
    """Beyond anything this boot logged: the reader knows nothing of it."""
    with AgentProcess(tmp_path, LONG) as agent:
        numbers = [event.seq for event, _ in zip(agent.stream(after=10**6), range(2), strict=False)]
        assert numbers == [0, 1]


def test_silence_means_something(tmp_path: Path) -> None:
    """Snapshots come without events, each with a later time."""
    with AgentProcess(tmp_path, LONG) as agent:
        last = agent.state().last_seq
        times = [event.at_ms for event, _ in zip(agent.stream(after=last), range(3), strict=False)]
        assert times[0] < times[1] < times[2]


def test_a_reader_may_ask_for_fewer_snapshots(tmp_path: Path) -> None:
    """Heartbeats come as seldom as asked; events come at once all the same."""
    with AgentProcess(tmp_path, LONG) as agent:
        last = agent.state().last_seq
        stream = agent.stream(after=last, query="&heartbeat_ms=1500")
        first, second = next(stream), next(stream)
        assert second.at_ms - first.at_ms >= 1400
        agent.begin(ranks=1)
        assert next(stream).kind == events.ASSIGNED


def test_progress_comes_with_the_fewer_snapshots(tmp_path: Path) -> None:
    """A reader of many streams has no turn for progress alone, and gets the newest report of a rank."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=1)
        agent.wait_event(events.PROGRESS)
        stream = agent.stream(after=agent.state().last_seq, query="&heartbeat_ms=1500")
        turns: list[list[str]] = []
        for event in stream:
            if event.kind == events.SNAPSHOT:
                turns.append([])
            turns[-1].append(event.kind)
            if len(turns) == 4:
                break
        assert turns[1:3] == [[events.SNAPSHOT, events.PROGRESS]] * 2
        agent.request("stop")
        rest = [event.kind for event, _ in zip(stream, range(4), strict=False)]
        assert events.ATTEMPT_ENDED in rest


@pytest.mark.parametrize("scope", ["operator", "all"])
def test_cut_network(tmp_path: Path, scope: str) -> None:
    """Streams break and calls fail, for neighbours too if asked; ranks go on; afterwards all is as before."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=1)
        agent.wait_event(events.PROGRESS)
        stream = agent.stream()
        next(stream)
        assert agent.request("cut-network", seconds=2.0, scope=scope)[0] == 200
        list(stream)  # ends only because the connection is cut
        assert (health(agent) is not None) == (scope == "operator")
        with pytest.raises((OSError, http.client.HTTPException)):
            agent.state()
        wait_until(lambda: health(agent), "the network's return")
        state = wait_until(lambda: _state_or_none(agent), "calls that work again")
        assert (state.ranks_alive, state.attempt) == (1, 1)


def _state_or_none(agent: AgentProcess) -> object:
    try:
        return agent.state()
    except (OSError, http.client.HTTPException):
        return None


def test_faults_only_where_allowed(tmp_path: Path) -> None:
    """A production agent can't be cut off by a request."""
    with AgentProcess(tmp_path, LONG, allow_faults=False) as agent:
        status, answer = agent.request("cut-network", seconds=5.0)
        assert (status, answer["code"]) == (409, "faults")
        assert health(agent)


def test_neighbours_watch_each_other(tmp_path: Path) -> None:
    """An agent that is gone is told by its neighbour, and so is its return."""
    with (
        AgentProcess(tmp_path / "a", LONG) as one,
        AgentProcess(tmp_path / "b", LONG, worker="train-1-1") as two,
    ):
        members = (
            Member("train-0-1", 0, 1, "127.0.0.1", one.port, 0, 1),
            Member("train-1-1", 1, 1, "127.0.0.1", two.port, 1, 1),
        )
        one.begin(members=members)
        port = one.state().master_port
        two.begin(members=members, master_port=port)
        assert two.state().master_port == port
        two.request("cut-network", seconds=6.0)
        told = one.wait_event(events.PEER_UNREACHABLE)
        assert told.data == {"worker": "train-1-1"}
        assert one.state().unreachable_peer == "train-1-1"
        assert one.wait_event(events.PEER_REACHABLE, after=told.seq).data == {"worker": "train-1-1"}
        assert one.state().unreachable_peer is None
        assert one.state().ranks_alive == 1


def test_a_killed_neighbour_is_told_by_what_meets_the_next_connection(tmp_path: Path) -> None:
    """SIGKILL of an agent: nobody listens at its address any more, which its neighbour tells before the time
    that a silent one is given."""
    with (
        AgentProcess(tmp_path / "a", LONG) as one,
        AgentProcess(tmp_path / "b", LONG, worker="train-1-1") as two,
    ):
        members = (
            Member("train-0-1", 0, 1, "127.0.0.1", one.port, 0, 1),
            Member("train-1-1", 1, 1, "127.0.0.1", two.port, 1, 1),
        )
        one.begin(members=members)
        two.begin(members=members, master_port=one.state().master_port)
        assert two.process is not None
        two.process.kill()
        told = one.wait_event(events.PEER_UNREACHABLE)
        assert told.data == {"worker": "train-1-1"}


def test_a_port_is_held_for_the_next_attempt(tmp_path: Path) -> None:
    """The state tells one that nobody else can bind; it is that attempt's master port, and the next attempt's
    is another."""
    with AgentProcess(tmp_path, LONG) as agent:
        first = agent.state().next_port
        assert first
        assert not bindable("127.0.0.1", first)
        agent.begin(attempt=1, master_port=first)
        wait_until(lambda: bindable("127.0.0.1", first), "the port to be let go for its rank 0")
        second = agent.state().next_port
        assert second not in (0, first)
        agent.begin(attempt=2)  # by an operator that does not know of held ports
        state = agent.state()
        assert state.master_port == second
        assert state.next_port not in (0, first, second)


def test_a_held_port_stays_for_an_attempt_with_rank_0_elsewhere(tmp_path: Path) -> None:
    """Only the attempt that uses it lets it go."""
    with AgentProcess(tmp_path, LONG) as agent:
        held = agent.state().next_port
        members = (
            Member("other", 0, 1, "127.0.0.1", 1, 0, 1),
            Member("train-0-1", 1, 1, "127.0.0.1", agent.port, 1, 1),
        )
        agent.begin(members=members, master_port=29000)
        assert agent.state().next_port == held
        assert not bindable("127.0.0.1", held)


def test_only_rank_0_chooses_the_port(tmp_path: Path) -> None:
    """Others need it in their assignment."""
    with AgentProcess(tmp_path, LONG) as agent:
        members = (
            Member("other", 0, 1, "127.0.0.1", 1, 0, 1),
            Member("train-0-1", 1, 1, "127.0.0.1", agent.port, 1, 1),
        )
        status, answer = agent.assign(agent.assignment(members=members))
        assert (status, answer["code"]) == (409, "master_port")


def test_rank_death_is_streamed_at_once(tmp_path: Path) -> None:
    """The exit is on the stream with the time it happened, before any snapshot is due."""
    command = fake_command("--steps", "9999", "--exit-at", "20")
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=1)
        exited = agent.wait_event(events.RANK_EXITED)
        last = agent.events()[-1]
        assert last.kind == events.ATTEMPT_ENDED
        assert last.at_ms - exited.at_ms < 1000


def test_zipapp(tmp_path: Path) -> None:
    """The agent as one file, away from the package: a whole attempt, and the same bytes when built again."""
    bundles = [tmp_path / name for name in ("agent.pyz", "again.pyz")]
    for bundle in bundles:
        subprocess.run([sys.executable, "-m", "resumable_training.agent.bundle", str(bundle)], check=True)
    assert bundles[0].read_bytes() == bundles[1].read_bytes()
    launcher = (sys.executable, "-I", "-S", str(bundles[0]))
    with AgentProcess(tmp_path / "agent", fake_command("--steps", "3"), launcher=launcher) as agent:
        agent.begin(ranks=2)
        assert agent.ended() == events.SUCCEEDED
    text = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(bundles[0])], capture_output=True, text=True, check=True
    ).stdout
    assert "contract" in text
    assert "checkpoint" not in text


def test_bundle_usage() -> None:
    """Called wrongly, it says how."""
    done = subprocess.run(
        [sys.executable, "-m", "resumable_training.agent.bundle"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage" in done.stderr
