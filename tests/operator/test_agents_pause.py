"""A pause of the operator's own process is not taken for silence of the agents."""

from __future__ import annotations

import asyncio

import pytest
from fake_agent import KEY, FakeAgent

from resumable_operator import agents
from resumable_operator.agent_client import Endpoint
from resumable_operator.agents import AgentPool

JOB = "local/job"


class Wall:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


async def test_paused_operator_hears_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGSTOP and SIGCONT, before the first word is read, an agent counts as heard just now."""
    clock, monotonic = Wall(), agents.time.monotonic
    skipped = 0.0
    monkeypatch.setattr(agents.time, "monotonic", lambda: monotonic() + skipped)
    pool = AgentPool(clock)
    async with FakeAgent() as agent:
        await pool.sync(JOB, [Endpoint(agent.worker, "127.0.0.1", agent.port, KEY)], {})
        async with asyncio.timeout(10):
            while pool.agents(JOB)[agent.worker].last_heard is None:
                await asyncio.sleep(0.005)
        clock.time += 40.0
        assert pool.agents(JOB)[agent.worker].last_heard == 1000.0  # real silence is still seen
        skipped = 40.0
        assert pool.agents(JOB)[agent.worker].last_heard == clock.time
        await pool.close()
