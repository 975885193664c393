"""Gather what one decision needs to see: the job as stored, its workers and nodes, its agents' words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from resumable_operator.agent_client import Endpoint
from resumable_operator.cluster.port import Cluster
from resumable_operator.decide.observation import Agent, Job, Observation, TimedEvent, Worker


class Agents(Protocol):
    """What observing needs of ``agents.AgentPool``."""

    async def sync(self, job_key: str, endpoints: Iterable[Endpoint], cursors: dict[str, int]) -> None: ...

    def agents(self, job_key: str) -> dict[str, Agent]: ...

    def events(self, job_key: str, cursors: dict[str, int]) -> tuple[TimedEvent, ...]: ...


async def observe(cluster: Cluster, agents: Agents, job_key: str) -> Observation | None:
    """One job and all that bears on it; None when the job is gone.

    Raises:
        RetryableError: the cluster could not be asked.
    """
    job = await cluster.job(job_key)
    if job is None:
        return None
    workers, nodes, capacity = await asyncio.gather(
        cluster.workers(job), cluster.nodes(job), cluster.capacity(job)
    )
    await agents.sync(job_key, _endpoints(cluster, job, workers), job.status.cursors)
    return Observation(
        job=job,
        workers=tuple(sorted(workers, key=lambda worker: (worker.place, worker.incarnation))),
        nodes=nodes,
        agents=agents.agents(job_key),
        events=agents.events(job_key, job.status.cursors),
        capacity=capacity,
    )


def _endpoints(cluster: Cluster, job: Job, workers: Iterable[Worker]) -> list[Endpoint]:
    """Workers whose agent can be asked. Those being deleted too: they report how their attempt ended."""
    return [
        Endpoint(worker.name, worker.address, worker.agent_port, cluster.agent_key(job, worker))
        for worker in workers
        if worker.phase == "running" and worker.address and worker.agent_port
    ]
