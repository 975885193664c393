"""Ranks that no process can be made for: the attempt ends, it does not wait for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_process import AgentProcess, script

from resumable_training.contract import events, exitcodes


@pytest.mark.parametrize("extra", [{"A": "x\0y"}, {"A=B": "c"}, {"": "c"}, {"A": "x" * 200_000}])
def test_environment_of_no_process(tmp_path: Path, extra: dict[str, str]) -> None:
    """A variable that the kernel refuses is the user's error, said as the end of a rank."""
    with AgentProcess(tmp_path, script("print('never')"), environment=extra) as agent:
        agent.begin(ranks=2)
        assert agent.ended() == events.FAILED
        (exit_,) = [event.data for event in agent.events() if event.kind == events.RANK_EXITED]
        assert exit_["code"] == exitcodes.USER_ERROR
        assert "could not start rank 0" in exit_["tail"][0]
        assert agent.state().ranks_alive == 0


def test_command_with_a_zero_byte(tmp_path: Path) -> None:
    """So is such an argument."""
    with AgentProcess(tmp_path, (*script("print('never')"), "a\0b")) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.FAILED


@pytest.mark.parametrize("command", ["/no/such/program", "no-such-program", "/etc/passwd"])
def test_a_program_that_cannot_be_run(tmp_path: Path, command: str) -> None:
    """A command that does not exist is the user's error at once: starting it again finds it no more."""
    with AgentProcess(tmp_path, (command, "train")) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.FAILED
        (exit_,) = [event.data for event in agent.events() if event.kind == events.RANK_EXITED]
        assert exit_["code"] == exitcodes.USER_ERROR
        assert command in exit_["tail"][-1]
