"""What the cache keeps of one object. Pure; ``kube_cache`` is who makes and keeps them."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

from resumable_operator.cluster.kube_objects import job_of
from resumable_operator.cluster.kube_pods import deletion_grace_seconds, job_name, job_uid, worker_of
from resumable_operator.decide.observation import Job, Node, Worker
from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec

Raw = dict[str, Any]


@dataclass
class JobEntry:
    """A job as stored, read when asked for, its spec once for each generation."""

    key: str
    uid: str
    version: int
    raw: Raw  # metadata in part, spec, status
    spec: tuple[int, JobSpec] | None = None  # with its generation
    job: Job | SpecError | None = None

    @property
    def namespace(self) -> str:
        return str(self.raw["metadata"]["namespace"])

    def read(self) -> Job:
        """Raises: SpecError."""
        if self.job is None:
            generation = int(self.raw["metadata"].get("generation") or 0)
            known = self.spec[1] if self.spec and self.spec[0] == generation else None
            try:
                self.job = job_of(self.raw, known)
                self.spec = (generation, self.job.spec)
            except SpecError as error:
                self.job = error
        if isinstance(self.job, SpecError):
            raise self.job
        return self.job


@dataclass(frozen=True)
class PodEntry:
    uid: str
    version: int
    namespace: str
    job_uid: str
    job_key: str
    worker: Worker
    deletion_grace_seconds: float | None = None  # None: it is not being deleted

    @property
    def owner(self) -> tuple[str, str]:
        """Namespace and uid of its job."""
        return self.namespace, self.job_uid


@dataclass(frozen=True)
class NodeEntry:
    uid: str
    version: int
    node: Node
    noticed_at: float


def store_of(raw: Raw) -> tuple[str, ...]:
    """What two jobs must not both write to: namespace, claim and path, or bucket, prefix and endpoint.

    Empty: no store that can be shared. Of the raw object, so that an unreadable job counts, too.
    """
    spec = raw.get("spec")
    checkpoint = spec.get("checkpoint") if isinstance(spec, dict) else None
    if not isinstance(checkpoint, dict):
        return ()
    claim, s3 = checkpoint.get("persistentVolumeClaim"), checkpoint.get("s3")
    if isinstance(claim, dict) and claim.get("claimName"):
        path = posixpath.normpath(f"/{claim.get('path') or ''}").strip("/")
        return ("claim", raw["metadata"]["namespace"], str(claim["claimName"]), path)
    if isinstance(s3, dict) and s3.get("bucket"):
        prefix = str(s3.get("prefix") or "").strip("/")
        return ("s3", str(s3.get("endpoint") or ""), str(s3["bucket"]), prefix)
    return ()


def pod_entry(obj: Raw, uid: str, version: int) -> PodEntry | None:
    """None when the pod belongs to no job."""
    owner_uid, owner, worker = job_uid(obj), job_name(obj), worker_of(obj)
    if not owner_uid or not owner or worker is None:
        return None
    namespace = obj["metadata"]["namespace"]
    grace = deletion_grace_seconds(obj)
    return PodEntry(uid, version, namespace, owner_uid, f"{namespace}/{owner}", worker, grace)
