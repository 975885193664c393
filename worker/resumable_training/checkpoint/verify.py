"""Prove that a checkpoint is whole, or that it is damaged, or admit that neither can be told.

Three verdicts, exactly: ``ok``, ``damaged`` (with proof: bytes that differ, or a file still missing after
the listing was repeated), ``cannot_tell`` (an error of the store). Only proof lets a resume fall back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from resumable_training.checkpoint.blocks import Blocks, Place, in_order
from resumable_training.checkpoint.documents import DamagedDocument, unseal
from resumable_training.checkpoint.errors import CheckpointError, StoreNotFound
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import (
    BLOCK_BYTES,
    HASH_ALGORITHM,
    MANIFEST_FILE,
    MARKER_FILE,
    STORE_FILE,
    FileEntry,
    Manifest,
    StoreIdentity,
    parse_checkpoint_name,
)
from resumable_training.contract.marker import DamagedMarker, Marker, parse_marker, plain_name

OK = "ok"
DAMAGED = "damaged"
CANNOT_TELL = "cannot_tell"
LARGEST_BLOCK = 1 << 30  # a reader holds several of them
LARGEST_NUMBER = (1 << 63) - 1

Block = tuple[str, int]  # file, first byte of the block in it


@dataclass(frozen=True)
class Verdict:
    outcome: str  # OK, DAMAGED or CANNOT_TELL
    reason: str = ""
    block: Block | None = None  # the one that differs, when a read of it showed the damage


def damaged(reason: str) -> Verdict:
    return Verdict(DAMAGED, reason)


def cannot_tell(reason: object) -> Verdict:
    return Verdict(CANNOT_TELL, str(reason))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict of many: proof of damage outweighs doubt, doubt outweighs ok."""
    order = (DAMAGED, CANNOT_TELL, OK)
    return min(verdicts, key=lambda verdict: order.index(verdict.outcome), default=Verdict(OK))


class BlockHasher:
    """Hash of a stream, per block and in all, while it is written."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._whole = xxhash.xxh3_128()
        self._block = xxhash.xxh3_128()
        self._in_block = 0
        self._bytes = 0
        self._blocks: list[str] = []

    def update(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._whole.update(view)
        self._bytes += len(view)
        while view:
            part = view[: self._block_bytes - self._in_block]
            self._block.update(part)
            self._in_block += len(part)
            view = view[len(part) :]
            if self._in_block == self._block_bytes:
                self._close_block()

    def _close_block(self) -> None:
        self._blocks.append(self._block.hexdigest())
        self._block.reset()
        self._in_block = 0

    def entry(self) -> FileEntry:
        """What the manifest says about the file, once all of it was passed in."""
        blocks = [*self._blocks, self._block.hexdigest()] if self._in_block else self._blocks
        return FileEntry(self._bytes, self._whole.hexdigest(), tuple(blocks))


def hash_bytes(data: bytes, block_bytes: int = BLOCK_BYTES) -> FileEntry:
    """Manifest entry of bytes at hand."""
    hasher = BlockHasher(block_bytes)
    hasher.update(data)
    return hasher.entry()


@dataclass(frozen=True)
class Inspection:
    """What is known without reading shards: marker and manifest are right, every file has its size."""

    verdict: Verdict
    marker: bytes = b""
    manifest: Manifest | None = None  # None for a checkpoint that another program wrote


def inspect(store: Store, name: str, *, foreign: bool = False) -> Inspection:
    """Check marker, manifest and sizes of a checkpoint.

    ``foreign``: a manifest may be missing (another program's DCP directory); then the structure alone is
    checked. In our own store a missing manifest is damage, since it is synced before the marker.
    """
    try:
        return _inspect(store, name, foreign)
    except StoreNotFound as error:
        return Inspection(damaged(f"still missing after the listing was repeated: {error}"))
    except CheckpointError as error:
        return Inspection(cannot_tell(error))


def _inspect(store: Store, name: str, foreign: bool) -> Inspection:
    marker = _read_patiently(store, f"{name}/{MARKER_FILE}")
    try:
        document = _read_patiently(store, f"{name}/{MANIFEST_FILE}", once=foreign)
    except StoreNotFound:
        if not foreign:
            raise
        return Inspection(_verify_structure(store, name, marker), marker)
    try:
        manifest = unseal(Manifest, document)
    except DamagedDocument as error:
        return Inspection(damaged(f"{MANIFEST_FILE}: {error}"), marker)
    if manifest.algorithm != HASH_ALGORITHM:
        return Inspection(cannot_tell(f"unknown hash algorithm {manifest.algorithm}"), marker, manifest)
    store_id = "" if foreign or parse_checkpoint_name(name) is None else store_id_of(store)
    lie = contradiction(name, manifest, store_id)
    if lie:
        return Inspection(damaged(f"{MANIFEST_FILE}: {lie}"), marker, manifest)
    if manifest.files.get(MARKER_FILE) != hash_bytes(marker, manifest.block_bytes):
        return Inspection(damaged(f"{MARKER_FILE} is not the one that was committed"), marker, manifest)
    sizes = {file: entry.bytes for file, entry in manifest.files.items()}
    return Inspection(_verify_sizes(store, name, sizes, exact=True), marker, manifest)


def contradiction(name: str, manifest: Manifest, store_id: str) -> str:
    """What in a manifest can't be true of the checkpoint of that name, whoever has sealed it; or "". Pure.

    The chain goes by names: a directory that somebody has renamed, or copied out of another job's store,
    would be taken for a checkpoint of this job.

    Args:
        store_id: of the store that it lies in; empty: of none, or one that may hold anybody's.
    """
    numbers = (manifest.step, manifest.samples, manifest.world_size, manifest.record, manifest.attempt)
    if not all(0 <= number <= LARGEST_NUMBER for number in numbers) or not 0 <= manifest.created < 1e11:
        return "its numbers can't be"
    named = parse_checkpoint_name(name.rpartition("/")[2])
    if named is not None and named != (manifest.step, manifest.record):
        return f"it is of step {manifest.step} and record {manifest.record}, under another name"
    if store_id and manifest.store_id != store_id:
        return f"it was written in another store ({manifest.store_id}), not in this one ({store_id})"
    return _impossible_files(manifest)


def _impossible_files(manifest: Manifest) -> str:
    if not 0 < manifest.block_bytes <= LARGEST_BLOCK:
        return f"blocks of {manifest.block_bytes} bytes"
    for file, entry in sorted(manifest.files.items()):
        if not plain_name(file):
            return f"it names a file outside the checkpoint: {file!r}"
        blocks = -(-entry.bytes // manifest.block_bytes)
        if not 0 <= entry.bytes <= LARGEST_NUMBER:
            return f"the size of {file} can't be"
        if len(entry.blocks) != blocks:
            return f"{len(entry.blocks)} hashes for the {blocks} blocks of {file}"
    return ""


def store_id_of(store: Store) -> str:
    """Of a job's store; empty: it is a directory of copies, or its identity is damaged (see ``identity``)."""
    try:
        return unseal(StoreIdentity, store.read(STORE_FILE)).store_id
    except (StoreNotFound, DamagedDocument):
        return ""


def _verify_structure(store: Store, name: str, data: bytes) -> Verdict:
    try:
        marker = parse_marker(data)
    except DamagedMarker as error:
        return damaged(f"{MARKER_FILE}: {error}")
    return structure_problem(marker) or _verify_sizes(store, name, marker.needed_bytes(), exact=False)


def structure_problem(marker: Marker) -> Verdict | None:
    """Damage that the marker shows by itself, or None."""
    gap = marker.gap()
    outside = marker.outside()
    if outside is not None:
        return damaged(f"{MARKER_FILE} names a file outside the checkpoint: {outside}")
    return damaged(f"{MARKER_FILE}: {gap}") if gap else None


def _verify_sizes(store: Store, name: str, sizes: dict[str, int], *, exact: bool) -> Verdict:
    """One listing for all. What it lacks or has in another size is asked for by itself: it may be old."""
    listed = {entry.name: entry.bytes for entry in store.entries(name) if not entry.is_directory}
    for file, wanted in sorted(sizes.items()):
        if listed.get(file, -1) == wanted or (not exact and listed.get(file, -1) > wanted):
            continue
        found = _size_patiently(store, f"{name}/{file}")
        if found is None:
            return damaged(f"{file} is missing")
        if found < wanted or (exact and found != wanted):
            return damaged(f"{file} has {found} bytes, not {wanted}")
    return Verdict(OK)


def _read_patiently(store: Store, name: str, *, once: bool = False) -> bytes:
    for _ in _tries(0.0 if once else store.visibility_seconds):
        try:
            return store.read(name)
        except StoreNotFound:
            continue
    raise StoreNotFound(name)


def _size_patiently(store: Store, name: str) -> int | None:
    for _ in _tries(store.visibility_seconds):
        found = store.size(name)
        if found is not None:
            return found
        store.entries(name.rpartition("/")[0])  # over NFS: makes the client ask the server again
    return None


def _tries(seconds: float) -> Iterator[None]:
    """At least one try, then more until ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    pause = 0.05
    yield
    while time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(pause * 2, 1.0)
        yield


def blocks_of(manifest: Manifest) -> Blocks:
    """The blocks of all files that a manifest vouches for, but for the marker, which ``inspect`` compares."""
    files = {file: entry for file, entry in manifest.files.items() if file != MARKER_FILE}
    return Blocks(
        {file: entry.bytes for file, entry in files.items()},
        manifest.block_bytes,
        {file: entry.blocks for file, entry in files.items()},
    )


def read_block(store: Store, name: str, place: Place) -> tuple[bytes, Verdict]:
    """One block of a checkpoint, and whether it is what was written."""
    try:
        data = store.read(f"{name}/{place.file}", place.at, place.length)
    except CheckpointError as error:  # also a file that this machine does not see: others may
        return b"", cannot_tell(error)
    verdict = _judged(place, data, len(data))
    return data if verdict.outcome == OK else b"", verdict


def read_block_into(store: Store, name: str, place: Place, where: memoryview) -> Verdict:
    """As ``read_block``, into memory that is there, as long as the block."""
    try:
        return _judged(place, where, store.read_into(f"{name}/{place.file}", place.at, where))
    except CheckpointError as error:
        return cannot_tell(error)


def _judged(place: Place, data: bytes | memoryview, came: int) -> Verdict:
    if came != place.length:  # its size was right a moment ago
        return cannot_tell(f"{place.file}: {came} bytes came from {place.at} on")
    if place.hash and xxhash.xxh3_128_hexdigest(data) != place.hash:
        reason = f"{place.file}: {not_written(came, place.at)}"
        return Verdict(DAMAGED, reason, (place.file, place.at))
    return Verdict(OK)


def verify_whole_files(store: Store, name: str, manifest: Manifest) -> Verdict:
    """Compare the hash of each file in one pass, as an auditor with another tool would."""
    sizes = {file: entry.bytes for file, entry in manifest.files.items()}

    def read(place: Place) -> bytes:
        return store.read(f"{name}/{place.file}", place.at, place.length)

    hashers = {file: BlockHasher(manifest.block_bytes) for file in sizes}
    try:
        for place, data in in_order(read, Blocks(sizes, manifest.block_bytes).places):
            hashers[place.file].update(data)
    except StoreNotFound as error:
        return damaged(str(error))
    except CheckpointError as error:
        return cannot_tell(error)
    for file, wanted in sorted(manifest.files.items()):
        if (found := hashers[file].entry()) != wanted:
            return damaged(difference(file, wanted, found, manifest.block_bytes))
    return Verdict(OK)


def difference(file: str, wanted: FileEntry, found: FileEntry, block_bytes: int) -> str:
    """How a file is not what the manifest says, and where."""
    if wanted.bytes != found.bytes:
        return f"{file} has {found.bytes} bytes, not {wanted.bytes}"
    pairs = enumerate(zip(wanted.blocks, found.blocks, strict=False))
    number = next((number for number, (one, other) in pairs if one != other), None)
    if number is None:
        return f"{file} is not what was written, as a whole"
    at = number * block_bytes
    return f"{file}: {not_written(min(block_bytes, wanted.bytes - at), at)}"


def not_written(length: int, at: int) -> str:
    """Where in a file bytes differ, as every reader says it."""
    return f"the {length} bytes from {at} on are not those that were written"


def verify_checkpoint(store: Store, name: str, *, foreign: bool = False) -> Verdict:
    """Everything about one checkpoint, by one process. Reads every byte that a manifest vouches for."""
    inspection = inspect(store, name, foreign=foreign)
    if inspection.verdict.outcome != OK or inspection.manifest is None:
        return inspection.verdict
    return verify_whole_files(store, name, inspection.manifest)
