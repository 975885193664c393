"""Fixtures: a pool, and an agent to be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_agent import FakeAgent

from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    async with FakeAgent() as agent:
        yield agent


@pytest.fixture
async def pool() -> AsyncIterator[AgentPool]:
    pool = AgentPool(SystemClock())
    yield pool
    await pool.close()
