"""Agents that speak another version of the contract than the operator does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from fake_agent import KEY, FakeAgent

from resumable_operator import agent_link
from resumable_operator.agent_client import Endpoint
from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_training.contract.assignment import Assignment, Request
from resumable_training.contract.codec import from_plain, to_plain
from resumable_training.contract.events import AgentState

JOB = "local/job"
OURS, SPOKEN = 3, (3, 2)


@pytest.mark.parametrize(("theirs", "expected"), [(3, 3), (2, 2), (1, 3), (4, 3)])
async def test_old_agents_are_spoken_to_in_their_version(
    monkeypatch: pytest.MonkeyPatch, theirs: int, expected: int
) -> None:
    """The version before ours is spoken with an agent that has it; ours with all others."""
    monkeypatch.setattr(agent_link, "CONTRACT_VERSION", OURS)
    monkeypatch.setattr(agent_link, "SUPPORTED_CONTRACT_VERSIONS", SPOKEN)
    pool = AgentPool(SystemClock())
    async with FakeAgent() as agent:
        agent.state = replace(agent.state, contract_version=theirs)
        await pool.sync(JOB, [Endpoint(agent.worker, "127.0.0.1", agent.port, KEY)], {})
        async with asyncio.timeout(10):
            while pool.agents(JOB)[agent.worker].state is None:
                await asyncio.sleep(0.005)
        assert pool.agents(JOB)[agent.worker].outdated == (theirs < OURS)
        await pool.assign(JOB, Assignment(JOB, "uid", 1, "digest", agent.worker, (), "127.0.0.1", 1))
        await pool.request(JOB, agent.worker, Request("stop", attempt=1))
    await pool.close()
    assert [body["contract_version"] for _, _, body in agent.calls] == [expected, expected]


def test_a_held_port_is_news_to_nobody() -> None:
    """A state from before agents held ports tells of none; a reader from before passes over it."""
    state = AgentState("boot", "w-0-1", attempt=3, next_port=23456)
    plain = to_plain(state)

    @dataclass(frozen=True)
    class Before:
        boot_id: str
        worker: str
        attempt: int = 0

    assert from_plain(Before, plain) == Before("boot", "w-0-1", 3)
    del plain["next_port"]
    assert from_plain(AgentState, plain) == replace(state, next_port=0)
