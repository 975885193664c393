"""Plays the kubelets of the benchmark: every pod of a job runs at once, until it is struck or deleted.

There are no nodes and no scheduler: pods name a scheduler that does not exist, get their status written here,
and vanish when they are deleted, since the API server waits for nobody where there is no node. A pod that
starts costs one write of its status here. A real one is bound to its node, then its kubelet writes three to
five times, and Events beside that: the API server has less to do here than with real nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
from sim_agents import Assigned, Fleet, Noted, SimAgent

from resumable_operator.keys import SECRET_NAME, KeyRing, read_masters
from resumable_training.contract.labels import (
    ANNOTATION_KEY_ID,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)

Raw = dict[str, Any]

SCHEDULER = "none"  # of the simulated pods
AT_ONCE = 16  # status writes
STRATEGIC = "application/strategic-merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_JOB_UID}"

WATCH_AGAIN = (410, 429, 500, 504)  # a server that is behind, or has much to do
WATCH_PAUSE_SECONDS = 1.0


class KubeClient:
    """The few calls that are needed, as admin."""

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        context = ssl.create_default_context(cafile=str(ca_file))
        self._session = aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            headers={"Authorization": f"Bearer {token}"},
            read_bufsize=1 << 20,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=None),
        )

    async def close(self) -> None:
        await self._session.close()

    async def get(self, path: str) -> Raw:
        async with self._session.get(path) as answer:
            return await _object(answer)

    async def patch(self, path: str, body: Raw) -> Raw | None:
        """None: it is gone."""
        async with self._session.patch(
            path, data=json.dumps(body), headers={"Content-Type": STRATEGIC}
        ) as answer:
            return None if answer.status in (404, 409) else await _object(answer)

    async def watch(self, path: str, **query: str) -> AsyncIterator[Raw]:
        """Events, metadata alone; begins with an ADDED for what is there. Ends when the server wants."""
        target = f"{path}?{urlencode({**query, 'watch': 'true'})}"
        async with self._session.get(target, headers={"Accept": METADATA_ONLY}) as answer:
            async for line in answer.content:
                yield json.loads(line)


async def _object(answer: aiohttp.ClientResponse) -> Raw:
    if answer.status >= 400:
        raise RuntimeError(f"{answer.method} {answer.url}: {answer.status} {await answer.text()}")
    found: Raw = await answer.json()
    return found


class Pods:
    """All pods that run, each with its agent."""

    def __init__(
        self, api: KubeClient, fleet: Fleet, operator_namespace: str, told: Assigned, noted: Noted
    ) -> None:
        self._api, self._fleet, self._told, self._noted = api, fleet, told, noted
        self._operator_namespace = operator_namespace
        self._addresses = _addresses()
        self._ring: KeyRing | None = None
        self._keys: dict[str, bytes] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, tuple[SimAgent, str, str]] = {}  # uid -> agent, address, path of the pod
        self._paths: dict[SimAgent, tuple[str, str]] = {}  # path and uid

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            async for event in self._api.watch("/api/v1/pods", labelSelector=SELECTOR):
                if event["type"] == "ERROR":
                    if event["object"].get("code") not in WATCH_AGAIN:
                        raise RuntimeError(f"the watch of pods: {event['object']}")
                    await asyncio.sleep(WATCH_PAUSE_SECONDS)
                    break
                await self._see(event["type"], event["object"]["metadata"])

    async def _see(self, kind: str, meta: Raw) -> None:
        uid = meta["uid"]
        if kind == "DELETED":
            agent, address, _ = self._running.pop(uid, (None, "", ""))
            if agent is not None:
                agent.die()
                self._fleet.agents.pop(address, None)
                self._paths.pop(agent, None)
        elif uid not in self._running and not meta.get("deletionTimestamp"):
            await self._start(meta)

    async def _start(self, meta: Raw) -> None:
        labels, uid = meta["labels"], meta["uid"]
        key = await self._key(labels[LABEL_JOB_UID], meta["annotations"][ANNOTATION_KEY_ID])
        job = f"{meta['namespace']}/{labels[LABEL_JOB]}"
        agent, address = SimAgent(meta["name"], job, key, self._told, self._noted), next(self._addresses)
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        self._fleet.agents[address] = agent
        self._running[uid] = agent, address, path
        self._paths[agent] = path, uid
        self._noted(agent, "created")
        task = asyncio.create_task(self._begin(agent, path, uid, address))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        task.result()

    async def _begin(self, agent: SimAgent, path: str, uid: str, address: str) -> None:
        async with self._gate:
            await self._api.patch(path, {"metadata": {"uid": uid}, "status": running_status(address)})
        self._noted(agent, "runs")

    async def _key(self, job_uid: str, key_id: str) -> bytes:
        if self._ring is None:
            secret = f"/api/v1/namespaces/{self._operator_namespace}/secrets/{SECRET_NAME}"
            self._ring = KeyRing(read_masters(await self._api.get(secret)))
        if job_uid not in self._keys:
            self._keys[job_uid] = self._ring.key(job_uid, key_id)
        return self._keys[job_uid]

    async def strike(self, agent: SimAgent) -> tuple[float, float]:
        """Its processes die and its kubelet says so; when it began to, and when that was acknowledged."""
        path, uid = self._paths[agent]
        agent.die()
        began = time.monotonic()
        await self._api.patch(path, {"metadata": {"uid": uid}, "status": failed_status()})
        return began, time.monotonic()

    def agents(self) -> list[SimAgent]:
        return list(self._paths)


def _addresses() -> Iterator[str]:
    for number in itertools.count(1):
        yield f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


# ---- what kubelets write -----------------------------------------------------------------------------


def running_status(address: str) -> Raw:
    at = _time()
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": "127.0.0.1",
        "startTime": at,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": at}
            for kind in (
                "PodScheduled",
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
            )
        ],
        "initContainerStatuses": [
            _container("resumable-agent", {"terminated": _terminated("Completed", 0, at)}, ready=True)
        ],
        "containerStatuses": [_container("worker", {"running": {"startedAt": at}}, ready=True)],
    }


def failed_status() -> Raw:
    at = _time()
    return {
        "phase": "Failed",
        "conditions": [
            {"type": kind, "status": "False", "reason": "PodFailed", "lastTransitionTime": at}
            for kind in ("Ready", "ContainersReady")
        ],
        "containerStatuses": [
            _container("worker", {"terminated": _terminated("Error", 137, at)}, ready=False)
        ],
    }


def _container(name: str, state: Raw, *, ready: bool) -> Raw:
    return {
        "name": name,
        "state": state,
        "ready": ready,
        "restartCount": 0,
        "image": "registry.example/train:1",
        "imageID": "registry.example/train@sha256:" + "0" * 64,
        "containerID": "containerd://" + "0" * 64,
    }


def _terminated(reason: str, code: int, at: str) -> Raw:
    return {"exitCode": code, "reason": reason, "startedAt": at, "finishedAt": at}


def _time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
