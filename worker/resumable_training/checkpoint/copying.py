"""Copy checkpoints between stores, whole and verified, or a whole store for a job that moves. No torch.

Shards go first, each compared with the manifest as it passes; then the manifest; then the marker, so that a
copy that was cut off is no checkpoint. The same call goes on with it: what is there and right stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.audit import Advance, verify_file
from resumable_training.checkpoint.errors import (
    DamagedCheckpoint,
    NoResumePoint,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    StoreNotFound,
)
from resumable_training.checkpoint.identity import read_identity
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK, BlockHasher
from resumable_training.contract.manifest import (
    BLOCK_BYTES,
    MANIFEST_FILE,
    MARKER_FILE,
    RECORDS_DIRECTORY,
    STORE_FILE,
    FileEntry,
    Manifest,
    StoreIdentity,
    record_name,
)
from resumable_training.contract.marker import parse_marker

THREADS = 4


@dataclass(frozen=True)
class Copied:
    """One checkpoint. ``bytes`` were copied now, ``there`` were there already and are right."""

    checkpoint: str
    bytes: int
    there: int


class _Interrupted(Exception):
    """Another file's copy has failed, or the user has had enough."""


@dataclass
class _Way:
    """From where to where, and whether to go on."""

    source: Store
    target: Store
    name: str
    there: str  # its name at the target
    block_bytes: int
    advance: Advance
    stop: threading.Event


def copy_checkpoint(
    source: Store,
    name: str,
    target: Store,
    *,
    foreign: bool = False,
    advance: Advance = lambda count: None,
    threads: int = THREADS,
) -> Copied:
    """Copy one complete checkpoint under its own name, without the directories above it.

    Args:
        foreign: it may be another program's, without manifest: then nothing vouches for its bytes.
        advance: called with each number of bytes that is done, on other threads.

    Raises:
        DamagedCheckpoint: the source is; says how.
        StoreMisconfigured: the target is another job's store, whose checkpoints these would be taken for; or
            this job's own without the record that it was made under.
        StoreExists: something else has that name there.
        StorageUnavailable: one of them can't be read or written; the same call goes on.
    """
    looked = verify.inspect(source, name, foreign=foreign)
    if looked.verdict.outcome == verify.CANNOT_TELL:
        raise StorageUnavailable(f"{source.location}/{name}: {looked.verdict.reason}")
    if looked.verdict.outcome == verify.DAMAGED:
        raise DamagedCheckpoint(name, looked.verdict.reason)
    target.prepare_root()
    _require_fit(source, target, looked.manifest)
    as_name = name.rpartition("/")[2]
    _claim(target, as_name, looked.marker)
    block_bytes = looked.manifest.block_bytes if looked.manifest else BLOCK_BYTES
    way = _Way(source, target, name, as_name, block_bytes, advance, threading.Event())
    files = _files(source, name, looked)
    copied, there = _copy_files(way, files, threads)
    _require_there(target, as_name, files)
    if looked.manifest is not None:  # what a copy that was cut off has left of it is replaced
        target.put(f"{as_name}/{MANIFEST_FILE}", source.read(f"{name}/{MANIFEST_FILE}"))
    _create_marker(target, as_name, looked.marker)
    return Copied(as_name, copied, there)


def _require_fit(source: Store, target: Store, manifest: Manifest | None) -> None:
    """A checkpoint means something only beside the record that it was made under.

    That one record is not copied along: without those before it the chain would end there, and a job that
    has gone on in the target has its own of that number.
    """
    identity = read_identity(target)
    if identity is None:
        return
    if manifest is not None and manifest.store_id == identity.store_id:
        _require_record(source, target, manifest.record)
        return
    raise StoreMisconfigured(
        f"{target.location} is the store of job {identity.owner}: a checkpoint of another job there could"
        " be taken for one of its own. Copy it to a place beside, and name it by resumeFrom"
    )


def _require_record(source: Store, target: Store, number: int) -> None:
    path = f"{RECORDS_DIRECTORY}/{record_name(number)}"
    try:
        there = target.read(path)
    except StoreNotFound:
        raise StoreMisconfigured(
            f"{target.location} is this job's store, and lacks record {number}: without its record no job"
            " resumes a checkpoint there. Copy with --all, or to a place beside"
        ) from None
    try:
        same = source.read(path) == there
    except StoreNotFound:  # a copy without records: its manifest names the store and the number
        same = True
    if not same:
        raise StoreMisconfigured(
            f"{target.location}/{path} is another record: a job has gone on there, and would take the"
            " checkpoint for its own. Copy to a place beside, and name it by resumeFrom"
        )


def _claim(target: Store, name: str, marker: bytes) -> None:
    """A directory of our own, or one in which such a copy was cut off."""
    try:
        target.make_directory(name)
    except StoreExists:
        try:
            there = target.read(f"{name}/{MARKER_FILE}")
        except StoreNotFound:
            return
        if there != marker:
            raise StoreExists(f"{target.location}/{name} is another checkpoint") from None


def _files(source: Store, name: str, looked: verify.Inspection) -> dict[str, FileEntry | int]:
    """What to copy before manifest and marker: what it must be, or of another program's its size."""
    if looked.manifest is not None:
        entries: dict[str, FileEntry | int] = dict(looked.manifest.files)
    else:
        entries = {entry.name: entry.bytes for entry in source.entries(name) if not entry.is_directory}
        entries.update(_needed(source, name, looked.marker))
    return {file: entry for file, entry in sorted(entries.items()) if file != MARKER_FILE}


def _needed(source: Store, name: str, marker: bytes) -> dict[str, int]:
    """Sizes of the files that a marker names, also of those further down."""
    needed = parse_marker(marker).needed_bytes()
    return {file: source.size(f"{name}/{file}") or least for file, least in needed.items()}


def _require_there(target: Store, name: str, files: dict[str, FileEntry | int]) -> None:
    """That all are there at once: another copy of the same may have taken one for a leftover.

    Raises:
        StorageUnavailable: it has; the same call goes on.
    """
    for file, entry in files.items():
        size = entry.bytes if isinstance(entry, FileEntry) else entry
        if target.size(f"{name}/{file}") != size:
            raise StorageUnavailable(_two_at_once(target, f"{name}/{file}"))


def _two_at_once(target: Store, path: str) -> str:
    return (
        f"{target.location}/{path} is changed by somebody else: is another copy of it being made?"
        " When that has ended, the same command goes on"
    )


def _copy_files(way: _Way, files: dict[str, FileEntry | int], threads: int) -> tuple[int, int]:
    """Bytes that were copied, and bytes that were there."""
    with ThreadPoolExecutor(threads, thread_name_prefix="copy") as pool:
        started = [pool.submit(_copy_file, way, file, entry) for file, entry in files.items()]
        try:
            done = [one.result() for one in started]
        except BaseException:
            way.stop.set()
            for one in started:
                one.cancel()
            raise
    return sum(size for size, new in done if new), sum(size for size, new in done if not new)


def _copy_file(way: _Way, file: str, entry: FileEntry | int) -> tuple[int, bool]:
    """Its bytes, and whether they had to be copied."""
    wanted = entry if isinstance(entry, FileEntry) else None
    size = entry.bytes if isinstance(entry, FileEntry) else entry
    path = f"{way.there}/{file}"
    there = way.target.size(path)
    if there == size and _is_right(way, file, wanted):
        return size, False
    if there is not None:
        way.target.delete(path)
    found = _stream(way, file, size)
    if wanted is not None and found != wanted:
        way.target.delete(path)
        found = _stream(way, file, size)
    if wanted is not None and found != wanted:  # two reads of it were wrong
        way.target.delete(path)
        difference = verify.difference(file, wanted, found, way.block_bytes)
        raise DamagedCheckpoint(way.name, difference)
    return size, True


def _is_right(way: _Way, file: str, wanted: FileEntry | None) -> bool:
    """Whether what is there is what would be copied. Without a manifest both are read."""
    if wanted is None:
        hasher = BlockHasher(way.block_bytes)
        with way.source.open_read(f"{way.name}/{file}") as stream:
            while data := stream.read(way.block_bytes):
                hasher.update(data)
        wanted = hasher.entry()
    path = f"{way.there}/{file}"
    verdict = verify_file(way.target, path, wanted, way.block_bytes, way.advance, way.stop)
    if verdict.outcome == verify.CANNOT_TELL:
        raise StorageUnavailable(f"{way.target.location}/{path}: {verdict.reason}")
    return verdict.outcome == OK


def _stream(way: _Way, file: str, size: int) -> FileEntry:
    hasher = BlockHasher(way.block_bytes)
    path = f"{way.there}/{file}"
    reading, writing = way.source.open_read(f"{way.name}/{file}"), way.target.open_write(path, size)
    try:
        with reading as reader, writing as writer:
            while data := reader.read(way.block_bytes):
                if way.stop.is_set():
                    raise _Interrupted
                writer.write(data)
                hasher.update(data)
                way.advance(len(data))
    except StoreExists as error:  # it was not, a moment ago
        raise StorageUnavailable(_two_at_once(way.target, path)) from error
    return hasher.entry()


def _create_marker(target: Store, name: str, marker: bytes) -> None:
    try:
        target.create(f"{name}/{MARKER_FILE}", marker)
    except StoreExists:
        if target.read(f"{name}/{MARKER_FILE}") != marker:
            raise


# ---- a whole store -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """A store as it is at the target now: usable by its job in place of the other. Names newest first.

    ``damaged``: name -> how, of those on the chain that are, and were left out. ``off_chain``: complete ones
    that are not on the chain, and stay behind.
    """

    owner: str
    records: int
    checkpoints: tuple[Copied, ...]
    damaged: dict[str, str] = field(default_factory=dict)
    off_chain: tuple[str, ...] = ()


def copy_store(
    source: Store,
    target: Store,
    *,
    tell: Callable[[Copied], None] = lambda copied: None,
    advance: Advance = lambda count: None,
    threads: int = THREADS,
    hold: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
) -> Moved:
    """Identity, records, and all complete checkpoints on the chain, the newest first.

    Records go before checkpoints: a job that begins there too early knows that something is missing, and does
    not start from nothing. What the job's retention takes meanwhile is left out.

    Args:
        hold: for the length of a block no checkpoint of that name is deleted.

    Raises:
        StoreMisconfigured: the source is no store of this library's, or the target another one, or one that
            a job has gone on in.
        StorageUnavailable, StoreExists: as for ``copy_checkpoint``.
    """
    identity = read_identity(source)
    if identity is None:
        raise StoreMisconfigured(f"{source.location} is no store of this library's: it has no {STORE_FILE}")
    seen = survey(source)
    target.prepare_root()
    _copy_identity(source, target, identity)
    _copy_records(source, target)
    done, damaged = [], {}
    for name in seen.resume_points:
        try:
            with hold(name):
                done.append(copy_checkpoint(source, name, target, advance=advance, threads=threads))
        except NoResumePoint as error:
            if source.size(f"{name}/{MARKER_FILE}") is not None:
                damaged[name] = error.reason if isinstance(error, DamagedCheckpoint) else str(error)
            continue
        tell(done[-1])
    off_chain = tuple(name for name in seen.complete if not seen.chain.contains(name))
    return Moved(identity.owner, len(seen.records), tuple(done), damaged, off_chain)


def _copy_identity(source: Store, target: Store, identity: StoreIdentity) -> None:
    there = read_identity(target)
    if there is not None and there.store_id != identity.store_id:
        raise StoreMisconfigured(f"{target.location} is already the store of job {there.owner}")
    if there is None:
        target.create(STORE_FILE, source.read(STORE_FILE))
    try:
        target.make_directory(RECORDS_DIRECTORY)
    except StoreExists:
        return


def _copy_records(source: Store, target: Store) -> None:
    names = {entry.name for entry in source.entries(RECORDS_DIRECTORY)}
    there = {entry.name for entry in target.entries(RECORDS_DIRECTORY)}
    if there - names:
        raise StoreMisconfigured(
            f"{target.location} has records that {source.location} has not: a job has gone on there"
        )
    for name in sorted(names):
        path = f"{RECORDS_DIRECTORY}/{name}"
        data = source.read(path)
        if name not in there:
            target.create(path, data)
        elif target.read(path) != data:
            raise StoreMisconfigured(f"{target.location}/{path} is another record")
