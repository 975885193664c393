"""The rank's end of its agent's socket."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_ranks import FakeAgent, eventually

from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.link import AgentLink


class Heard:
    def __init__(self) -> None:
        self.drains: list[str] = []
        self.settings: list[CheckpointConfig] = []


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with tempfile.TemporaryDirectory(prefix="rt-") as directory:
        agent = FakeAgent(Path(directory) / "socket")
        yield agent
        agent.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def link(agent: FakeAgent, heard: Heard) -> Iterator[AgentLink]:
    link = AgentLink(str(agent.path), 3, heard.drains.append, heard.settings.append)
    link.listen()
    yield link
    link.close()


def test_hello_comes_first(agent: FakeAgent, link: AgentLink) -> None:
    """The agent learns the rank, then what it reports."""
    link.send("warning", message="w")
    eventually(lambda: len(agent.messages) == 2)
    assert agent.messages[0]["kind"] == "hello"
    assert agent.messages[0]["rank"] == 3
    assert agent.messages[1] == {"kind": "warning", "message": "w"}


def test_requests_are_passed_on(agent: FakeAgent, heard: Heard, link: AgentLink) -> None:
    """Drain requests and settings reach their handlers; unknown kinds and fields are ignored."""
    agent.send(kind="news", text="of a later version")
    agent.send(kind="settings", checkpoint={"every_steps": 4, "later": 1})
    agent.send(kind="drain", reason="scale", seconds=5)
    eventually(lambda: heard.drains)
    assert heard.drains == ["scale"]
    assert heard.settings == [CheckpointConfig(every_steps=4)]


def test_nonsense_is_reported_and_survived(agent: FakeAgent, heard: Heard, link: AgentLink) -> None:
    """A message that can't be read becomes a warning; the next one is handled."""
    agent.send(kind="settings", checkpoint={"every_steps": "many"})
    agent.send(kind="drain", reason="after")
    eventually(lambda: heard.drains)
    eventually(lambda: agent.kinds("warning"))
    assert "every_steps" in agent.kinds("warning")[0]["message"]


def test_a_lost_agent_is_no_error(agent: FakeAgent, link: AgentLink) -> None:
    """Reports after the agent's end are dropped."""
    agent.close_rank()
    for _ in range(50):
        link.send("warning", message="x" * 10000)
    link.close()
    assert "rt-agent-link" not in {thread.name for thread in threading.enumerate()}


def test_no_socket_is_an_error(tmp_path: Path) -> None:
    """A rank that is told of an agent must find it."""
    with pytest.raises(OSError, match="No such file"):
        AgentLink(str(tmp_path / "none"), 0, lambda reason: None, lambda config: None)
