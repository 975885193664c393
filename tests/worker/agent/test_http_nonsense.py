"""Bytes that are no request of ours: an answer or a closed connection, and no harm."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import socket
from pathlib import Path

import pytest
from agent_process import AgentProcess, fake_command, wait_until

from resumable_training.agent.server import MOST_STRANGERS
from resumable_training.contract import signing

LONG = fake_command("--steps", "100000", "--step-seconds", "0.02")
FEWEST_FILES = 1024  # that a process may open where nobody has raised it
NONSENSE = [
    b"\x00\xff\x16\x03\x01 garbage\r\n\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET /healthz HTTP/0.9\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n",
    b"PUT /v1/assignment HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    "PUT /v1/assignment HTTP/1.1\r\nContent-Length: ²\r\n\r\n".encode("latin-1"),
    b"PUT /v1/assignment HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"PUT /v1/assignment HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"PUT /v1/assignment HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    b"\r\n" * 1000 + b"\r\n\r\n",
]


@pytest.fixture
def agent(tmp_path: Path) -> AgentProcess:
    return AgentProcess(tmp_path, LONG)


def answer(agent: AgentProcess, data: bytes) -> bytes:
    """All that comes back until the agent closes the connection."""
    with socket.create_connection((agent.spec.address, agent.port), timeout=10) as connection:
        received = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:
            pass  # closed before it had read everything
    return received


@pytest.mark.parametrize("data", NONSENSE)
def test_nonsense_is_answered_as_a_client_error(agent: AgentProcess, data: bytes) -> None:
    """4xx or a closed connection, nothing in the agent's log, and the next request is served."""
    with agent:
        received = answer(agent, data)
        assert not received or received.startswith(b"HTTP/1.1 4"), received
        assert agent.call("GET", "/healthz", headers={})[0] == 200
        assert "Traceback" not in agent.own_log()


def test_signed_numbers_are_looked_at_too(agent: AgentProcess) -> None:
    """A counter or an ``after`` that ``int`` can't take is refused."""
    with agent:
        for number in ("²", "9" * 5000, "-1", ""):
            path = "/v1/state"
            headers = {**agent.headers("GET", path), signing.HEADER_COUNTER: number}
            raw = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            received = answer(agent, f"GET {path} HTTP/1.1\r\n{raw}\r\n".encode("latin-1"))
            assert received.startswith(b"HTTP/1.1 401"), received
        assert "Traceback" not in agent.own_log()


def test_pipelined_requests_are_answered_in_turn(agent: AgentProcess) -> None:
    """Several requests in one packet: as many answers."""
    with agent:
        received = answer(agent, b"GET /healthz HTTP/1.1\r\n\r\n" * 50)
        assert received.count(b"HTTP/1.1 200") == 50


def test_end_with_open_connections_is_quiet(agent: AgentProcess) -> None:
    """An agent that ends while somebody is connected logs no traceback."""
    with agent, socket.create_connection((agent.spec.address, agent.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert connection.recv(65536)
        agent.request("shutdown")
        assert agent.process is not None
        assert agent.process.wait(10) == 0
        assert "Traceback" not in agent.own_log()


def test_silent_connections_do_not_use_up_the_agent(agent: AgentProcess) -> None:
    """However many connect and say nothing, calls are answered, streams live, and ranks can be started.

    A burst is let in before the oldest are turned away; even so there are files left under the usual limit.
    """

    def open_files() -> int:
        assert agent.process is not None
        return len(os.listdir(f"/proc/{agent.process.pid}/fd"))

    with agent, contextlib.ExitStack() as stack:
        assert agent.process is not None
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (FEWEST_FILES, FEWEST_FILES))
        most = 0
        agent.begin(ranks=1)
        stream = agent.stream()
        next(stream)
        for _ in range(10 * MOST_STRANGERS):
            connection = socket.create_connection((agent.spec.address, agent.port), timeout=10)
            stack.enter_context(connection)
            connection.sendall(b"GET /healthz HT")
            most = max(most, open_files())
        assert most < FEWEST_FILES // 2 + MOST_STRANGERS
        wait_until(lambda: open_files() < 2 * MOST_STRANGERS, "the oldest to be turned away")
        agent.begin(attempt=2, ranks=1)
        wait_until(lambda: agent.state().attempt == 2 and agent.rank_pids(), "the ranks of attempt 2")
        assert any(event.attempt == 2 for event in itertools.islice(stream, 1000))
