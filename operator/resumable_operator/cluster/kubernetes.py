"""The Kubernetes implementation of the cluster port: reads from the cache, writes through the API.

The process fills the cache from its watches (``cache.apply``) and calls ``relist`` once before work and then
every ``relist_seconds``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from resumable_operator.clock import Clock
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.port import Change
from resumable_operator.decide.observation import Job, Node, Problem, Worker
from resumable_operator.errors import SpecError
from resumable_operator.model import JobStatus


class Keys(Protocol):
    """The keys of jobs' agents (``keys.KeyRing``)."""

    def key(self, job_uid: str, key_id: str) -> bytes:
        """32 bytes; always the same for the same arguments and master. For an id whose master is lost: any
        bytes (the agent will refuse them, and counts as silent). Empty id: the current one."""
        ...

    def current_key_id(self, job_uid: str) -> str:
        """Of the key that new workers get."""
        ...


@dataclass(frozen=True)
class KubernetesSettings:
    """``pods``: ``manifests.PodSettings``. ``namespaces``: watch only these; empty: the whole cluster."""

    pods: Any
    namespaces: tuple[str, ...] = ()


class KubernetesCluster:
    """Implements ``port.Cluster``."""

    def __init__(
        self, api: Any, cache: KubeCache, keys: Keys, clock: Clock, settings: KubernetesSettings
    ) -> None:
        self.cache = cache
        self.node_signals = not settings.namespaces  # nodes may be looked at
        self.relisted_at: float | None = None  # end of the last successful relist, on ``clock``

    async def relist(self) -> None:
        """Compare the cache with full LISTs of jobs, pods and nodes; delete pods whose job is gone."""
        raise NotImplementedError

    async def jobs(self) -> list[Job]:
        raise NotImplementedError

    async def job(self, key: str) -> Job | None:
        raise NotImplementedError

    async def report_invalid(self, key: str, error: SpecError) -> None:
        raise NotImplementedError

    async def check(self, job: Job) -> tuple[Problem, ...]:
        raise NotImplementedError

    async def workers(self, job: Job) -> list[Worker]:
        raise NotImplementedError

    async def nodes(self, job: Job) -> dict[str, Node]:
        raise NotImplementedError

    async def capacity(self, job: Job) -> int | None:
        raise NotImplementedError

    async def create_worker(
        self, job: Job, name: str, place: int, incarnation: int, avoid: tuple[str, ...] = ()
    ) -> None:
        raise NotImplementedError

    async def delete_worker(self, job: Job, name: str, grace_seconds: float) -> None:
        raise NotImplementedError

    async def write_status(self, job: Job, status: JobStatus) -> Job:
        raise NotImplementedError

    async def emit_event(
        self, job: Job, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        raise NotImplementedError

    async def delete_job(self, job: Job) -> None:
        raise NotImplementedError

    def agent_key(self, job: Job, worker: Worker) -> bytes:
        raise NotImplementedError

    def watch(self) -> AsyncIterator[Change]:
        raise NotImplementedError
