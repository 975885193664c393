"""The acts that make a checkpoint, on rank 0 alone: claim, then manifest, guard, marker. No torch.

Before the marker there is no checkpoint, after it there is one: it is created once, in one act.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from resumable_training.checkpoint.documents import seal
from resumable_training.checkpoint.errors import CheckpointError, StorageUnavailable, Superseded
from resumable_training.checkpoint.history import write_history
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import hash_bytes, structure_problem
from resumable_training.contract.manifest import MANIFEST_FILE, MARKER_FILE, FileEntry, Manifest
from resumable_training.contract.marker import parse_marker

Guard = Callable[[], None]  # raises if this attempt may not commit


def claim(store: Store, name: str, guard: Guard) -> None:
    """Make the directory of a checkpoint, which must not exist.

    Raises:
        Superseded: a newer attempt owns the store.
        StorageUnavailable: it could not be made.
    """
    moment("save.claim")
    guard()
    try:
        store.make_directory(name)
    except (Superseded, StorageUnavailable):
        raise
    except CheckpointError as error:  # there already, or no root to make it in
        raise StorageUnavailable(f"{store.location}: {error}") from error
    moment("save.claimed")


def commit(
    store: Store,
    name: str,
    manifest: Manifest,
    files: dict[str, FileEntry],
    marker: bytes,
    guard: Guard,
    history: tuple[str, ...] = (),
) -> tuple[int, str]:
    """Manifest, then marker, then the history.

    Returns the checkpoint's bytes (of all its files, as lists of a store have it), and why the history was
    not written, or "".

    Args:
        manifest: everything but its files and its time.
        marker: DCP's ``.metadata``.

    Raises:
        Superseded: a newer attempt has appeared while we wrote.
        StorageUnavailable: nothing was committed.
    """
    problem = structure_problem(parse_marker(marker))
    if problem is not None:
        raise StorageUnavailable(f"what was written is not whole: {problem.reason}")
    whole = replace(manifest, files={**files, MARKER_FILE: hash_bytes(marker)}, created=time.time())
    moment("save.manifest")
    document = seal(whole)
    store.create(f"{name}/{MANIFEST_FILE}", document)
    moment("save.guard")
    guard()
    moment("save.marker")
    store.create(f"{name}/{MARKER_FILE}", marker)
    moment("save.history")
    note = write_history(store, manifest.record, history)
    moment("save.committed")
    return len(document) + sum(entry.bytes for entry in whole.files.values()), note


def discard(store: Store, name: str) -> str:
    """What is left of a failed save is no checkpoint; if it can't be removed now, retention will.

    Returns what is to be added to the save's own error then, or "": a directory is never written twice, so
    that the step can't be saved again under this record.
    """
    try:
        store.delete(f"{name}/{MARKER_FILE}")  # there if its answer was lost: first, as in retention
        store.delete_tree(name)
    except CheckpointError as error:
        return f"; {name} could not be removed, and stands in the way of another save of that step: {error}"
    return ""
