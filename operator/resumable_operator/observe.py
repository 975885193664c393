"""Gather what one decision needs to see: the job as stored, its workers and nodes, its agents' words."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from resumable_operator.agent_client import Endpoint
from resumable_operator.cluster.port import Cluster
from resumable_operator.decide.observation import (
    Agent,
    Job,
    Observation,
    Problem,
    Refusal,
    TimedEvent,
    Worker,
)
from resumable_operator.decide.validity import check_due
from resumable_operator.errors import ClusterRefused, RetryableError

logger = logging.getLogger(__name__)

CHECK_RETRY_SECONDS = 2.0


class Agents(Protocol):
    """What observing needs of ``agents.AgentPool``."""

    async def sync(self, job_key: str, endpoints: Iterable[Endpoint], cursors: dict[str, int]) -> None: ...

    def agents(self, job_key: str) -> dict[str, Agent]: ...

    def events(self, job_key: str, cursors: dict[str, int]) -> tuple[TimedEvent, ...]: ...


class SpecChecks:
    """Asks the cluster about a job's spec when that is due, and not in every pass while it can't answer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._failed_at: dict[str, float] = {}

    async def problems(self, job: Job, now: float) -> tuple[Problem, ...] | None:
        """What the cluster says now; None when it was not asked or could not say.

        Raises:
            FatalError
        """
        failed_at = self._failed_at.get(job.key)
        if not check_due(job, now) or (failed_at is not None and now < failed_at + CHECK_RETRY_SECONDS):
            return None
        try:
            problems = await self._cluster.check(job)
        except (RetryableError, ClusterRefused) as error:
            logger.warning("%s: its spec could not be checked: %s", job.key, error)
            self._failed_at[job.key] = now
            return None
        self._failed_at.pop(job.key, None)
        return problems

    def forget(self, job_key: str) -> None:
        self._failed_at.pop(job_key, None)


async def observe(
    cluster: Cluster,
    agents: Agents,
    job: Job,
    problems: tuple[Problem, ...] | None = None,
    refusal: Refusal | None = None,
) -> Observation:
    """Gather all that bears on ``job``.

    Args:
        problems, refusal: what the cluster said about it; see ``Observation``.

    Raises:
        RetryableError: the cluster could not be asked.
    """
    nodes, capacity = await cluster.nodes(job), await cluster.capacity(job)
    workers = await cluster.workers(job)  # last: none that came since may lose its stream
    found = (endpoint_of(cluster, job, worker) for worker in workers)
    await agents.sync(job.key, [endpoint for endpoint in found if endpoint], job.status.cursors)
    return Observation(
        job=job,
        workers=tuple(sorted(workers, key=lambda worker: (worker.place, worker.incarnation))),
        nodes=nodes,
        agents=agents.agents(job.key),
        events=agents.events(job.key, job.status.cursors),
        capacity=capacity,
        problems=problems,
        refusal=refusal,
        operator=next(iter(cluster.operators()), ""),
    )


def endpoint_of(cluster: Cluster, job: Job, worker: Worker) -> Endpoint | None:
    """Where its agent can be asked; also while it is being deleted: it reports how its attempt ended."""
    if worker.phase != "running" or not worker.address or not worker.agent_port:
        return None
    return Endpoint(worker.name, worker.address, worker.agent_port, cluster.agent_key(job, worker))
