"""One pod on a fake kubelet, from the moment it is bound to the node until it is gone from the API.

Volumes, init containers, containers; graceful end; its status as the real kubelet would write it. What this
kubelet does not do, and does not claim to: cgroups (limits are not enforced), network namespaces, Services,
ephemeral containers, restartPolicyRules, in-place resize, CSI and generic ephemeral volumes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from bed import containers, containers_root, pod_env, pod_status
from bed.containers import Program
from bed.containers_root import Bind, Root
from bed.kubelet_api import ApiRefused
from bed.kubelet_images import Images
from bed.kubelet_line import Line
from bed.pod_container import Deadline, PodContainer
from bed.pod_env import Object
from bed.pod_report import PodReport, Verdict
from bed.pod_status import TERMINAL, is_sidecar
from bed.volumes import NotMounted, PodVolumes

MOUNT_RETRY_SECONDS = 1.0
SETTLE_SECONDS = 0.02  # before the first status: most pods run by then, and one write does
COALESCE_SECONDS = 0.005  # before any other: an end is mostly the pod's end too
FORCED_SECONDS = 2.0  # grace of a pod that vanished from the API
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost\n{address}\t{hostname}\n"


class Node(Protocol):
    """What a pod needs from its node."""

    name: str
    address: str
    line: Line
    images: Images
    root: containers_root.Host
    directory: Path
    allocatable: dict[str, str]
    environment: dict[str, str]
    backoff_seconds: tuple[float, float]

    def address_for(self, pod: Object) -> str: ...

    def attach(self, pod: Object, claims: set[str]) -> None:
        """NotMounted if a claim for a single node is in use on another."""

    def detach(self, pod: Object) -> None: ...

    def warn(self, pod: Object, reason: str, message: str) -> None: ...

    def forget(self, pod: Pod) -> None: ...


class Pod:
    """See the module. `start` it once; `update` with what the API says; it ends by itself."""

    def __init__(self, node: Node, pod: Object) -> None:
        self.object = pod
        self.spec: Object = pod["spec"]
        self.node = node
        self.backoff_seconds = node.backoff_seconds
        own = node.address if self.spec.get("hostNetwork") else ""
        self.address = own or node.address_for(pod)
        self.inits = [PodContainer(self, item, True) for item in self.spec.get("initContainers") or []]
        self.mains = [PodContainer(self, item, False) for item in self.spec["containers"]]
        self._directory = node.directory / "pods" / self.uid
        self._volumes = PodVolumes(self._directory / "volumes", pod, self, self._lookup)
        self._deadline: Deadline | None = None
        self._told = asyncio.Event()  # to end
        self._over = asyncio.Event()
        self._unwanted = asyncio.Event()  # deleted in the API, or gone from it
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()
        self._gone = False
        self._stopped = self._was_over = (pod.get("status") or {}).get("phase") in TERMINAL
        self._sandbox = False
        self._initialised = False
        self._verdict: Verdict | None = None
        self._report = PodReport(self.spec, pod.get("status") or {}, self.address, node.address)
        self._tasks: list[asyncio.Task[None]] = []
        self._adopt()

    @property
    def uid(self) -> str:
        uid: str = self.object["metadata"]["uid"]
        return uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.object["metadata"]["namespace"], self.object["metadata"]["name"]

    @property
    def containers(self) -> dict[str, PodContainer]:
        """All of them, by name."""
        return {item.name: item for item in (*self.inits, *self.mains)}

    @property
    def volumes(self) -> PodVolumes:
        return self._volumes

    @property
    def path(self) -> str:
        """Of the API object."""
        return "/api/v1/namespaces/{}/pods/{}".format(*self.key)

    def start(self) -> None:
        """Begin; from then on everything happens by itself."""
        self._see_deletion()
        self._tasks = [self._guarded(self._drive()), self._guarded(self._publish())]
        self.changed()

    def update(self, pod: Object) -> None:
        """The object has changed in the API."""
        self.object = pod
        self._see_deletion()

    def vanish(self) -> None:
        """The object is gone from the API: so must the processes be, soon."""
        self._gone = True
        self._unwanted.set()
        self._end(FORCED_SECONDS)

    def end(self, seconds: float, verdict: Verdict) -> None:
        """End it on the kubelet's own account, within `seconds` or the pod's own grace, whichever is
        shorter.
        """
        self._verdict = self._verdict or verdict
        self._end(min(seconds, self._grace))

    async def destroy(self) -> None:
        """The node is gone under it: kill everything, tell nobody, clean up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for item in self.containers.values():
            item.kill()
        for item in self.containers.values():
            if item.process is not None:
                await item.process.wait()
        self._clean_up()

    async def finished(self) -> None:
        """Return when no container runs any more, none will, and the API knows it."""
        await self._over.wait()
        await self._write_status()

    # --- what a container asks for (pod_container.Surroundings)

    def has_image(self, image: str) -> bool:
        return self.node.images.find(image) is not None

    def log_path(self, container: str, run: int) -> Path:
        namespace, name = self.key
        return containers.log_folder(self.node.directory, namespace, name, self.uid, container) / f"{run}.log"

    def changed(self) -> None:
        if not self._was_over:
            self._dirty.set()

    def warn(self, reason: str, message: str) -> None:
        self.node.warn(self.object, reason, message)

    async def prepare(self, container: Object) -> tuple[Program, Root, Path]:
        image = self.node.images.find(container["image"])
        assert image is not None, "pulled before"
        objects = {key: await self._data(*key) for key in pod_env.references(container)}
        hostname = (self.spec.get("hostname") or self.key[1])[:63]
        base = {**self.node.environment, **image.env, "HOSTNAME": hostname}
        env = pod_env.environment(
            container, objects, base, lambda origin: self._lookup({"container": container["name"], **origin})
        )
        argv = pod_env.command(container, env, image.entrypoint, image.command)
        identity = pod_env.identity(self.object, container, image.user)
        binds, shm = self._volumes.binds(container, env)
        message = self._message_file(container["name"])
        binds += [
            Bind(str(self._hosts_file(hostname)), "/etc/hosts"),
            Bind(str(message), container.get("terminationMessagePath") or "/dev/termination-log"),
        ]
        read_only = bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))
        root = Root(self.node.root, hostname, tuple(binds), None if shm else 64 << 20, read_only)
        directory = container.get("workingDir") or image.directory or containers_root.HOME
        return Program(argv, env, directory, identity), root, message

    # --- what volumes ask for (volumes.Source)

    async def fetch(self, plural: str, namespace: str, name: str) -> Object | None:
        return await self.node.line.find(f"/api/v1/namespaces/{namespace}/{plural}/{name}")

    async def persistent_volume(self, name: str) -> Object | None:
        return await self.node.line.find(f"/api/v1/persistentvolumes/{name}")

    async def token(self, namespace: str, account: str, request: Object) -> Object:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        try:
            return await self.node.line.create(path, request)
        except ApiRefused as error:
            raise NotMounted(f"failed to fetch token: {error.message}") from error

    # --- life

    async def _drive(self) -> None:
        if not self._stopped:
            await self._live_until_told()
            await self._stop_containers()
            self._stopped = True
            self.changed()
        self._over.set()
        self._clean_up()
        self.node.detach(self.object)
        await self._unwanted.wait()
        if not self._gone:
            await self._write_status()
            await self._delete()
        self.node.forget(self)
        self._tasks[1].cancel()

    async def _live_until_told(self) -> None:
        life = asyncio.create_task(self._live())
        told = asyncio.create_task(self._told.wait())
        limit = self.spec.get("activeDeadlineSeconds")
        try:
            done, _ = await asyncio.wait({life, told}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                message = "Pod was active on the node longer than the specified deadline"
                self.end(self._grace, Verdict("DeadlineExceeded", message))
        finally:
            life.cancel()
            told.cancel()
            results = await asyncio.gather(life, told, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _live(self) -> None:
        await self._mount()
        self._sandbox = True
        sidecars: list[asyncio.Task[int]] = []
        try:
            if any(item.exit_code is None or self._restarts(item) for item in self.mains):
                for item in self.inits:
                    if is_sidecar(item.spec):
                        sidecars.append(asyncio.create_task(item.run()))
                        await item.begun.wait()
                    elif await item.run() != 0:
                        return
            self._initialised = True
            await asyncio.gather(*(item.run() for item in self.mains))
        finally:
            for task in sidecars:
                task.cancel()

    def _restarts(self, item: PodContainer) -> bool:
        return pod_status.restartable(self.spec, item.spec, item.exit_code or 0)

    async def _mount(self) -> None:
        while True:
            try:
                await self._volumes.make()
                self.node.attach(self.object, self._volumes.single_node_claims)
            except NotMounted as error:
                self.warn("FailedMount", str(error))
                await asyncio.sleep(MOUNT_RETRY_SECONDS)
            else:
                return

    async def _stop_containers(self) -> None:
        """All at once, then the sidecars, last started first, all before the same deadline."""
        self._deadline = self._deadline or Deadline(self._grace)
        sidecars = [item for item in self.inits if is_sidecar(item.spec)]
        others = [item for item in (*self.inits, *self.mains) if item not in sidecars]
        await asyncio.gather(*(item.stop(self._deadline) for item in others))
        for item in reversed(sidecars):
            await item.stop(self._deadline)
        if self._initialised:
            for item in self.mains:
                item.give_up()

    def _clean_up(self) -> None:
        self._volumes.remove()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _see_deletion(self) -> None:
        metadata = self.object["metadata"]
        if metadata.get("deletionTimestamp"):
            self._unwanted.set()
            self._end(float(metadata.get("deletionGracePeriodSeconds") or 0))

    def _end(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = Deadline(seconds)
        else:
            self._deadline.shorten(seconds)
        self._told.set()

    async def _delete(self) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        with contextlib.suppress(ApiRefused):  # gone, or another one under its name
            await self.node.line.delete(self.path, options)

    def _guarded(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._complain)
        return task

    def _complain(self, task: asyncio.Task[None]) -> None:
        """A defect of the bed: into the log of the nodes' process, and as an event of the pod."""
        if not task.cancelled() and (error := task.exception()):
            traceback.print_exception(error)
            self.warn("KubeletDefect", f"{type(error).__name__}: {error}")

    # --- status

    def _adopt(self) -> None:
        """After a restart of the node: what the API remembers of the containers."""
        status = self.object.get("status") or {}
        known = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        for item in known:
            if item["name"] in self.containers:
                self.containers[item["name"]].adopt(item)

    async def _publish(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        while not self._gone:
            await self._dirty.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            await self._write_status()

    async def _write_status(self) -> None:
        async with self._writing:
            dirty = self._dirty.is_set()
            self._dirty.clear()
            if self._gone or not dirty:
                return
            body = {"metadata": {"uid": self.uid}, "status": self._status()}
            try:
                await self.node.line.patch(f"{self.path}/status", body)
            except ApiRefused as error:
                if error.status not in (404, 409):  # gone, or another one under its name
                    raise

    def _status(self) -> Object:
        return self._report.status(
            [item.status for item in self.inits],
            [item.status for item in self.mains],
            self.object,
            sandbox=self._sandbox,
            stopped=self._stopped,
            verdict=self._verdict,
        )

    # --- details

    @property
    def _grace(self) -> float:
        return float(self.spec.get("terminationGracePeriodSeconds", 30))

    async def _data(self, plural: str, name: str) -> pod_env.Data | None:
        found = await self.fetch(plural, self.key[0], name)
        return None if found is None else pod_env.data_of(found)

    def _lookup(self, origin: Object) -> str:
        if origin.get("fieldRef"):
            addresses = {"podIP": self.address, "hostIP": self.node.address}
            addresses |= {"podIPs": self.address, "hostIPs": self.node.address}
            return pod_env.field(self.object, addresses, origin["fieldRef"]["fieldPath"])
        selector = origin["resourceFieldRef"]
        return pod_env.resource(self.object, selector, origin.get("container", ""), self.node.allocatable)

    def _hosts_file(self, hostname: str) -> Path:
        path = self._directory / "etc-hosts"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HOSTS.format(address=self.address, hostname=hostname))
        return path

    def _message_file(self, container: str) -> Path:
        path = self._directory / "messages" / container
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        path.chmod(0o666)
        return path
