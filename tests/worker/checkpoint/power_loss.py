"""What a disk holds when the power goes, by the letter of POSIX, for test_bad_luck.py.

``fsync`` of a file makes its content durable, ``fsync`` of a directory the names in it; nothing else does. So
a disk may have lost everything that was not synced; or have all names, but no content that was not synced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resumable_training.checkpoint import writer_main

LOST = "all that was not synced is lost"
HOLLOW = "names are there, contents that were not synced are empty"


class Disk:
    """Everything below ``base`` from now on; put ``fsync`` in the place of ``os.fsync``."""

    def __init__(self, base: Path, images: Path) -> None:
        self._base, self._images = base, images
        self._sync = os.fsync
        self._contents: dict[int, bytes] = {}  # by inode, as synced
        self._names: dict[int, dict[str, int]] = {}
        self._held: list[int] = []  # what is open keeps its inode number
        self.images: dict[str, list[Path]] = {LOST: [], HOLLOW: []}

    def trust(self) -> None:
        """All that is there by now is durable."""
        for path in (self._base, *self._base.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self._note(descriptor)
            os.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        """Sync, and keep what a power loss right before and right after would leave."""
        self._take(HOLLOW, self._hollow)
        self._sync(descriptor)
        self._note(descriptor)
        self._take(LOST, self._lost)

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _note(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        inode = os.fstat(descriptor).st_ino
        self._held.append(os.open(path, os.O_RDONLY))
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._names[inode] = {one.name: _hold(self._held, one) for one in os.scandir(path)}
        else:
            self._contents[inode] = path.read_bytes()

    def _take(self, kind: str, copy: Callable[[Path], None]) -> None:
        image = self._images / f"{len(self.images[kind]):03}-{kind[:3]}"
        copy(image)
        self.images[kind].append(image)

    def _lost(self, image: Path) -> None:
        self._rebuild(self._base.stat().st_ino, image)

    def _rebuild(self, inode: int, target: Path) -> None:
        target.mkdir(parents=True)
        for name, inner in self._names.get(inode, {}).items():
            if inner in self._directories:
                self._rebuild(inner, target / name)
            else:
                (target / name).write_bytes(self._contents.get(inner, b""))

    @property
    def _directories(self) -> set[int]:
        return {os.fstat(one).st_ino for one in self._held if stat.S_ISDIR(os.fstat(one).st_mode)}

    def _hollow(self, image: Path) -> None:
        image.mkdir(parents=True)
        for path in sorted(self._base.rglob("*")):
            target = image / path.relative_to(self._base)
            if path.is_dir():
                target.mkdir()
            else:
                target.write_bytes(self._contents.get(path.stat().st_ino, b""))


def arm_writer(base: str, images: str) -> None:
    """In a process that stores checkpoints: from its first claim on, which is its first act on the disk."""
    disk, claim = Disk(Path(base), Path(images)), writer_main.claim

    def first(*arguments: Any) -> None:
        if os.fsync is not disk.fsync:
            disk.trust()
            os.fsync = disk.fsync
        claim(*arguments)

    writer_main.claim = first


def _hold(held: list[int], entry: os.DirEntry[str]) -> int:
    held.append(os.open(entry.path, os.O_RDONLY))
    return entry.inode()
