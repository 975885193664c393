"""Events for people. What is told again is counted, not listed again: the name follows from what is said."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from resumable_operator.clock import Clock
from resumable_operator.cluster.kube_api import EVENTS, KubeApi
from resumable_operator.cluster.kube_errors import AlreadyExists, NotFound
from resumable_operator.errors import ResumableError
from resumable_training.contract.labels import GROUP, KIND, VERSION

logger = logging.getLogger(__name__)

Raw = dict[str, Any]

COMPONENT = "resumable-operator"
LONGEST_MESSAGE = 1024  # of the API server
LONGEST_REASON = 128
MOST_REMEMBERED = 4_000
BURST = 50  # events of one job; more only as time passes: what an agent reports must not flood the API server
REFILL_SECONDS = 5.0  # until there is room for one more


class Events:
    """Tells events about jobs; never raises."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()  # by namespace and name
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # uid of job -> events, as of when

    async def tell(
        self, job: Mapping[str, Any], kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """``job``: the metadata of the job that it is about."""
        if not self._may_tell(job["uid"]):
            logger.warning("too many events of %s/%s; not told: %s", job["namespace"], job["name"], reason)
            return
        event = event_of(job, kind, reason, message, self._clock.now())
        known = (job["namespace"], event["metadata"]["name"])
        try:
            count = await self._record(known, event)
        except ResumableError as error:
            logger.warning("event %s of %s/%s is not told: %s", reason, job["namespace"], job["name"], error)
            return
        self._counts[known] = count
        self._counts.move_to_end(known)
        if len(self._counts) > MOST_REMEMBERED:
            self._counts.popitem(last=False)

    def _may_tell(self, uid: str) -> bool:
        """A bucket of ``BURST`` for each job, which empties slowly."""
        now = self._clock.now()
        spent, since = self._spent.get(uid, (0.0, now))
        spent = max(0.0, spent - (now - since) / REFILL_SECONDS)
        if spent > BURST - 1:
            return False
        self._spent[uid] = spent + 1, now
        self._spent.move_to_end(uid)
        if len(self._spent) > MOST_REMEMBERED:
            self._spent.popitem(last=False)
        return True

    async def _record(self, known: tuple[str, str], event: Raw) -> int:
        """Returns how often it has been told, with this time."""
        if known in self._counts:
            try:
                return await self._count(known, event, self._counts[known] + 1)
            except NotFound:  # events live for an hour
                del self._counts[known]
        try:
            await self._api.create(EVENTS, event, known[0])
        except AlreadyExists:
            stored = await self._api.patch(
                EVENTS, known[1], {"lastTimestamp": event["lastTimestamp"]}, known[0]
            )
            return await self._count(known, event, int(stored.get("count") or 1) + 1)
        return 1

    async def _count(self, known: tuple[str, str], event: Raw, count: int) -> int:
        change = {"count": count, "lastTimestamp": event["lastTimestamp"]}
        await self._api.patch(EVENTS, known[1], change, known[0])
        return count


def event_of(job: Mapping[str, Any], kind: str, reason: str, message: str, now: float) -> Raw:
    """The Event object. The same job, reason and message give the same name."""
    said = message.encode(errors="replace").decode().strip() or reason
    if len(said) > LONGEST_MESSAGE:
        said = said[: LONGEST_MESSAGE - 3] + "..."
    fingerprint = hashlib.sha256("\0".join((job["uid"], kind, reason, said)).encode()).hexdigest()[:16]
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job['name'][:200]}.{fingerprint}", "namespace": job["namespace"]},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "namespace": job["namespace"],
            "name": job["name"],
            "uid": job["uid"],
        },
        "type": kind,
        "reason": reason[:LONGEST_REASON],
        "message": said,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
