"""Write one checkpoint so that it is complete or does not exist.

Shards first, each hashed by the rank that writes it; then the manifest, synced; then the marker, create-only,
as the single act that makes it a checkpoint. Any rank's error ends the save on all ranks before the marker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from resumable_training.checkpoint.documents import seal
from resumable_training.checkpoint.errors import (
    CheckpointError,
    StorageUnavailable,
    StoreExists,
    StoreNotFound,
    Superseded,
)
from resumable_training.checkpoint.files import StoreWriter, single_process_is_fine
from resumable_training.checkpoint.history import write_history
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.reports import SaveReport
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import hash_bytes, structure_problem
from resumable_training.contract.manifest import MANIFEST_FILE, MARKER_FILE, FileEntry, Manifest
from resumable_training.contract.marker import parse_marker


@dataclass(frozen=True)
class SaveTask:
    """One save, ready to be written. ``manifest`` has everything but its files."""

    name: str
    manifest: Manifest
    build: Callable[[], dict[str, Any]]  # the state dict; called at once, on the caller's thread
    guard: Callable[[], None]  # on rank 0, before and after writing: raises if we may not commit
    history: tuple[str, ...] = ()  # lines for reports, of rank 0; written after the commit


class Saver(Protocol):
    """How checkpoints get to the store. ``begin`` may return before the checkpoint is durable."""

    def begin(self, task: SaveTask) -> SaveReport:
        """Take the state as it is now. Raises Superseded; other errors of the store are in the report."""
        ...

    def wait(self) -> SaveReport | None:
        """Until nothing is in flight; the report of the last save, now final. None: there was none."""
        ...

    def in_flight(self) -> frozenset[str]:
        """Names of checkpoints that are being written."""
        ...


class SynchronousSaver:
    """Durable when ``begin`` returns."""

    def __init__(self, store: Store, ranks: Ranks) -> None:
        self._store = store
        self._ranks = ranks
        self._last: SaveReport | None = None

    def begin(self, task: SaveTask) -> SaveReport:
        started = time.monotonic()
        report = SaveReport(task.name, task.manifest.step, task.manifest.samples)
        claimed = False
        try:
            self._ranks.first(lambda: self._claim(task))
            claimed = True
            size, note = self._write_and_commit(task)
            report = replace(report, bytes=size, message=note)
        except Superseded:
            raise
        except (StorageUnavailable, StoreNotFound, StoreExists) as error:
            if claimed:
                self._ranks.first(lambda: self._remove(task.name))
            report = replace(report, ok=False, message=str(error))
        elapsed = round((time.monotonic() - started) * 1000)
        self._last = self._ranks.first(lambda: replace(report, blocking_ms=elapsed, durable_ms=elapsed))
        return self._last

    def wait(self) -> SaveReport | None:
        return self._last

    def in_flight(self) -> frozenset[str]:
        return frozenset()

    def _claim(self, task: SaveTask) -> None:
        task.guard()
        try:
            self._store.make_directory(task.name)
        except (Superseded, StorageUnavailable):
            raise
        except CheckpointError as error:  # there already, or no root to make it in
            raise StorageUnavailable(f"{self._store.location}: {error}") from error

    def _write_and_commit(self, task: SaveTask) -> tuple[int, str]:
        """Bytes written, and what ``commit`` has to say."""
        state_dict = self._ranks.together(task.build)
        writer = StoreWriter(self._store, task.name)
        write_shards(writer, state_dict, self._ranks)
        parts = self._ranks.gather(writer.files.written)
        files = {file: entry for part in parts for file, entry in part.items()}
        note = self._ranks.first(lambda: commit(self._store, task, files, writer.files.marker))
        return sum(entry.bytes for entry in files.values()), note

    def _remove(self, name: str) -> None:
        """What is left of a failed save is no checkpoint; if it can't be removed now, retention will."""
        try:
            self._store.delete(
                f"{name}/{MARKER_FILE}"
            )  # there if its answer was lost: first, as in retention
            self._store.delete_tree(name)
        except CheckpointError:
            return


def write_shards(writer: StoreWriter, state_dict: dict[str, Any], ranks: Ranks) -> None:
    """All shards of all ranks, synced.

    Raises:
        StorageUnavailable: on all ranks, when the store failed on any.
        RuntimeError: on all ranks, for any other error.
    """
    try:
        with single_process_is_fine():
            dcp_save(
                state_dict, storage_writer=writer, process_group=ranks.group, no_dist=ranks.group is None
            )
    except CheckpointException as error:
        raise storage_failure(error, "saving") from error


def storage_failure(error: CheckpointException, doing: str) -> Exception:
    """What DCP collected from all ranks, as one error of ours."""
    failures = {rank: failure for rank, (failure, _) in error.failures.items()}
    text = "; ".join(f"rank {rank}: {failure}" for rank, failure in sorted(failures.items()))
    if all(isinstance(failure, (OSError, CheckpointError)) for failure in failures.values()):
        return StorageUnavailable(f"{doing} failed on {text}")
    return RuntimeError(f"{doing} failed on {text}")


def commit(store: Store, task: SaveTask, files: dict[str, FileEntry], marker: bytes | None) -> str:
    """Manifest, then marker, then the history. Rank 0 alone. Returns why the history was not written, or "".

    Raises:
        Superseded: a newer attempt has appeared while we wrote.
        StorageUnavailable: nothing was committed.
    """
    assert marker is not None
    problem = structure_problem(parse_marker(marker))
    if problem is not None:
        raise StorageUnavailable(f"what was written is not whole: {problem.reason}")
    manifest = replace(
        task.manifest,
        files={**files, MARKER_FILE: hash_bytes(marker)},
        created=time.time(),
        torch_version=torch.__version__,
    )
    store.create(f"{task.name}/{MANIFEST_FILE}", seal(manifest))
    task.guard()
    store.create(f"{task.name}/{MARKER_FILE}", marker)
    return write_history(store, task.manifest.record, task.history)
