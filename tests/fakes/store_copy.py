"""A checkpoint store in object storage as a directory, for what looks into directories."""

from __future__ import annotations

from pathlib import Path

from resumable_training.checkpoint.store import Store


def fetch(store: Store, target: Path) -> None:
    """Copy a whole store into a new directory."""
    target.mkdir(parents=True)
    for entry in store.entries():
        below = store.entries(entry.name) if entry.is_directory else []
        for one in below:
            (target / entry.name).mkdir(exist_ok=True)
            (target / entry.name / one.name).write_bytes(store.read(f"{entry.name}/{one.name}"))
        if not entry.is_directory:
            (target / entry.name).write_bytes(store.read(entry.name))
