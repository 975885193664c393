"""The few operations a checkpoint store must offer, so that an object store fits as well as a directory.

Names are relative and separated by ``/`` ("step-00001200.7/manifest.json"). Every operation that fails for
any other reason than the two named errors raises StorageUnavailable: "cannot tell".
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class Entry:
    """One thing directly below a directory of the store."""

    name: str  # last part only
    bytes: int
    modified: float  # wall clock, seconds
    is_directory: bool


@dataclass(frozen=True)
class Advice:
    """What to tell a user whose store can't hold checkpoints: whole sentences, by what is wrong."""

    writable: str
    shared: str
    create_only: str


class Store(Protocol):
    """A checkpoint store. What a call wrote is durable when it returns."""

    @property
    def visibility_seconds(self) -> float:
        """How late another machine may see a new name; a missing one is looked for so long."""
        ...

    @property
    def advice(self) -> Advice: ...

    def prepare_root(self) -> None:
        """Make the root where that is a store's own business; called by preflight and by copies."""
        ...

    @property
    def location(self) -> str:
        """Path or address, for messages."""
        ...

    def entries(self, directory: str = "") -> list[Entry]:
        """What lies directly below ``directory``, sorted by name; empty when there is no such directory."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file; None when it does not exist, or is none (a directory)."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Content of a file, or ``length`` bytes of it; fewer at its end. Raises StoreNotFound."""
        ...

    def read_into(self, name: str, offset: int, place: memoryview) -> int:
        """Fill ``place`` from ``offset`` of a file on; how many bytes came, fewer at its end.

        Raises StoreNotFound.
        """
        ...

    def create(self, name: str, data: bytes) -> None:
        """Write a file that must not exist, all at once or not at all. Raises StoreExists.

        Where an answer can be lost, the same bytes that are there already count as written by this call: so
        ``data`` must tell its writer.
        """
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write or replace a file, all at once."""
        ...

    def make_directory(self, name: str) -> None:
        """Claim a new directory. Raises StoreExists when anything has that name."""
        ...

    def delete(self, name: str) -> None:
        """Remove one file; nothing happens when it does not exist."""
        ...

    def delete_tree(self, name: str) -> None:
        """Remove a directory and all below it; nothing happens when it does not exist."""
        ...

    def open_write(self, name: str, expected_bytes: int = 0) -> AbstractContextManager[BinaryIO]:
        """Stream into a new file of a claimed directory; durable at the end. Raises StoreExists.

        ``expected_bytes``: about how long it will be, for a store that must plan its requests.
        """
        ...

    def open_read(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A seekable stream over a file. Raises StoreNotFound."""
        ...
