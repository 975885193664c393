"""A ``KubernetesCluster`` on the bed's API server, with or without the operator's watches."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import eventually

from bed.api import path
from bed.control_plane import ControlPlane
from bed.fixtures import OWN
from bed.nodes import Nodes
from resumable_operator import handlers
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.kube_api import KubeApi
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.kubernetes import KubernetesCluster, KubernetesSettings
from resumable_operator.decide.observation import Job
from resumable_operator.keys import KeyRing, Masters
from resumable_operator.manifests import PodSettings
from resumable_operator.model import JobSpec

Raw = dict[str, Any]

JOBS = ("resumable.dev/v1alpha1", "resumabletrainingjobs")
NAME = "fake"
IMAGE = "bed/python"
NOBODY = "nobody"  # schedules; the bed's nodes may be up, and a pod on one is deleted with grace
RING = KeyRing(Masters((b"m" * 32,)))


@dataclass
class Kube:
    """A cluster and what it is made of."""

    api: KubeApi
    cache: KubeCache
    cluster: KubernetesCluster
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


@asynccontextmanager
async def kube(
    kubeconfig: Path,
    *,
    namespaces: tuple[str, ...] = (),
    watch: bool = False,
    pods: PodSettings | None = None,
) -> AsyncIterator[Kube]:
    """As the operator's process makes it: listed once, then (if wanted) watched."""
    clock = SystemClock()
    api = await KubeApi.login(kubeconfig)
    cache = KubeCache(clock)
    settings = KubernetesSettings(pods or PodSettings(IMAGE), namespaces)
    made = Kube(api, cache, KubernetesCluster(api, cache, RING, clock, settings))
    try:
        await made.cluster.relist()
        if watch:
            registry = handlers.registry(cache, api.configuration, nodes=made.cluster.node_signals)
            made.tasks.append(asyncio.create_task(handlers.watch(registry, namespaces)))
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        await api.close()


def plain_job(name: str = "train", **spec: Any) -> Raw:
    """A job as a user would write it."""
    return {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "workers": {"replicas": 2},
            "template": template(),
            "checkpoint": {"persistentVolumeClaim": {"claimName": "ckpt"}},
            **spec,
        },
    }


def template(**spec: Any) -> Raw:
    """Of pods that get a node only if a test binds them."""
    container = {"name": "worker", "image": IMAGE, "command": ["train"]}
    return {"spec": {"schedulerName": NOBODY, "containers": [container], **spec}}


def claim(name: str = "ckpt", *modes: str) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": list(modes or ("ReadWriteMany",)),
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


class KubernetesWorld:
    """A namespace of the bed and a node of its own as a world of the conformance suite."""

    def __init__(self, made: Kube, plane: ControlPlane, nodes: Nodes, namespace: str, node: str) -> None:
        self.cluster = made.cluster
        self._made, self._plane, self._nodes = made, plane, nodes
        self._namespace, self.node = namespace, node

    async def submit(self, spec: JobSpec) -> Job:
        """As a user would, who has to name an image and a claim."""
        plain = spec.plain()
        pods = plain["template"]["spec"]
        pods["nodeSelector"] = {OWN: self.node}
        pods["tolerations"] = [{"key": OWN, "operator": "Exists"}]
        for container in pods["containers"]:
            container.setdefault("image", IMAGE)
        plain["checkpoint"] = {"persistentVolumeClaim": {"claimName": "ckpt"}}
        body = {
            "apiVersion": JOBS[0],
            "kind": "ResumableTrainingJob",
            "metadata": {"name": NAME},
            "spec": plain,
        }
        api = self._plane.api
        await asyncio.to_thread(
            api.create, path("v1", "persistentvolumeclaims", self._namespace), claim("ckpt")
        )
        await asyncio.to_thread(api.create, path(*JOBS, self._namespace), body)
        found: Job = await eventually(self._job, "the job to be seen")
        return found

    async def kill_agent(self, worker: str) -> None:
        pids = await asyncio.to_thread(self._nodes.pids, self._namespace, worker, "worker")
        os.kill(pids[0], signal.SIGKILL)

    async def kill_rank(self, worker: str) -> None:
        pids = await asyncio.to_thread(self._nodes.pids, self._namespace, worker, "worker")
        [rank] = [pid for pid in pids if _is_rank(pid)]
        os.kill(rank, signal.SIGKILL)

    async def lose_machine(self, worker: str) -> None:
        await asyncio.to_thread(self._nodes.die, self.node)

    async def _job(self) -> Job | None:
        for task in self._made.tasks:
            if task.done():
                task.result()
        return await self.cluster.job(f"{self._namespace}/{NAME}")


def _is_rank(pid: int) -> bool:
    """It was started with RANK, and is not what such a process has started."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"\0RANK=" in b"\0" + environment
