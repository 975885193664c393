"""The Kubernetes implementation of the cluster port: reads from the cache, writes through the API.

The process fills the cache from its watches (``cache.apply``) and calls ``relist`` once before work and then
now and then. What a write is answered goes into the cache, too, so that the next pass sees it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from resumable_operator import manifests
from resumable_operator.clock import Clock
from resumable_operator.cluster import kube_check
from resumable_operator.cluster.kube_api import CLAIMS, JOBS, PODS, SECRETS, KubeApi
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.kube_compare import Comparison, delete_pod
from resumable_operator.cluster.kube_entries import JobEntry, Raw, store_of
from resumable_operator.cluster.kube_errors import AlreadyExists, NotFound
from resumable_operator.cluster.kube_events import Events
from resumable_operator.cluster.kube_invalid import with_invalid
from resumable_operator.cluster.kube_pods import is_watched, job_uid
from resumable_operator.cluster.port import Change
from resumable_operator.decide.observation import Job, Node, Problem, Worker
from resumable_operator.errors import (
    ClusterRefused,
    ConflictError,
    RetryableError,
    SpecError,
)
from resumable_operator.model import JobStatus
from resumable_operator.stored import to_stored
from resumable_training.contract import signing
from resumable_training.contract.labels import (
    GROUP,
    KIND,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    VERSION,
    worker_name,
)

logger = logging.getLogger(__name__)

KEY_SECONDS = 30.0  # a job's Secret that was there is believed to be there this long


class Keys(Protocol):
    """The keys of jobs' agents (``keys.KeyRing``)."""

    def key(self, job_uid: str, key_id: str) -> bytes:
        """32 bytes; always the same for the same arguments and master. For an id whose master is lost: any
        bytes (the agent will refuse them, and counts as silent). Empty id: the current one."""
        ...

    def current_key_id(self, job_uid: str) -> str:
        """Of the key that new workers get."""
        ...

    def fingerprints(self) -> tuple[str, ...]:
        """Names of the master keys in force, newest first, that tell nothing of them."""
        ...


@dataclass(frozen=True)
class KubernetesSettings:
    """``namespaces``: look only at these, and at no nodes; none: the whole cluster."""

    pods: manifests.PodSettings
    namespaces: tuple[str, ...] = ()


class KubernetesCluster:
    """Implements ``port.Cluster``.

    Attributes:
        node_signals: whether nodes are looked at.
        relisted_at: end of the last successful ``relist``, on the clock.
    """

    def __init__(
        self, api: KubeApi, cache: KubeCache, keys: Keys, clock: Clock, settings: KubernetesSettings
    ) -> None:
        self.cache = cache
        self.node_signals = not settings.namespaces
        self.relisted_at: float | None = None
        self._api = api
        self._keys = keys
        self._clock = clock
        self._settings = settings
        self._events = Events(api, clock)
        self._comparison = Comparison(api, cache, settings.namespaces, nodes=self.node_signals)
        self._made_keys: dict[tuple[str, str], float] = {}  # (uid of job, id of key) -> when it was there
        self._key_locks: dict[tuple[str, str], asyncio.Lock] = {}

    # ---- comparing with the API server ---------------------------------------------------------------

    async def relist(self) -> float:
        """Compare the cache with full lists; delete pods whose job is gone.

        Returns the seconds that comparing took, without the pauses that it made for others.

        Raises:
            NotFound: the API has no such kind of jobs.
            RetryableError, ClusterRefused: try again.
            FatalError: begin anew.
        """
        taken = await self._comparison.run()
        self._forget_keys()
        await self._restore_keys()
        self.relisted_at = self._clock.now()
        return taken

    def _forget_keys(self) -> None:
        for known in [known for known in self._key_locks if not self.cache.has_job(known[0])]:
            del self._key_locks[known]
            self._made_keys.pop(known, None)

    async def _restore_keys(self) -> None:
        """A Secret that somebody deleted is missed by pods that can't start without it."""
        late = self._clock.now() - KEY_SECONDS
        wanted = {
            (entry.job_key, entry.worker.key_id)
            for entry in self.cache.starting_pods()
            if entry.worker.created_at < late
        }
        for job_key, key_id in sorted(wanted):
            try:
                job = await self.job(job_key)
                if job is not None and signing.key_id(self._keys.key(job.uid, key_id)) == key_id:
                    self._made_keys.pop((job.uid, key_id), None)
                    await self._ensure_key(job, key_id)
            except (SpecError, RetryableError, ClusterRefused) as error:
                logger.warning("%s: its key could not be made again: %s", job_key, error)

    # ---- jobs ----------------------------------------------------------------------------------------

    async def jobs(self) -> list[Job]:
        """Those that can be read; ``watch`` tells of the others."""
        found = []
        for entry in self.cache.job_entries():
            try:
                found.append(entry.read())
            except SpecError:
                continue
        return found

    async def job(self, key: str) -> Job | None:
        entry = self.cache.job_entry(key)
        return None if entry is None else entry.read()

    async def write_status(self, job: Job, status: JobStatus) -> Job:
        stored = await self._put_status(_metadata(job), to_stored(status), job.generation)
        return stored.read()

    async def _put_status(self, meta: Raw, status: Raw, generation: int) -> JobEntry:
        """Replace the whole status: merging would keep entries of maps that are no more.

        Raises:
            ConflictError
        """
        key = f"{meta['namespace']}/{meta['name']}"
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": meta, "status": status}
        try:
            answer = await self._api.replace(JOBS, body, meta["namespace"], subresource="status")
        except NotFound as error:
            self._drop_job(key, meta["uid"])
            raise ConflictError(f"{key}: it was deleted") from error
        except ConflictError:
            await self._refresh_job(key, meta)
            raise
        self.cache.apply("job", None, answer, quiet=answer["metadata"].get("generation") == generation)
        entry = self.cache.job_entry(key)
        if entry is None or entry.uid != meta["uid"]:
            raise ConflictError(f"{key}: it was deleted")
        return entry

    async def _refresh_job(self, key: str, meta: Raw) -> None:
        """Somebody wrote first, and perhaps no watch has told."""
        found = await self._api.get(JOBS, meta["name"], meta["namespace"])
        if found is not None:
            self.cache.apply("job", None, found)
        else:
            self._drop_job(key, meta["uid"])

    def _drop_job(self, key: str, uid: str) -> None:
        entry = self.cache.job_entry(key)
        if entry is not None and entry.uid == uid:
            self.cache.drop("job", key, uid)

    async def delete_job(self, job: Job) -> None:
        await self._api.delete(JOBS, job.name, job.namespace, uid=job.uid, propagation="Background")

    async def report_invalid(self, key: str, error: SpecError) -> None:
        entry = self.cache.job_entry(key)
        if entry is None:
            return
        status = with_invalid(entry.raw, error, self._clock.now())
        if status is None:
            return
        meta = entry.raw["metadata"]
        named = {name: meta[name] for name in ("namespace", "name", "uid", "resourceVersion")}
        await self._put_status(named, status, int(meta.get("generation") or 0))
        await self._events.tell(meta, "Warning", "SpecInvalid", str(error))

    async def emit_event(
        self, job: Job, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        await self._events.tell(_metadata(job), kind, reason, message)

    def operators(self) -> tuple[str, ...]:
        return self._keys.fingerprints()

    def agent_key(self, job: Job, worker: Worker) -> bytes:
        return self._keys.key(job.uid, worker.key_id)

    # ---- checks --------------------------------------------------------------------------------------

    async def check(self, job: Job) -> tuple[Problem, ...]:
        problems = kube_check.name_problems(job)
        if problems:
            return tuple(problems)
        found = await asyncio.gather(
            self._check_template(job), self._check_claim(job), self._check_secret(job)
        )
        return (*(problem for row in found for problem in row), *self._check_store(job))

    async def _check_template(self, job: Job) -> list[Problem]:
        """A dry run of a pod; incarnation 0 is never used."""
        key_id = self._keys.current_key_id(job.uid)
        try:
            pod = manifests.pod(job, worker_name(job.name, 0, 0), 0, 0, key_id, self._settings.pods)
        except SpecError as error:
            return [kube_check.spec_problem(error)]
        try:
            await self._api.create(PODS, pod, job.namespace, dry_run=True)
        except AlreadyExists:
            return []
        except ClusterRefused as error:
            if kube_check.is_young_namespace(job, error):
                raise RetryableError(str(error)) from error
            return kube_check.template_problems(job, pod, error)
        return []

    async def _check_claim(self, job: Job) -> list[Problem]:
        storage = job.spec.checkpoint.persistent_volume_claim
        if storage is None:
            return []
        try:
            claim = await self._api.get(CLAIMS, storage.claim_name, job.namespace)
        except ClusterRefused as error:
            return [Problem(kube_check.CLAIM, error.reason, f"can't be looked at: {error}", fatal=False)]
        one_node = kube_check.is_on_one_node(job.spec.template) or self.cache.node_count == 1
        return kube_check.claim_problems(job, claim, one_node=one_node)

    async def _check_secret(self, job: Job) -> list[Problem]:
        """Only whether it is there, and only where that may be asked: most operators may not."""
        s3 = job.spec.checkpoint.s3
        if s3 is None or s3.secret_name is None:
            return []
        try:
            found = await self._api.get(SECRETS, s3.secret_name, job.namespace, metadata_only=True)
        except ClusterRefused:
            return []
        return kube_check.secret_problems(job, found is not None)

    def _check_store(self, job: Job) -> list[Problem]:
        own = self.cache.job_entry(job.key)
        store = store_of(own.raw) if own is not None else ()
        if own is None or not store:
            return []
        return kube_check.shared_store_problems(job, own, self.cache.sharers(store))

    # ---- workers and nodes ---------------------------------------------------------------------------

    async def workers(self, job: Job) -> list[Worker]:
        return self.cache.workers(job)

    async def nodes(self, job: Job) -> dict[str, Node]:
        """Those of its pods, and of members whose pod is gone. A node that was never seen is left out until a
        list has shown that there is none."""
        if not self.node_signals:
            return {}
        names = {worker.node for worker in self.cache.workers(job) if worker.node}
        names |= {member.node for member in job.status.attempt.members if member.node}
        found = ((name, self.cache.node(name)) for name in sorted(names))
        return {name: node for name, node in found if node is not None}

    async def capacity(self, job: Job) -> int | None:
        return None  # the scheduler alone knows

    async def create_worker(
        self, job: Job, name: str, place: int, incarnation: int, avoid: tuple[str, ...] = ()
    ) -> None:
        known = self.cache.pod(job.namespace, name)
        if known is not None and known.job_uid == job.uid:
            return
        key_id = self._keys.current_key_id(job.uid)
        was_made = (job.uid, key_id) in self._made_keys
        if not was_made:
            await self._ensure_key(job, key_id)
        await self._create_pod(
            job, manifests.pod(job, name, place, incarnation, key_id, self._settings.pods, avoid)
        )
        if was_made:  # somebody may have deleted it since; a pod that lacks it waits
            await self._ensure_key(job, key_id)

    async def _create_pod(self, job: Job, pod: Raw) -> None:
        name = pod["metadata"]["name"]
        try:
            answer = await self._api.create(PODS, pod, job.namespace)
        except AlreadyExists:
            answer = await self._own_pod(job, name)
        except NotFound as error:
            raise ClusterRefused("NamespaceNotFound", str(error)) from error
        self.cache.apply("pod", None, answer)

    async def _own_pod(self, job: Job, name: str) -> Raw:
        """The pod of that name, which is there already.

        Raises:
            ClusterRefused: it is somebody else's. RetryableError: it is about to go.
        """
        pod = await self._api.get(PODS, name, job.namespace)
        if pod is None:
            raise RetryableError(f"pod {job.namespace}/{name} has just gone; creating it again")
        owner = job_uid(pod)
        if owner == job.uid and not is_watched(pod):
            raise ClusterRefused(
                "LabelRemoved",
                f"pod {job.namespace}/{name} has lost its label {LABEL_MANAGED_BY}={MANAGED_BY}; put it "
                "back, or delete the pod",
            )
        if owner == job.uid:
            return pod
        if pod["metadata"].get("deletionTimestamp") or (owner and not self.cache.has_job(owner)):
            raise RetryableError(f"pod {job.namespace}/{name} of an earlier job has not gone yet")
        raise ClusterRefused(
            "NameTaken",
            f"pod {job.namespace}/{name} is not of this job; delete it, or give the job another name",
        )

    async def _ensure_key(self, job: Job, key_id: str) -> None:
        """The job's Secret is there, as far as may be known: it may be created, not read."""
        known = (job.uid, key_id)
        async with self._key_locks.setdefault(known, asyncio.Lock()):
            made_at = self._made_keys.get(known)
            if made_at is not None and self._clock.now() < made_at + KEY_SECONDS:
                return
            secret = manifests.key_secret(job, key_id, self._keys.key(job.uid, key_id))
            try:
                await self._api.create(SECRETS, secret, job.namespace)
            except AlreadyExists:
                logger.debug("the key of %s is there", job.key)
            self._made_keys[known] = self._clock.now()

    async def delete_worker(self, job: Job, name: str, grace_seconds: float) -> None:
        entry = self.cache.pod(job.namespace, name)
        if entry is None and not self.cache.is_tombstone((job.namespace, job.uid), name):
            pod = await self._api.get(PODS, name, job.namespace)
            if pod is not None:
                self.cache.apply("pod", None, pod)
            entry = self.cache.pod(job.namespace, name)
        if entry is None or entry.job_uid != job.uid:
            return
        grace = math.ceil(grace_seconds)
        if entry.deletion_grace_seconds is None or grace < entry.deletion_grace_seconds:
            await delete_pod(self._api, self.cache, entry, grace)

    # ---- watching ------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        unsubscribe = self.cache.subscribe(queue.put_nowait)
        try:
            for change in _known_jobs(self.cache.job_entries()):
                yield change
            while True:
                yield await queue.get()
        finally:
            unsubscribe()


def _metadata(job: Job) -> Raw:
    return {
        "namespace": job.namespace,
        "name": job.name,
        "uid": job.uid,
        "resourceVersion": job.resource_version,
    }


def _known_jobs(entries: Iterable[JobEntry]) -> Iterable[Change]:
    """What was read before anybody watched."""
    return [Change(entry.key, "relist") for entry in entries]
