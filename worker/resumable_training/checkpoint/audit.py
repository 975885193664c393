"""Verify many checkpoints at once, file by file, on threads: xxh3 and reads let others run. No torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.errors import CheckpointError, StoreNotFound
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK, BlockHasher, Verdict, cannot_tell, damaged
from resumable_training.contract.manifest import FileEntry

MOST_THREADS = 8
_AT_ONCE = 16  # checkpoints whose manifests are in memory together

Advance = Callable[[int], None]  # so many bytes more were read


@dataclass(frozen=True)
class Target:
    """One complete checkpoint. ``foreign``: another program's, without our manifest."""

    store: Store
    name: str
    step: int | None
    foreign: bool


def default_threads() -> int:
    """More than there are processors: half of the time is the store's."""
    return min(MOST_THREADS, 2 * (os.cpu_count() or 1))


def audit(
    targets: Sequence[Target],
    tell: Callable[[Target, Verdict], None],
    *,
    threads: int | None = None,
    advance: Advance = lambda count: None,
) -> list[Verdict]:
    """Read every byte that a manifest vouches for; ``tell`` gets each verdict, in order, when it is known.

    ``advance`` is called on other threads.
    """
    verdicts: list[Verdict] = []
    stop = threading.Event()
    with ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="verify") as pool:
        try:
            for start in range(0, len(targets), _AT_ONCE):
                batch = targets[start : start + _AT_ONCE]
                looked = pool.map(lambda t: verify.inspect(t.store, t.name, foreign=t.foreign), batch)
                started = [
                    _start(pool, t, look, advance, stop) for t, look in zip(batch, looked, strict=True)
                ]
                for target, files in zip(batch, started, strict=True):
                    verdicts.append(verify.worst(file.result() for file in files))
                    tell(target, verdicts[-1])
        except BaseException:
            stop.set()  # an interrupt need not wait for a file of a hundred gigabytes
            raise
    return verdicts


def _start(
    pool: ThreadPoolExecutor,
    target: Target,
    looked: verify.Inspection,
    advance: Advance,
    stop: threading.Event,
) -> list[Future[Verdict]]:
    if looked.verdict.outcome != OK or looked.manifest is None:
        known: Future[Verdict] = Future()
        known.set_result(looked.verdict)
        return [known]
    block_bytes = looked.manifest.block_bytes
    return [
        pool.submit(verify_file, target.store, f"{target.name}/{file}", wanted, block_bytes, advance, stop)
        for file, wanted in sorted(looked.manifest.files.items())
    ]


def verify_file(
    store: Store,
    path: str,
    wanted: FileEntry,
    block_bytes: int,
    advance: Advance = lambda count: None,
    stop: threading.Event | None = None,
) -> Verdict:
    """Compare the hash of one file in one pass, as an auditor with another tool would."""
    hasher = BlockHasher(block_bytes)
    try:
        with store.open_read(path) as stream:
            while data := stream.read(block_bytes):
                hasher.update(data)
                advance(len(data))
                if stop is not None and stop.is_set():
                    return cannot_tell("interrupted")
    except StoreNotFound as error:
        return damaged(str(error))
    except CheckpointError as error:
        return cannot_tell(error)
    found = hasher.entry()
    if found == wanted:
        return Verdict(OK)
    return damaged(verify.difference(path.rpartition("/")[2], wanted, found, block_bytes))
