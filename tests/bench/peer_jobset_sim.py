"""Plays the kubelets of JobSets' pods: every pod runs at once, until it is struck or deleted.

As ``sim_cluster`` does it for the operator: a process of its own, told what to do over a unix socket; no
nodes, no scheduler. A kubelet that is to stop a pod writes its end at once: nothing in it takes time to die.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim_cluster import LAG_SECONDS, Simulator, command_server, widen_file_limit
from sim_pods import (
    AT_ONCE,
    WATCH_AGAIN,
    WATCH_PAUSE_SECONDS,
    KubeClient,
    failed_status,
    running_status,
)

Raw = dict[str, Any]

LABEL_NAME = "jobset.sigs.k8s.io/jobset-name"
LABEL_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
PATIENCE_SECONDS = 120.0


@dataclass
class SimPod:
    """A pod as its kubelet knows it."""

    jobset: str
    attempt: int
    path: str  # of its status
    uid: str
    runs: bool = False
    ends: bool = False  # its end is written


@dataclass
class Recovery:
    """A struck JobSet until all pods of a later attempt run.

    Attributes:
        way: when it was first seen that a survivor was to stop, and that a pod of a later attempt was there.
    """

    attempt: int
    way: dict[str, float] = field(default_factory=dict)
    done: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def stages(self, failed: float, done: float) -> dict[str, float]:
        """Seconds that led to each of the moments."""
        found, before = {}, failed
        for what, at in [*sorted(self.way.items(), key=lambda entry: entry[1]), ("all run", done)]:
            found[what], before = max(0.0, at - before), max(at, before)
        return found


class JobSets:
    """What the commands act on: pods by uid."""

    def __init__(self, api: KubeClient, workers: int) -> None:
        self._api, self._workers = api, workers
        self._pods: dict[str, SimPod] = {}
        self._recoveries: dict[str, Recovery] = {}
        self._addresses = _addresses()
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(1)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            async for event in self._api.watch("/api/v1/pods", labelSelector=LABEL_NAME):
                if event["type"] == "ERROR":
                    if event["object"].get("code") not in WATCH_AGAIN:
                        raise RuntimeError(f"the watch of pods: {event['object']}")
                    await asyncio.sleep(WATCH_PAUSE_SECONDS)
                    break
                self._see(event["type"], event["object"]["metadata"])

    def _see(self, kind: str, meta: Raw) -> None:
        uid = meta["uid"]
        pod = self._pods.get(uid)
        if kind == "DELETED":
            self._pods.pop(uid, None)
            if pod is not None:
                self._noted(pod, stops=True)
        elif pod is None:
            self._begin(meta)
        elif meta.get("deletionTimestamp") and not pod.ends:
            self._noted(pod, stops=True)
            self._soon(self._end(pod))

    def _begin(self, meta: Raw) -> None:
        labels = meta["labels"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        pod = SimPod(labels[LABEL_NAME], int(labels[LABEL_ATTEMPT]), path, meta["uid"])
        self._pods[pod.uid] = pod
        self._noted(pod, stops=False)
        self._soon(self._start(pod))

    async def _start(self, pod: SimPod) -> None:
        async with self._gate:
            await self._write(pod, running_status(next(self._addresses)))
        pod.runs = not pod.ends
        recovery = self._recoveries.get(pod.jobset)
        if recovery and not recovery.done.done() and self._whole(pod.jobset, above=recovery.attempt):
            recovery.done.set_result(time.monotonic())

    async def _end(self, pod: SimPod) -> None:
        pod.runs, pod.ends = False, True
        async with self._gate:
            await self._write(pod, failed_status())

    async def _write(self, pod: SimPod, status: Raw) -> None:
        await self._api.patch(pod.path, {"metadata": {"uid": pod.uid}, "status": status})

    def _soon(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        task.result()

    def _noted(self, pod: SimPod, *, stops: bool) -> None:
        recovery = self._recoveries.get(pod.jobset)
        if recovery and (pod.attempt <= recovery.attempt) == stops:
            recovery.way.setdefault("stopped" if stops else "created", time.monotonic())

    def _whole(self, jobset: str, above: int = -1) -> list[SimPod]:
        """The pods of its one attempt above this one, if all of them run; else none."""
        pods = [pod for pod in self._pods.values() if pod.jobset == jobset and pod.attempt > above]
        running = [pod for pod in pods if pod.runs]
        one = {pod.attempt for pod in running}
        return running if len(one) == 1 and len(running) == self._workers else []

    # ---- commands --------------------------------------------------------------------------------

    async def facts(self) -> Raw:
        """JobSets of which all pods run, and pods that do."""
        names = {pod.jobset for pod in self._pods.values()}
        return {
            "whole": sum(bool(self._whole(name)) for name in names),
            "pods": sum(pod.runs for pod in self._pods.values()),
        }

    async def strike(self, jobs: list[str], rate: float) -> list[Raw]:
        """Fail one pod of each of these JobSets, so many a second on average; what came of each."""
        runs = []
        for job in jobs:
            runs.append(asyncio.create_task(self._strike(job)))
            await asyncio.sleep(self._random.expovariate(rate))
        return list(await asyncio.gather(*runs))

    async def _strike(self, jobset: str) -> Raw:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while jobset in self._recoveries or not self._whole(jobset):
                await asyncio.sleep(LAG_SECONDS)
        victim = self._random.choice(self._whole(jobset))
        recovery = self._recoveries[jobset] = Recovery(victim.attempt)
        await self._end(victim)
        failed = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                done = await recovery.done
        except TimeoutError:
            return {"seconds": None, "stages": {}}
        finally:
            del self._recoveries[jobset]
        return {"seconds": done - failed, "stages": recovery.stages(failed, done)}


def _addresses() -> Iterator[str]:
    """One for each pod; nobody connects to them."""
    for number in itertools.count(1):
        yield f"10.{128 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


async def serve(path: str, connection: Raw) -> None:
    widen_file_limit()
    async with AsyncExitStack() as stack:
        api = KubeClient(connection["url"], connection["token"], connection["ca_file"])
        stack.push_async_callback(api.close)
        jobsets = JobSets(api, int(connection["workers"]))
        await stack.enter_async_context(await command_server(path, jobsets))
        await jobsets.run()


class JobSetSimulator(Simulator):
    """The other end."""

    program = Path(__file__)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
