"""A resume point outside the job's own store: one checkpoint, or the newest of another store. No torch."""

from __future__ import annotations

from resumable_training.checkpoint.errors import NoResumePoint
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_checkpoint, open_store
from resumable_training.checkpoint.wanted import choices
from resumable_training.contract.manifest import MARKER_FILE, STORE_FILE, parse_checkpoint_name


def located(text: str, own: Store) -> str:
    """Where a wish leads to: a name in the job's ``own`` store, else the path or URL of one checkpoint.

    Asked once, on one rank, and the answer is recorded: the other job may go on saving.

    Raises:
        NoResumePoint: the other store holds nothing to resume from.
        StoreMisconfigured: there is no store for such an URL.
        StorageUnavailable: cannot tell.
    """
    if parse_checkpoint_name(text):
        return text
    store = open_store(text)
    if store.size(MARKER_FILE) is None and store.size(STORE_FILE) is not None:
        seen = survey(store)
        if not seen.resume_points:
            raise NoResumePoint(f"resumeFrom: the store {store.location} has none. {choices(seen)}")
        return _named(store, seen.resume_points[0], own)
    return _named(*open_checkpoint(text), own)


def _named(store: Store, name: str, own: Store) -> str:
    """Of one's own store only the name is kept: by a path the chain would end there."""
    if store.location == own.location and parse_checkpoint_name(name):
        return name
    return f"{store.location}/{name}"
