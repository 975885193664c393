"""Blocks in memory that the ranks of one machine share: what one has read, the others copy from there.

A rank's shelf is an anonymous memory file. The others open it through ``/proc``, as any process of the same
user in the same container may; its first bytes prove that it is the right one. Where that can't be done,
blocks go from rank to rank over the process group (``exchange``).
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_NONCE_BYTES = 16
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


@dataclass(frozen=True)
class Address:
    """Where a rank's shelf is found; ``machine`` is the same for all that could open it."""

    machine: str
    pid: int
    descriptor: int
    nonce: bytes


def machine() -> str:
    """This machine until it is started anew, and the processes that are seen from here; "": unknown."""
    if sys.platform != "linux":
        return ""
    try:
        seen = os.stat(_PROCESSES).st_ino
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()}/{seen}/{os.getuid()}"
    except OSError:
        return ""


class Shelf:
    """This rank's own. ``places``: block -> where it begins in the file."""

    def __init__(self) -> None:
        """Raises OSError where there are no memory files."""
        if sys.platform != "linux":
            raise OSError("this system has no memory files")
        self.places: dict[int, int] = {}
        self._descriptor = os.memfd_create("resumable-load", os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._descriptor)  # what is mapped stays
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        os.write(self._descriptor, self._nonce)
        self._bytes = _pages(_NONCE_BYTES)

    @property
    def address(self) -> Address:
        return Address(machine(), os.getpid(), self._descriptor, self._nonce)

    def make_room(self, lengths: Mapping[int, int]) -> None:
        """For blocks of so many bytes, by their numbers."""
        for block, length in lengths.items():
            self.places[block] = self._bytes
            self._bytes += _pages(length)
        os.ftruncate(self._descriptor, self._bytes)

    def view(self, block: int, length: int) -> memoryview:
        """A block's place, to be written."""
        return _mapped(self._descriptor, self.places[block], length, writable=True)


class Neighbours:
    """The shelves of the machine's other ranks, by rank."""

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        """Raises OSError when one of them can't be opened, or is another file."""
        self._open: dict[int, int] = {}
        self.close = weakref.finalize(self, _close_all, self._open)  # what is mapped stays
        for rank, address in addresses.items():
            path = f"/proc/{address.pid}/fd/{address.descriptor}"
            self._open[rank] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if os.pread(self._open[rank], _NONCE_BYTES, 0) != address.nonce:
                raise OSError(f"{path} is not the shelf of rank {rank}")

    def view(self, rank: int, at: int, length: int) -> memoryview:
        """``length`` bytes of a rank's shelf from ``at`` on, only to be read."""
        return _mapped(self._open[rank], at, length, writable=False)


class Shelves:
    """All of them, from one rank's place. ``own``: None where ranks do not share a machine's memory."""

    def __init__(self) -> None:
        self.own: Shelf | None = None
        self.others: Neighbours | None = None
        self.places: dict[int, int] = {}  # block -> where in the shelf of its reader
        self._met = False

    def address(self) -> Address | None:
        """What this rank tells the others, once; makes its shelf."""
        if self._met:
            return None
        try:
            self.own = Shelf()
        except OSError:
            return None
        return self.own.address

    def meet(self, rank: int, addresses: Sequence[Address | None]) -> None:
        """``addresses``: by rank, at first; nothing happens when they were told before."""
        if self._met:
            return
        self._met = True
        found = {number: address for number, address in enumerate(addresses) if address is not None}
        machines = {address.machine for address in found.values()}
        if len(found) < len(addresses) or len(machines) > 1 or "" in machines:
            self.close()
            return
        try:
            self.others = Neighbours({number: one for number, one in found.items() if number != rank})
        except OSError:
            self.others = None

    def close(self) -> None:
        """What is mapped stays, until nothing refers to it."""
        for one in (self.own, self.others):
            if one is not None:
                one.close()
        self.own = self.others = None


def _close_all(descriptors: Mapping[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def _mapped(descriptor: int, at: int, length: int, *, writable: bool) -> memoryview:
    """Given back when nothing refers to it any more."""
    begin = at - at % mmap.ALLOCATIONGRANULARITY
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    whole = mmap.mmap(descriptor, at + length - begin, flags=flags, prot=protection, offset=begin)
    return memoryview(whole)[at - begin :]


def _pages(size: int) -> int:
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
