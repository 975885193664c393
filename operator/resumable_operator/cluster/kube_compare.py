"""Comparing the cache with full lists: what a watch did not tell, and pods whose job is gone.

Watches lose words: an object that vanished while one was down is never told about, and a slow one is ended by
the server without an error. So all is listed now and then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from resumable_operator.cluster.kube_api import JOBS, NODES, PODS, KubeApi, Page, Resource
from resumable_operator.cluster.kube_cache import Kind, KubeCache
from resumable_operator.cluster.kube_entries import PodEntry
from resumable_operator.cluster.kube_errors import Expired
from resumable_operator.cluster.kube_pods import is_removed
from resumable_operator.cluster.port import Change
from resumable_operator.errors import FatalError, ResumableError, RetryableError, SpecError
from resumable_training.contract.labels import LABEL_MANAGED_BY, MANAGED_BY

logger = logging.getLogger(__name__)

POD_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
TRIES = 3
DELETIONS_AT_ONCE = 16
SHARE = 1 / 20  # of the time that may go into comparing
RESTS = 3.0  # times what a part took, until the next one
LONGEST_REST_SECONDS = 0.2
LONGEST_PAUSE = 2.0  # times the usual one


class Comparison:
    """``run`` it once before work and then now and then.

    Args:
        namespaces: only these; none: the whole cluster.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: KubeCache,
        namespaces: tuple[str, ...],
        *,
        nodes: bool,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._cache = cache
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._nodes = nodes
        self._monotonic = monotonic
        self._sleep = sleep
        self._rested = 0.0

    async def run(self) -> float:
        """Returns the seconds that it took, without the pauses that it made for others.

        Raises: NotFound (no such kind of jobs), RetryableError, ClusterRefused, FatalError.
        """
        began, self._rested = self._monotonic(), 0.0
        for scope in self._scopes:
            await self._compare("pod", PODS, scope, POD_SELECTOR)
        for scope in self._scopes:  # after the pods: a pod's job is older than the pod
            await self._compare("job", JOBS, scope)
        if self._nodes:
            unknown = self._cache.unknown_nodes()  # before the list, which must have them if they exist
            await self._compare("node", NODES, None)
            for name in unknown:
                self._cache.mark_gone(name)
        self._cache.expire()
        await self._delete_orphans()
        self._point_at_unreadable()
        return self._monotonic() - began - self._rested

    async def _compare(self, kind: Kind, resource: Resource, scope: str | None, labels: str = "") -> None:
        for _ in range(TRIES):
            seen: set[str] = set()
            version = ""
            try:
                async for page in self._parts(kind, resource, scope, labels):
                    version = page.resource_version
                    seen.update(str(obj["metadata"]["uid"]) for obj in page.items)
            except Expired:
                continue
            first = self._cache.listed_version(kind, scope) == 0
            ghosts = self._cache.prune(kind, seen, version, scope)
            if ghosts and not first:
                logger.warning("of kind %s, %d had vanished without a word of the watch", kind, ghosts)
            return
        raise RetryableError(f"the list of {resource.plural} expired {TRIES} times under way")

    async def _parts(
        self, kind: Kind, resource: Resource, scope: str | None, labels: str
    ) -> AsyncIterator[Page]:
        """Part by part, each taken in: a list of all pods at once would be held several times over.

        After the first comparison nearly all is known, at its very version, which metadata tells; a part
        with anything new in it is asked for again in full. And there is no hurry then: between two parts
        others have their turn.
        """
        token, hurry = "", self._cache.listed_version(kind, scope) == 0
        while True:
            began, in_full = self._monotonic(), hurry
            page = await self._part(kind, resource, scope, labels, token, in_full)
            if not in_full and not all(self._cache.has(kind, obj) for obj in page.items):
                in_full = True
                page = await self._part(kind, resource, scope, labels, token, in_full)
            for obj in page.items if in_full else ():
                self._cache.apply(kind, None, obj)
            yield page
            token = page.token
            if not token:
                return
            if not hurry:
                await self._rest(self._monotonic() - began)

    async def _part(
        self, kind: Kind, resource: Resource, scope: str | None, labels: str, token: str, in_full: bool
    ) -> Page:
        page = await self._api.page(resource, scope, token, labels=labels, metadata_only=not in_full)
        self._refuse_the_past(kind, scope, page.resource_version)
        return page

    async def _rest(self, worked: float) -> None:
        """Each part keeps the loop and the API server busy for a while."""
        pause = min(LONGEST_REST_SECONDS, RESTS * worked)
        self._rested += pause
        await self._sleep(pause)

    def _refuse_the_past(self, kind: Kind, scope: str | None, version: str) -> None:
        """Versions never run backwards, unless the API server's store was restored from a backup."""
        if version.isdecimal() and int(version) < self._cache.listed_version(kind, scope):
            raise FatalError("the API server's history has gone back; all that is known here is void")

    async def _delete_orphans(self) -> None:
        """The garbage collector does this, unless somebody has cut the ties."""
        orphans = [entry for entry in self._cache.orphans() if entry.deletion_grace_seconds is None]
        gate = asyncio.Semaphore(DELETIONS_AT_ONCE)

        async def delete(entry: PodEntry) -> None:
            async with gate:
                try:
                    await self._delete_orphan(entry)
                except ResumableError as error:
                    logger.warning("orphan %s is not deleted: %s", entry.worker.name, error)

        await asyncio.gather(*(delete(entry) for entry in orphans))

    async def _delete_orphan(self, entry: PodEntry) -> None:
        namespace, _, name = entry.job_key.partition("/")
        found = await self._api.get(JOBS, name, namespace)
        if found is not None and found["metadata"]["uid"] == entry.job_uid:
            self._cache.apply("job", None, found)
            return
        logger.info("deleting %s/%s: its job is gone", namespace, entry.worker.name)
        await delete_pod(self._api, self._cache, entry, None)

    def _point_at_unreadable(self) -> None:
        """``KubernetesCluster.jobs`` can't list them, but somebody has to tell their owners."""
        for entry in self._cache.job_entries():
            try:
                entry.read()
            except SpecError:
                self._cache.tell(Change(entry.key, "relist"))


def pause_seconds(usual: float, taken: float) -> float:
    """Until the next comparison, when the last one took so long: a large cluster is compared less often,
    since the API server and every other part of this process have to wait meanwhile."""
    return min(LONGEST_PAUSE * usual, max(usual, taken / SHARE))


async def delete_pod(api: KubeApi, cache: KubeCache, entry: PodEntry, grace_seconds: int | None) -> None:
    """Begin the deletion of this very pod, with its own grace if None is given; the cache knows at once."""
    answer = await api.delete(
        PODS, entry.worker.name, entry.namespace, uid=entry.uid, grace_seconds=grace_seconds
    )
    if answer is None:
        known = cache.pod(entry.namespace, entry.worker.name)
        if known is not None and known.uid == entry.uid:
            cache.drop("pod", f"{entry.namespace}/{entry.worker.name}", entry.uid)
    elif answer.get("kind") == "Pod":
        cache.apply("pod", "DELETED" if is_removed(answer) else None, answer)
