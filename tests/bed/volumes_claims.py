"""The bed's storage: a default StorageClass whose volumes are directories that every node sees.

Acts as an external provisioner does: makes a PersistentVolume for each pending claim of its class, removes
volume and directory when the claim is gone. Binding is the real controller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bed.kubelet_api import ApiRefused, ApiUnreachable, KubeletApi, Mirror, Object

CLASS = "bed"
PROVISIONER = "bed.resumable.dev/directory"
RETRY_SECONDS = 0.5
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


class Provisioner:
    """Serves the claims of one cluster from directories below `directory`."""

    def __init__(self, api: KubeletApi, directory: Path) -> None:
        self._api = api
        self._directory = directory
        self._work: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self._claims = Mirror(
            api, "/api/v1/persistentvolumeclaims", {}, lambda kind, item: self._add("claim", kind, item)
        )
        self._volumes = Mirror(
            api, "/api/v1/persistentvolumes", {}, lambda kind, item: self._add("volume", kind, item)
        )

    async def run(self) -> None:
        """Make the class, then serve until cancelled."""
        await self._insist(self._make_class)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claims.run())
            tasks.create_task(self._volumes.run())
            tasks.create_task(self._serve())

    def _add(self, what: str, kind: str, item: Object) -> None:
        if kind != "DELETED":
            self._work.put_nowait((what, item))

    async def _serve(self) -> None:
        while True:
            what, item = await self._work.get()
            handle = self._provide if what == "claim" else self._reclaim
            await self._insist(partial(handle, item))

    async def _insist(self, action: Callable[[], Awaitable[None]]) -> None:
        """Until the server has answered, whatever it is: the object's next event is another try."""
        while True:
            try:
                await action()
            except ApiUnreachable:
                await asyncio.sleep(RETRY_SECONDS)
            except ApiRefused:
                return
            else:
                return

    async def _make_class(self) -> None:
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        }
        await self._api.create("/apis/storage.k8s.io/v1/storageclasses", body)

    async def _provide(self, claim: Object) -> None:
        spec, metadata = claim["spec"], claim["metadata"]
        pending = (claim.get("status") or {}).get("phase") == "Pending" and not spec.get("volumeName")
        if not pending or spec.get("storageClassName") != CLASS or metadata.get("deletionTimestamp"):
            return
        path = self.path_of(metadata["namespace"], metadata["name"], metadata["uid"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
        body = {
            "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "accessModes": spec["accessModes"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": CLASS,
                "hostPath": {"path": str(path)},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        await self._api.create("/api/v1/persistentvolumes", body)

    async def _reclaim(self, volume: Object) -> None:
        ours = (volume["metadata"].get("annotations") or {}).get(PROVISIONED_BY) == PROVISIONER
        released = (volume.get("status") or {}).get("phase") == "Released"
        if not (ours and released) or volume["spec"]["persistentVolumeReclaimPolicy"] != "Delete":
            return
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(volume["spec"]["hostPath"]["path"])
        await self._api.delete(f"/api/v1/persistentvolumes/{volume['metadata']['name']}")

    def path_of(self, namespace: str, claim: str, uid: str) -> Path:
        """The directory behind a claim."""
        return self._directory / f"{namespace}_{claim}_{uid}"
