"""A pool that asks fake agents, as the tests of both use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fake_agent import KEY, FakeAgent

from resumable_operator.agent_client import Endpoint
from resumable_operator.agents import AgentPool

JOB = "local/job"


def endpoint(agent: FakeAgent) -> Endpoint:
    return Endpoint(agent.worker, "127.0.0.1", agent.port, KEY)


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not check():
            await asyncio.sleep(0.005)


def kinds(pool: AgentPool, cursors: dict[str, int] | None = None) -> list[str]:
    return [event.event.kind for event in pool.events(JOB, cursors or {})]


def distrust(pool: AgentPool, worker: str = "w-0-1") -> str:
    known = pool.agents(JOB)[worker].distrust
    return known.kind if known else ""
