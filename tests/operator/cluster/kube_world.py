"""A ``KubernetesCluster`` on the bed's API server, with or without the operator's watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resumable_operator import handlers
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.kube_api import KubeApi
from resumable_operator.cluster.kube_cache import KubeCache
from resumable_operator.cluster.kubernetes import KubernetesCluster, KubernetesSettings
from resumable_operator.keys import KeyRing, Masters
from resumable_operator.manifests import PodSettings

Raw = dict[str, Any]

IMAGE = "bed/python"
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
    return {"spec": {"containers": [{"name": "worker", "image": IMAGE, "command": ["train"]}], **spec}}


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
