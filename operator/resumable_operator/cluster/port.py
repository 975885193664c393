"""All that observing and acting need from the world. Two implementations: Kubernetes and local.

Implementations map foreign errors to ``resumable_operator.errors``. One conformance suite
(``tests/operator/cluster/conformance.py``) holds them equal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from resumable_operator.decide.observation import Job, Node, Problem, Worker
from resumable_operator.errors import SpecError
from resumable_operator.model import JobStatus


@dataclass(frozen=True)
class Change:
    """Something about this job changed; look again. ``worker`` carries what only the watch event shows."""

    job_key: str
    what: Literal["job", "worker", "node", "relist"]
    worker: Worker | None = None
    gone: bool = False


class Cluster(Protocol):
    """One world that holds jobs, workers and nodes. All methods may raise RetryableError."""

    async def jobs(self) -> list[Job]:
        """All jobs, as stored now."""
        ...

    async def job(self, key: str) -> Job | None:
        """One job as stored now; None when it is gone.

        Raises:
            SpecError: it cannot be read; tell with ``report_invalid``.
        """
        ...

    async def report_invalid(self, key: str, error: SpecError) -> None:
        """Say on the job itself (condition ``Valid``) that its spec cannot be read. Once for each spec."""
        ...

    async def check(self, job: Job) -> tuple[Problem, ...]:
        """What only the cluster can tell about the spec: refused template, missing or unshared volume, ..."""
        ...

    async def workers(self, job: Job) -> list[Worker]:
        """All workers that carry this job's uid, also ended and terminating ones until they are deleted."""
        ...

    async def nodes(self, job: Job) -> dict[str, Node]:
        """Nodes that the job's workers are on, by name; one that is gone has ``exists=False``. Nodes that may
        not be looked at are left out."""
        ...

    async def capacity(self, job: Job) -> int | None:
        """How many workers of this job could exist now, if that is known."""
        ...

    async def create_worker(
        self, job: Job, name: str, place: int, incarnation: int, avoid: tuple[str, ...] = ()
    ) -> None:
        """Create; success when a worker of that name and job uid is there already.

        Args:
            avoid: nodes to place it on only if there is no other.

        Raises:
            ClusterRefused: it won't be, until somebody changes something.
        """
        ...

    async def delete_worker(self, job: Job, name: str, grace_seconds: float) -> None:
        """Begin deletion; success when it is not there. 0 seconds: kill and remove at once."""
        ...

    async def write_status(self, job: Job, status: JobStatus) -> Job:
        """Store status if the job is still at ``job.resource_version``; returns the job as stored.

        Raises:
            ConflictError: it is not; observe again.
        """
        ...

    async def emit_event(
        self, job: Job, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Tell people. Never raises: an event that can't be told must not stop a recovery."""
        ...

    async def delete_job(self, job: Job) -> None:
        """The job's time to live after its end is over; success when it is not there."""
        ...

    def operators(self) -> tuple[str, ...]:
        """Names of this operator, newest first, by which it knows its jobs from another's; none: there can be
        no other."""
        ...

    def agent_key(self, job: Job, worker: Worker) -> bytes:
        """The key that signs calls to the worker's agent."""
        ...

    def watch(self) -> AsyncIterator[Change]:
        """Changes from now on; may miss some (callers relist) and may repeat some."""
        ...
