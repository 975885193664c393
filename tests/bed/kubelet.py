"""One fake kubelet: a Node with its lease and heartbeat, the pods bound to it, and what a test may do to the
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from bed import containers_root, kubelet_node
from bed.kubelet_api import ApiRefused, KubeletApi, Object
from bed.kubelet_images import Images
from bed.kubelet_line import Line
from bed.kubelet_node import NodeSpec
from bed.pod import Pod
from bed.pod_report import Verdict
from bed.pod_status import TERMINAL

LEASE_SECONDS = 1.0
STATUS_BEATS = 5  # leases between two patches of the whole status
REFRESH_BEATS = 5  # and between two looks at the pods' Secrets and ConfigMaps
SHUTTING_DOWN = "node is shutting down"
SHUT_DOWN = Verdict("Terminated", "Pod was terminated in response to imminent node shutdown.", True)
EVICTED = Verdict("Evicted", "The node was low on resource: memory.", True)
EVICTION_SECONDS = 0.0  # of memory pressure: hard


class Machine(Protocol):
    """What all nodes share; see kubelet_host.py."""

    api: KubeletApi
    images: Images
    root: containers_root.Host
    directory: Path
    environment: dict[str, str]
    backoff_seconds: tuple[float, float]

    def address_for(self, pod: Object) -> str: ...

    def attach(self, node: str, pod: Object, claims: set[str]) -> None: ...

    def detach(self, pod: Object) -> None: ...

    def pods_of(self, node: str) -> list[Object]: ...


class Kubelet:
    """One node. `line` is its connection; nothing but `cut` and `mend` of it makes a partition."""

    def __init__(self, machine: Machine, spec: NodeSpec, address: str) -> None:
        self.spec = spec
        self.name = spec.name
        self.address = address
        self.allocatable = kubelet_node.capacity(spec)
        self.line = Line(machine.api)
        self.pods: dict[str, Pod] = {}
        self.images = machine.images
        self.root = machine.root
        self.directory = machine.directory
        self.environment = machine.environment
        self.backoff_seconds = machine.backoff_seconds
        self.address_for = machine.address_for
        self.detach = machine.detach
        self._machine = machine
        self._boot_id = str(uuid.uuid4())
        self._not_ready = ""
        self._running = False
        self._uid = ""
        self._said: set[tuple[str, str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None

    # --- the machine

    async def register(self) -> None:
        """Create the Node, or take over the one of that name, and start to beat."""
        self.line.mend()
        body = kubelet_node.node(self.spec, self.address, self._boot_id)
        try:
            made = await self.line.create("/api/v1/nodes", body)
        except ApiRefused as error:
            if error.status != 409:
                raise
            made = await self.line.patch(
                f"/api/v1/nodes/{self.name}", {"spec": {"taints": body["spec"]["taints"]}}
            )
        self._uid = made["metadata"]["uid"]
        self._boot()

    async def die(self) -> None:
        """Power off: everything is killed, nobody is told."""
        self.line.cut()
        self._running = False
        if self._heart is not None:
            self._heart.cancel()
        pods, self.pods = list(self.pods.values()), {}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(pod.destroy() for pod in pods), *self._tasks, return_exceptions=True)

    async def reboot(self, seconds: float) -> None:
        """Power off, and on after `seconds`, under a new boot id."""
        await self.die()
        await asyncio.sleep(seconds)
        self._boot_id = str(uuid.uuid4())
        self._not_ready = ""
        self._boot()

    def partition(self) -> None:
        """Cut it off. Its processes run on."""
        self.line.cut()

    async def heal(self) -> None:
        """Connect it again: it reports everything, and hears what it missed."""
        if not self._running:
            raise ValueError(f"{self.name} is powered off: reboot it")
        self.line.mend()
        await self._report()
        self._reconcile()
        for pod in list(self.pods.values()):
            pod.changed()

    async def shut_down(self, seconds: float) -> None:
        """Graceful shutdown: not ready, all pods ended within `seconds`, then off."""
        self._not_ready = SHUTTING_DOWN
        await self._report()
        pods = list(self.pods.values())
        for pod in pods:
            pod.end(seconds, SHUT_DOWN)
        await asyncio.gather(*(pod.finished() for pod in pods))
        await self.die()

    def evict(self, pod: Pod) -> None:
        """As under memory pressure."""
        pod.end(EVICTION_SECONDS, EVICTED)

    async def remove(self) -> None:
        """Power off, and the Node object is deleted, as a cloud controller does."""
        await self.die()
        with contextlib.suppress(ApiRefused):
            await self._machine.api.delete(f"/api/v1/nodes/{self.name}")

    # --- pods

    def observe(self, kind: str, pod: Object) -> None:
        """A watch event of a pod that is bound to this node."""
        if not self.line.connected or not self._running:
            return
        known = self.pods.get(pod["metadata"]["uid"])
        if kind == "DELETED":
            if known is not None:
                known.vanish()
        elif known is not None:
            known.update(pod)
        elif self._not_ready:
            self._spawn(self._reject(pod))
        else:
            self._begin(pod)

    def attach(self, pod: Object, claims: set[str]) -> None:
        self._machine.attach(self.name, pod, claims)

    def forget(self, pod: Pod) -> None:
        self.pods.pop(pod.uid, None)

    def warn(self, pod: Object, reason: str, message: str) -> None:
        """A warning event; each message once for a pod."""
        key = (pod["metadata"]["uid"], reason, message)
        if key not in self._said:
            self._said.add(key)
            self._spawn(self._event(pod, reason, message))

    def _begin(self, pod: Object) -> None:
        made = Pod(self, pod)
        self.pods[made.uid] = made
        made.start()

    def _reconcile(self) -> None:
        """The whole truth of the API, after it was not heard for a while."""
        current = self._machine.pods_of(self.name)
        for uid in self.pods.keys() - {pod["metadata"]["uid"] for pod in current}:
            self.pods[uid].vanish()
        for pod in current:
            self.observe("MODIFIED", pod)

    async def _reject(self, pod: Object) -> None:
        if (pod.get("status") or {}).get("phase") in TERMINAL:
            return
        message = "Pod was rejected as the node is shutting down."
        await self._patch_pod(pod, {"phase": "Failed", "reason": "NodeShutdown", "message": message})

    async def _patch_pod(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        with contextlib.suppress(ApiRefused):  # gone
            await self.line.patch(path, {"metadata": {"uid": metadata["uid"]}, "status": status})

    # --- heartbeat

    def _boot(self) -> None:
        self._running = True
        self.line.mend()
        self._heart = asyncio.create_task(self._beat())
        self._reconcile()

    async def _beat(self) -> None:
        beats = 0
        while True:
            if beats % STATUS_BEATS == 0:
                await self._report()
            await self._renew()
            beats += 1
            if beats % REFRESH_BEATS == 0:
                self._spawn(self._refresh())
            await asyncio.sleep(LEASE_SECONDS)

    async def _report(self) -> None:
        status = kubelet_node.status(self.spec, self.address, self._boot_id, self._not_ready)
        with contextlib.suppress(ApiRefused):  # somebody deleted the Node: a kubelet does not make it again
            await self.line.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    async def _renew(self) -> None:
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "renewTime": kubelet_node.microseconds()}
        try:
            await self.line.patch(f"{leases}/{self.name}", {"spec": spec})
        except ApiRefused as error:
            if error.status == 404:
                with contextlib.suppress(ApiRefused):
                    await self.line.create(leases, kubelet_node.lease(self.name, self._uid))

    async def _refresh(self) -> None:
        for pod in list(self.pods.values()):
            await pod.volumes.refresh()

    async def _event(self, pod: Object, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        body = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning",
            "source": {"component": "kubelet", "host": self.name},
            "firstTimestamp": kubelet_node.seconds(),
            "lastTimestamp": kubelet_node.seconds(),
            "count": 1,
        }
        with contextlib.suppress(ApiRefused):  # the namespace is going away
            await self.line.create(f"/api/v1/namespaces/{metadata['namespace']}/events", body)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
