"""All fake kubelets of one cluster, in one event loop.

One watch on the pods of all nodes, and a test's commands.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bed import containers, containers_root, image_files
from bed.kubelet import Kubelet
from bed.kubelet_addresses import Addresses
from bed.kubelet_api import ApiRefused, KubeletApi, Mirror, Object
from bed.kubelet_images import Image, Images
from bed.kubelet_node import NOTICES, NodeSpec
from bed.kubelet_server import KubeletServer
from bed.pod import Pod
from bed.pod_container import PodContainer
from bed.volumes import NotMounted
from bed.volumes_claims import Provisioner

TAINT_GONE_SECONDS = 10.0
CONFLICTS = 10


class Host:
    """See the module. `config` is what `Nodes.start` writes."""

    def __init__(self, config: Object) -> None:
        self.api = KubeletApi(config["url"], config["token"], Path(config["ca_file"]))
        self.directory = Path(config["directory"])
        self.images = Images(Image.from_json(item) for item in config["images"])
        self.root = containers_root.Host.probe(self.directory / "root", image_files.made_of())
        self.environment = _environment(config["url"])
        self.backoff_seconds = (config["backoff_seconds"], config["longest_backoff_seconds"])
        self.kubelets: dict[str, Kubelet] = {}
        self._removed: set[str] = set()
        self._addresses = Addresses()
        self.address_for = self._addresses.for_pod
        self._server = KubeletServer(config["serving_cert"], config["serving_key"])
        self._attached: dict[tuple[str, str], dict[str, str]] = {}  # claim -> uid of a pod -> its node
        self._pods = Mirror(self.api, "/api/v1/pods", {"fieldSelector": "spec.nodeName!="}, self._on_pod)
        self._last: dict[tuple[str, str], Pod] = {}  # also of pods that are gone: for their logs
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deaths: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Watch pods, serve claims."""
        self._spawn(self._pods.run())
        self._spawn(Provisioner(self.api, self.directory / "claims").run())
        await self._pods.synced.wait()

    async def stop(self) -> None:
        """Kill everything. The Node objects stay."""
        await asyncio.gather(*(kubelet.die() for kubelet in self.kubelets.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop()
        await self.api.close()

    # --- a test's commands, by name

    async def add(self, spec: Object) -> Object:
        """A new node; returns when pods can be placed there."""
        node = NodeSpec(**spec)
        if node.name in self.kubelets:
            raise ValueError(f"there is a node {node.name} already")
        kubelet = Kubelet(self, node, self._addresses.for_node())
        self.kubelets[node.name] = kubelet
        self._removed.discard(node.name)
        await self._server.serve(kubelet)
        await kubelet.register()
        await self._until_schedulable(node.name)
        return {"address": kubelet.address}

    async def shutdown(self, name: str, grace: float) -> None:
        """Returns when it has begun."""
        self._spawn(self._kubelet(name).shut_down(grace))

    async def die(self, name: str) -> None:
        await self._kubelet(name).die()

    async def partition(self, name: str) -> None:
        self._kubelet(name).partition()

    async def heal(self, name: str) -> None:
        await self._kubelet(name).heal()

    async def reboot(self, name: str, seconds: float) -> None:
        if death := self._deaths.pop(name, None):
            death.cancel()
        await self._kubelet(name).reboot(seconds)

    async def remove(self, name: str) -> None:
        """Once; what has been removed stays so."""
        if name in self._removed:
            return
        if death := self._deaths.pop(name, None):
            death.cancel()
        kubelet = self._kubelet(name)
        await kubelet.remove()
        await self._server.close(kubelet)
        del self.kubelets[name]
        self._removed.add(name)

    async def spot_notice(self, name: str, provider: str, seconds: float | None) -> None:
        """Taint the node as `provider` would, and power it off after `seconds`, its usual time if None."""
        kubelet = self._kubelet(name)
        notice = NOTICES[provider]
        taint = {"key": notice.key, "effect": "NoSchedule"}
        await self._taint(name, taint)
        delay = notice.seconds if seconds is None else seconds
        self._deaths[name] = self._spawn(_later(delay, kubelet.die))

    async def oom(self, namespace: str, pod: str, container: str | None) -> None:
        self._container(namespace, pod, container).kill(oom=True)

    async def evict(self, namespace: str, pod: str) -> None:
        found = self._pod(namespace, pod)
        next(kubelet for kubelet in self.kubelets.values() if found.uid in kubelet.pods).evict(found)

    async def pids(self, namespace: str, pod: str, container: str | None) -> list[int]:
        found = self._pod(namespace, pod)
        chosen = [self._container(namespace, pod, container)] if container else found.containers.values()
        running = [item.process.pid for item in chosen if item.process is not None and item.running]
        return [pid for first in running for pid in containers.host_pids(first)]

    async def log_path(self, namespace: str, pod: str, container: str | None) -> str:
        logs = self._container(namespace, pod, container, gone=True).logs
        if not logs:
            raise LookupError(f"no container of {namespace}/{pod} was started yet")
        return str(logs[-1].path)

    # --- what the nodes share (kubelet.Machine)

    def attach(self, node: str, pod: Object, claims: set[str]) -> None:
        """A claim for one node stays with a node until every pod of it there has ended or is deleted."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        for claim in claims:
            others = {other for other in self._attached.get((namespace, claim), {}).values() if other != node}
            if others:
                raise NotMounted(
                    f'Multi-Attach error for claim "{claim}": in use on {", ".join(sorted(others))}'
                )
        for claim in claims:
            self._attached.setdefault((namespace, claim), {})[uid] = node

    def detach(self, pod: Object) -> None:
        for users in self._attached.values():
            users.pop(pod["metadata"]["uid"], None)

    def pods_of(self, node: str) -> list[Object]:
        """The pods that the API has there."""
        return [pod for pod in self._pods.objects.values() if pod["spec"]["nodeName"] == node]

    # --- details

    def _on_pod(self, kind: str, pod: Object) -> None:
        kubelet = self.kubelets.get(pod["spec"]["nodeName"])
        if kubelet is not None:
            kubelet.observe(kind, pod)
            if made := kubelet.pods.get(pod["metadata"]["uid"]):
                self._last[made.key] = made
        if kind == "DELETED":
            self.detach(pod)

    def _kubelet(self, name: str) -> Kubelet:
        if name not in self.kubelets:
            raise LookupError(f"no node {name}; there are {', '.join(sorted(self.kubelets))}")
        return self.kubelets[name]

    def _pod(self, namespace: str, name: str, gone: bool = False) -> Pod:
        pod = self._last.get((namespace, name))
        if pod is None or not (gone or any(pod.uid in kubelet.pods for kubelet in self.kubelets.values())):
            raise LookupError(f"no node runs a pod {namespace}/{name}")
        return pod

    def _container(self, namespace: str, pod: str, name: str | None, gone: bool = False) -> PodContainer:
        found = self._pod(namespace, pod, gone)
        if name is None:
            return found.mains[0]
        if name not in found.containers:
            raise LookupError(f"{namespace}/{pod} has no container {name}")
        return found.containers[name]

    async def _until_schedulable(self, name: str) -> None:
        """Admission taints every new node; the controller manager takes that away at once."""
        async with asyncio.timeout(TAINT_GONE_SECONDS):
            while True:
                node = await self.api.get(f"/api/v1/nodes/{name}")
                taints = node["spec"].get("taints") or []
                if not any(item["key"] == "node.kubernetes.io/not-ready" for item in taints):
                    return
                await asyncio.sleep(0.02)

    async def _taint(self, name: str, taint: Object) -> None:
        for _ in range(CONFLICTS):
            node = await self.api.get(f"/api/v1/nodes/{name}")
            taints = [item for item in node["spec"].get("taints") or [] if item["key"] != taint["key"]]
            version = node["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"taints": [*taints, taint]}}
            try:
                await self.api.patch(f"/api/v1/nodes/{name}", body)
            except ApiRefused as error:
                if error.status != 409:
                    raise
            else:
                return
        raise RuntimeError(f"{name} changes too often to be tainted")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _later(seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(seconds)
    await action()


def _environment(url: str) -> dict[str, str]:
    """What every container finds in its environment, as an image and the kubelet would set it."""
    server = urlsplit(url)
    port = str(server.port)
    return {
        "PATH": f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": containers_root.HOME,
        "LANG": "C.UTF-8",
        "KUBERNETES_SERVICE_HOST": server.hostname or "",
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        **{key: os.environ[key] for key in ("TZ",) if key in os.environ},
    }
