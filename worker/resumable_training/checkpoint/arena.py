"""The shared memory that a rank copies its state into, and that its writer process stores from.

An anonymous file in memory (``memfd``): its pages count as the rank's own, not against ``/dev/shm``, which
containers keep small. All pages are there before the first copy, which maps them as it goes: that takes less
than to have the system map them beforehand. Where there is a GPU they are page-locked. The descriptor is all
that another process needs, and whoever holds it holds the content, also when the rank dies.
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
from pathlib import Path

import torch

SPARE_BYTES = 64 << 20  # that must stay free beside the arena
SEAL_BYTES = 16
_CGROUP = Path("/sys/fs/cgroup")


class NoArena(OSError):
    """There can't be one here; the text says why."""


class Arena:
    """``bytes`` of shared memory. ``tensor``: all of it as ``uint8``.

    Behind it lies a seal: random bytes that are there exactly while the content is one whole copy. Whoever
    was told them can see whether it still is the copy that was meant.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """``descriptor``: of an arena of that size that another process made, with the seal it has.

        Raises NoArena when there is no such memory, or too little of it.
        """
        self.bytes = size
        if descriptor is None:
            check_room(size)
            try:
                descriptor = os.memfd_create("resumable-checkpoint", os.MFD_CLOEXEC)
            except OSError as error:
                raise NoArena(f"no file in memory: {error.strerror or error}") from error
        self.descriptor = descriptor
        whole = size + SEAL_BYTES
        try:
            os.posix_fallocate(descriptor, 0, whole)  # all pages, or an error, instead of SIGBUS later
            self._map = mmap.mmap(descriptor, whole, flags=mmap.MAP_SHARED)
        except OSError as error:
            os.close(descriptor)
            raise NoArena(f"no {size >> 20} MiB of shared memory: {error.strerror or error}") from error
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8, count=size)
        self.pinned = _pin(self.tensor)

    def put(self, at: int, data: bytes) -> None:
        self._map[at : at + len(data)] = data

    def break_seal(self) -> None:
        """Before a copy begins: what is in here is no whole one."""
        self._map[self.bytes : self.bytes + SEAL_BYTES] = bytes(SEAL_BYTES)

    def seal(self) -> str:
        """The copy is complete; what a reader must find behind it."""
        seal = secrets.token_bytes(SEAL_BYTES)
        self._map[self.bytes : self.bytes + SEAL_BYTES] = seal
        return seal.hex()

    def free(self) -> None:
        """Give the memory back, whoever still has it mapped. It must not be touched any more."""
        if self.pinned:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())  # type: ignore[no-untyped-call]
        give_back(self.descriptor)


def given_arena(descriptor: int, size: int) -> Arena | None:
    """The arena that another process made, which belongs to this one now; None: it is smaller than that."""
    has = os.fstat(descriptor).st_size - SEAL_BYTES
    if has < size:
        give_back(descriptor)  # there is no room for two
        return None
    return Arena(has, descriptor)


def give_back(descriptor: int) -> None:
    """Free an arena's memory, whoever else holds it."""
    os.ftruncate(descriptor, 0)
    os.close(descriptor)


def check_room(needed: int, ranks: int = 1) -> None:
    """Raises NoArena unless so many ranks of this machine can have ``needed`` bytes together."""
    if sys.platform != "linux":
        raise NoArena("this system has no memory files")
    room = free_bytes()
    if room is not None and not fits(needed, room):
        whose = f" of {ranks} ranks" if ranks > 1 else ""
        raise NoArena(
            f"a copy of the state{whose} needs {needed >> 20} MiB of memory, {room >> 20} MiB are free"
        )


def fits(needed: int, room: int | None) -> bool:
    """Whether so many bytes may be taken of ``room``; None: of a room that nobody knows."""
    return room is None or needed + SPARE_BYTES <= room


def _pin(tensor: torch.Tensor) -> bool:
    """Lock the pages for the GPU that is in use, so that copies from it need not be waited for."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    registered = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
        tensor.data_ptr(), tensor.numel(), 0
    )
    return int(registered) == 0


def free_bytes(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that this process may still take, by the machine and by its container; None: unknown."""
    found = [room for room in (_machine(meminfo), _container(cgroup)) if room is not None]
    return min(found, default=None)


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _container(cgroup: Path) -> int | None:
    """Limit of the container less what it uses; files that are only cached do not count. (cgroup v2)"""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        details = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cached = sum(
        int(line.split()[1]) for line in details if line.split()[0] in ("inactive_file", "active_file")
    )
    return int(limit) - used + cached
