"""Loopback addresses for nodes and pods: each bed on this machine takes a block 127.B.0.0/16 for itself."""

from __future__ import annotations

import contextlib
import random
import socket
from math import ceil

from bed.kubelet_api import Object

BLOCKS = range(16, 255)
EACH = 254  # addresses 1 to 254 of each 256
WISH = "bed.resumable.dev/pod-ip"  # annotation: the address that a pod shall have, e.g. one that another had


class Addresses:
    """127.B.1.1 and up for pods; for nodes 127.B.0.n, then 127.B.255.n and down. None is given twice.

    The block is free again when we end.

    Raises (``for_node``, ``for_pod``):
        RuntimeError: all are given: some 65,000.
    """

    def __init__(self) -> None:
        self._lock, self.block = _claim()
        self._nodes = 0
        self._pods = 0

    def for_node(self) -> str:
        """The next node's."""
        high, low = divmod(self._nodes, EACH)
        self._nodes += 1
        self._require_room()
        return f"127.{self.block}.{-high % 256}.{1 + low}"

    def for_pod(self, pod: Object) -> str:
        """The one in its annotation, else the next."""
        wish = (pod["metadata"].get("annotations") or {}).get(WISH)
        if wish:
            return str(wish)
        high, low = divmod(self._pods, EACH)
        self._pods += 1
        self._require_room()
        return f"127.{self.block}.{1 + high}.{1 + low}"

    def _require_room(self) -> None:
        if max(1, ceil(self._nodes / EACH)) + ceil(self._pods / EACH) > 256:
            raise RuntimeError(f"all addresses of 127.{self.block}.0.0/16 are given: start a new bed")


def _claim() -> tuple[socket.socket, int]:
    """An abstract socket per block is the lock: the kernel releases it, however its owner ends."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    for block in random.sample(BLOCKS, len(BLOCKS)):
        with contextlib.suppress(OSError):
            lock.bind(f"\0resumable-bed-127.{block}")
            return lock, block
    raise RuntimeError("no free block of loopback addresses: too many beds on this machine")
