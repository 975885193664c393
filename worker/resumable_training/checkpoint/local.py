"""A checkpoint store in a directory, on a local disk or a shared file system (NFS, a PVC).

Create-only writes are a synced temporary file and a hard link, which every POSIX file system refuses when
the name exists; where links are missing, an exclusive open. Directories are synced too: without that a new
name can be gone after a power loss, as a probe may, which is of no use afterwards. The root is made by
``prepare_root`` alone: a volume that is no longer mounted must not be written under its mount point.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from resumable_training.checkpoint.early import EarlyFile
from resumable_training.checkpoint.errors import (
    CheckpointError,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    StoreNotFound,
)
from resumable_training.checkpoint.identity import PROBES_DIRECTORY
from resumable_training.checkpoint.store import Advice, Entry
from resumable_training.contract.manifest import parse_checkpoint_name

TEMPORARY_PREFIX = ".tmp-"
LOCAL_SECONDS = 1.0
_TRIES = 3
NETWORK_SECONDS = 30.0  # NFS attribute caches: a new directory may be seen this late elsewhere
_LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "f2fs", "apfs"}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


class LocalStore:
    """Store (see ``store.Store``) in directory ``root``."""

    def __init__(self, root: str | os.PathLike[str], visibility_seconds: float | None = None) -> None:
        self.root = Path(root).absolute()
        self._visibility_seconds = visibility_seconds

    @property
    def location(self) -> str:
        return str(self.root)

    @property
    def visibility_seconds(self) -> float:
        """How late a name made on another machine may be seen here, by the kind of file system."""
        if self._visibility_seconds is None:
            local = file_system_type(self.root) in _LOCAL_FILE_SYSTEMS
            self._visibility_seconds = LOCAL_SECONDS if local else NETWORK_SECONDS
        return self._visibility_seconds

    @visibility_seconds.setter
    def visibility_seconds(self, value: float) -> None:
        self._visibility_seconds = value

    @property
    def advice(self) -> Advice:
        return Advice(
            writable="Make it writable for the user that trains, or set another directory.",
            shared="Each node seems to have a directory of its own under that path. Use a volume that all of"
            " them mount (a ReadWriteMany claim, NFS), at the same path. If it is shared over NFS, new files"
            " show up too late: mount it with a short actimeo.",
            create_only="This file system has no atomic create-only write, so two attempts could not be told"
            " apart. Use NFS 4, or a block volume.",
        )

    def prepare_root(self) -> None:
        """Make the root directory, durably with all above it; called by preflight and by copies.

        Raises:
            StoreMisconfigured: a file has its name.
        """
        with _wrapped(self.location):
            missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
            if not missing and not self.root.is_dir():
                raise StoreMisconfigured(f"{self.location} is no directory: set another one, or remove it")
            self.root.mkdir(parents=True, exist_ok=True)
            for path in missing:
                sync_directory(path.parent)

    def path(self, name: str) -> Path:
        """Path of a name; names never leave the root."""
        parts = name.split("/") if name else []
        if any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name!r} is not a name in a store")
        return self.root.joinpath(*parts)

    def _full(self, name: str) -> str:
        return f"{self.location}/{name}".rstrip("/")

    def entries(self, directory: str = "") -> list[Entry]:
        found: list[Entry] = []
        with _wrapped(self._full(directory)):
            try:
                names = sorted(os.listdir(self.path(directory)))
            except FileNotFoundError:
                return []
            for name in names:
                if not name.startswith(TEMPORARY_PREFIX):
                    found += self._entry(directory, name)
        return found

    def _entry(self, directory: str, name: str) -> list[Entry]:
        try:
            status = os.stat(self.path(directory) / name)
        except FileNotFoundError:  # gone since the listing
            return []
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return []  # a link that leads to itself
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            return []  # to open a pipe would wait for ever
        return [Entry(name, status.st_size, status.st_mtime, stat.S_ISDIR(status.st_mode))]

    def size(self, name: str) -> int | None:
        with _wrapped(self._full(name)):
            try:
                status = os.stat(self.path(name))
            except FileNotFoundError:
                return None
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with _wrapped(self._full(name)), self.path(name).open("rb") as stream:
            stream.seek(offset)
            return stream.read(-1 if length is None else length)

    def read_into(self, name: str, offset: int, place: memoryview) -> int:
        done = 0
        with _wrapped(self._full(name)), self.path(name).open("rb", buffering=0) as stream:
            stream.seek(offset)
            while done < len(place) and (count := stream.readinto(place[done:])):
                done += count
        return done

    def create(self, name: str, data: bytes) -> None:
        target, lasting = self.path(name), _is_lasting(name)
        with _wrapped(self._full(name)), self._temporary(target, data, lasting) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                # Over NFS a link can succeed although its repeated request was refused.
                if os.stat(temporary).st_nlink != 2:
                    raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                create_exclusively(target, data)
            if lasting:
                sync_directory(target.parent)

    def put(self, name: str, data: bytes) -> None:
        target = self.path(name)
        with _wrapped(self._full(name)), self._temporary(target, data) as temporary:
            os.replace(temporary, target)
            sync_directory(target.parent)

    @contextmanager
    def _temporary(self, target: Path, data: bytes, lasting: bool = True) -> Iterator[Path]:
        path = target.with_name(TEMPORARY_PREFIX + uuid.uuid4().hex)
        try:
            create_exclusively(path, data, lasting)
            yield path
        finally:
            with suppress(FileNotFoundError):
                path.unlink()

    def make_directory(self, name: str) -> None:
        with _wrapped(self._full(name)):
            self.path(name).mkdir()  # not its parents: see the head of this file
            sync_directory(self.path(name).parent)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with _wrapped(self._full(name)):
            if parse_checkpoint_name(path.parent.name) and path.parent.is_symlink():
                return  # somebody keeps that checkpoint elsewhere: only the link is ours, and goes as a whole
            try:
                path.unlink()
            except FileNotFoundError:
                return
            if _is_lasting(name):
                sync_directory(path.parent)

    def delete_tree(self, name: str) -> None:
        if not name:
            raise ValueError("the root of a store is never deleted")
        with _wrapped(self._full(name)):
            path = self.path(name)
            try:
                if path.is_symlink():
                    path.unlink()  # what it leads to is not ours
                else:
                    _remove_tree(path)
                sync_directory(path.parent)
            except FileNotFoundError:
                return

    @contextmanager
    def open_write(self, name: str, expected_bytes: int = 0) -> Iterator[BinaryIO]:
        """Waits for a directory that another machine has just made."""
        path = self.path(name)
        with _wrapped(self._full(name)):
            self._await_directory(path.parent)
            with EarlyFile(path, expected_bytes) as file, io.BufferedWriter(file) as stream:
                yield cast(BinaryIO, stream)
                stream.flush()
                file.sync()

    def _await_directory(self, directory: Path) -> None:
        deadline = time.monotonic() + self.visibility_seconds
        while not directory.is_dir():
            if time.monotonic() > deadline:
                raise StorageUnavailable(
                    f"{directory} was made by another rank and is not seen here after"
                    f" {self.visibility_seconds:.0f} s. Over NFS directories show up late (option actimeo);"
                    " otherwise the volume is not mounted here any more."
                )
            with suppress(OSError):
                os.listdir(directory.parent)  # makes an NFS client ask the server again
            time.sleep(0.1)

    @contextmanager
    def open_read(self, name: str) -> Iterator[BinaryIO]:
        with _wrapped(self._full(name)), self.path(name).open("rb") as stream:
            yield cast(BinaryIO, stream)


def _remove_tree(path: Path) -> None:
    """Also while somebody who has not heard of it yet puts more files in: they are looked for again."""
    for _ in range(_TRIES - 1):
        with suppress(OSError):
            shutil.rmtree(path, onerror=_unless_gone)
            return
    shutil.rmtree(path, onerror=_unless_gone)


def _unless_gone(_function: object, _path: object, failure: tuple[Any, BaseException, Any]) -> None:
    """Somebody else may be deleting the same directory: what is gone is no reason to leave the rest."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _is_lasting(name: str) -> bool:
    return not name.startswith(f"{PROBES_DIRECTORY}/")


def create_exclusively(path: Path, data: bytes, lasting: bool = True) -> None:
    """Write and sync (``lasting``) a file that must not exist; what a failed write leaves is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if lasting:
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make names in a directory durable, where the file system knows how."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def file_system_type(path: Path) -> str:
    """Kind of the file system that ``path`` is on, or would be ("ext4", "nfs4"); empty when unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    path = Path(os.path.realpath(path))  # a link may lead to another file system
    best, kind = "", ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


@contextmanager
def _wrapped(where: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise StoreNotFound(f"{where} does not exist, or is no file") from error
    except FileExistsError as error:
        raise StoreExists(f"{where} exists already") from error
    except OSError as error:
        raise StorageUnavailable(f"{where}: {error.strerror or error}") from error
