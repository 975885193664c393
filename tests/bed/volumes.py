"""Volumes of a pod: made on the host before its first container starts, bound into those that mount them.

emptyDir (on disk or a tmpfs), hostPath, persistentVolumeClaim, secret, configMap, downwardAPI and
projected. Contents of Secrets, ConfigMaps and tokens are laid out and replaced as the kubelet does it: a
new folder beside the old one, and one rename of the link `..data`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bed import containers_root
from bed.containers_root import Bind
from bed.pod_env import ConfigError, Data, Object, data_of, expand, quantity

TOKEN_RENEWAL = 0.8  # of a token's life
MEMORY_DEFAULT = 1 << 30  # of a tmpfs with no sizeLimit; half the machine in a real kubelet


class NotMounted(Exception):
    """A volume cannot be made now; the message says which and why. It is tried again."""


class Source(Protocol):
    """What volumes need from the API server. A missing object is None."""

    async def fetch(self, plural: str, namespace: str, name: str) -> Object | None: ...

    async def persistent_volume(self, name: str) -> Object | None: ...

    async def token(self, namespace: str, account: str, request: Object) -> Object: ...


@dataclass
class _Content:
    """The files of one written volume, and when its tokens must be renewed (seconds since the epoch)."""

    files: dict[str, tuple[bytes, int]]
    renew_at: float = float("inf")


class PodVolumes:
    """The volumes of one pod, below `directory`."""

    def __init__(self, directory: Path, pod: Object, source: Source, lookup: Callable[[Object], str]) -> None:
        self._directory = directory
        self._pod = pod
        self._source = source
        self._lookup = lookup
        self._paths: dict[str, Path] = {}
        self._contents: dict[str, _Content] = {}
        self._memory: list[Path] = []
        self.single_node_claims: set[str] = set()  # names of those that are ReadWriteOnce

    async def make(self) -> None:
        """Make what is not made yet.

        NotMounted, after all others were tried, for the first that cannot be.
        """
        missing: NotMounted | None = None
        for volume in self._pod["spec"].get("volumes") or []:
            if volume["name"] in self._paths:
                continue
            try:
                self._paths[volume["name"]] = await self._make(volume)
            except (NotMounted, ConfigError, OSError) as error:
                missing = missing or NotMounted(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
                )
        if missing is not None:
            raise missing

    async def refresh(self) -> None:
        """Bring written volumes up to date with their objects; what is gone from the API stays as it was."""
        for volume in self._pod["spec"].get("volumes") or []:
            old = self._contents.get(volume["name"])
            if old is None:
                continue
            with contextlib.suppress(NotMounted, ConfigError):
                new = await self._content(volume, old)
                if new.files != old.files:
                    self._write(self._paths[volume["name"]], new)
                self._contents[volume["name"]] = new

    def binds(self, container: Object, env: Mapping[str, str]) -> tuple[list[Bind], bool]:
        """The mounts of `container`, and whether one of them is at /dev/shm."""
        found = []
        for item in container.get("volumeMounts") or []:
            source = self._paths[item["name"]]
            sub = item.get("subPath") or expand(item.get("subPathExpr") or "", env)
            if sub:
                source = self._sub_path(source, sub)
            found.append(Bind(str(source), item["mountPath"].rstrip("/"), self._read_only(item)))
        return found, any(mount.target == "/dev/shm" for mount in found)

    def remove(self) -> None:
        """Remove everything but claims and host paths. No container may run any more."""
        for path in self._memory:
            with contextlib.suppress(OSError):
                containers_root.unmount(str(path))
        self._memory.clear()
        self._paths.clear()
        self._contents.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _make(self, volume: Object) -> Path:
        path: Path = self._directory / volume["name"]
        if "emptyDir" in volume:
            return self._empty(path, volume["emptyDir"] or {})
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        content = await self._content(volume, None)
        path.mkdir(parents=True, exist_ok=True)
        self._write(path, content)
        self._contents[volume["name"]] = content
        return path

    def _empty(self, path: Path, options: Object) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        if options.get("medium") == "Memory":
            size = int(quantity(options.get("sizeLimit") or MEMORY_DEFAULT))
            containers_root.mount("tmpfs", str(path), "tmpfs", data=f"size={size},mode=1777")
            self._memory.append(path)
        path.chmod(0o777)
        self._give_to_group(path)
        return path

    async def _claimed(self, name: str) -> Path:
        claim = await self._source.fetch("persistentvolumeclaims", self._pod["metadata"]["namespace"], name)
        if claim is None:
            raise NotMounted(f'persistentvolumeclaim "{name}" not found')
        if (claim.get("status") or {}).get("phase") != "Bound":
            raise NotMounted(f'PersistentVolumeClaim "{name}" is not bound')
        if claim["spec"]["accessModes"] == ["ReadWriteOnce"]:
            self.single_node_claims.add(name)
        volume = await self._source.persistent_volume(claim["spec"]["volumeName"])
        spec = (volume or {}).get("spec") or {}
        place = spec.get("hostPath") or spec.get("local")
        if place is None:
            raise NotMounted(
                f'PersistentVolume "{claim["spec"]["volumeName"]}" is neither hostPath nor local'
            )
        path = Path(place["path"])
        if not path.is_dir():
            raise NotMounted(f"path {path} of the PersistentVolume does not exist")
        self._give_to_group(path)
        return path

    def _give_to_group(self, path: Path) -> None:
        group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is None:
            return
        for folder, _, files in os.walk(path):
            os.chown(folder, -1, group)
            os.chmod(folder, os.stat(folder).st_mode | 0o2770)
            for name in files:
                with contextlib.suppress(FileNotFoundError):  # in use by others meanwhile
                    os.lchown(f"{folder}/{name}", -1, group)

    async def _content(self, volume: Object, old: _Content | None) -> _Content:
        if "projected" in volume:
            return await self._projected(volume["projected"], old)
        for key in ("secret", "configMap", "downwardAPI"):
            if key in volume:
                part = {**(volume[key] or {})}
                if key == "secret":
                    part["name"] = part.get("secretName")
                return _Content(await self._part(key, part, part.get("defaultMode", 0o644)))
        kinds = ", ".join(key for key in volume if key != "name")
        raise NotMounted(f"volumes of kind {kinds} are not supported by this kubelet")

    async def _projected(self, options: Object, old: _Content | None) -> _Content:
        content = _Content({})
        mode = options.get("defaultMode", 0o644)
        for source in options.get("sources") or []:
            for key, part in source.items():
                if key == "serviceAccountToken":
                    await self._token(part, mode, content, old)
                else:
                    content.files |= await self._part(key, part or {}, mode)
        return content

    async def _part(self, key: str, part: Object, mode: int) -> dict[str, tuple[bytes, int]]:
        if key == "downwardAPI":
            items = part.get("items") or []
            return {item["path"]: (self._lookup(item).encode(), item.get("mode") or mode) for item in items}
        plural = {"secret": "secrets", "configMap": "configmaps"}.get(key)
        if plural is None:
            raise NotMounted(f"projected sources of kind {key} are not supported by this kubelet")
        found = await self._source.fetch(plural, self._pod["metadata"]["namespace"], part["name"])
        if found is None:
            if part.get("optional"):
                return {}
            raise NotMounted(f'{key.lower()} "{part["name"]}" not found')
        return _chosen(data_of(found), part, mode)

    async def _token(self, part: Object, mode: int, content: _Content, old: _Content | None) -> None:
        path = part["path"]
        if old is not None and path in old.files and time.time() < old.renew_at:
            content.files[path] = old.files[path]
            content.renew_at = min(content.renew_at, old.renew_at)
            return
        metadata, life = self._pod["metadata"], part.get("expirationSeconds") or 3600
        spec: dict[str, Any] = {
            "expirationSeconds": life,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        if part.get("audience"):
            spec["audiences"] = [part["audience"]]
        account = self._pod["spec"].get("serviceAccountName") or "default"
        answer = await self._source.token(metadata["namespace"], account, {"spec": spec})
        content.files[path] = (answer["status"]["token"].encode(), mode)
        content.renew_at = min(content.renew_at, time.time() + TOKEN_RENEWAL * life)

    def _write(self, path: Path, content: _Content) -> None:
        group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None:
            content = _Content({name: (data, mode | 0o440) for name, (data, mode) in content.files.items()})
        write_at_once(path, content.files, group)

    def _read_only(self, item: Object) -> bool:
        volume = next(found for found in self._pod["spec"]["volumes"] if found["name"] == item["name"])
        written = any(key in volume for key in ("secret", "configMap", "downwardAPI", "projected"))
        claim = volume.get("persistentVolumeClaim") or {}
        return bool(item.get("readOnly") or claim.get("readOnly") or written)

    def _sub_path(self, source: Path, sub: str) -> Path:
        path = (source / sub).resolve()
        if not path.is_relative_to(source.resolve()):
            raise ConfigError(f"subPath {sub} leaves its volume", "CreateContainerConfigError")
        if not path.exists():
            path.mkdir(parents=True)
            self._give_to_group(path)
        return path


def write_at_once(path: Path, files: Mapping[str, tuple[bytes, int]], group: int | None = None) -> None:
    """Make `files` (relative path: content, mode) the content of `path`, visible to readers in one step."""
    data, old = path / "..data", None
    if data.is_symlink():
        old = path / os.readlink(data)
    new = path / f"..{time.strftime('%Y_%m_%d_%H_%M_%S')}.{secrets.token_hex(4)}"
    new.mkdir(mode=0o755)
    for name, (content, mode) in files.items():
        target = new / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
        if group is not None:
            os.chown(target, -1, group)
    link = path / "..data_tmp"
    link.symlink_to(new.name)
    link.rename(data)
    tops = {name.split("/")[0] for name in files}
    for name in tops:
        if not (path / name).is_symlink():
            (path / name).symlink_to(f"..data/{name}")
    for entry in path.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _chosen(data: Data, part: Object, mode: int) -> dict[str, tuple[bytes, int]]:
    if not part.get("items"):
        return {key: (value, mode) for key, value in data.items()}
    files = {}
    for item in part["items"]:
        if item["key"] in data:
            files[item["path"]] = (data[item["key"]], item.get("mode") or mode)
        elif not part.get("optional"):
            raise NotMounted(f"references non-existent key: {item['key']}")
    return files


def _host_path(options: Object) -> Path:
    path, kind = Path(options["path"]), options.get("type") or ""
    if kind in ("", "DirectoryOrCreate") and not path.exists():
        path.mkdir(parents=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch()
    right = {"Directory": path.is_dir, "DirectoryOrCreate": path.is_dir, "File": path.is_file}
    right |= {"FileOrCreate": path.is_file, "Socket": path.is_socket}
    if kind in right and not right[kind]():
        raise NotMounted(
            f"hostPath type check failed: {path} is not a {kind.removesuffix('OrCreate').lower()}"
        )
    return path
