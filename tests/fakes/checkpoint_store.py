"""A checkpoint store on disk, made without torch."""

from __future__ import annotations

from pathlib import Path

from resumable_training.checkpoint.documents import seal
from resumable_training.checkpoint.verify import hash_bytes
from resumable_training.contract.manifest import (
    MANIFEST_FILE,
    MARKER_FILE,
    RECORDS_DIRECTORY,
    Manifest,
    Record,
    StoreIdentity,
    checkpoint_name,
    record_name,
)


class Store:
    """The marker is any bytes that the manifest vouches for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / RECORDS_DIRECTORY).mkdir(parents=True)
        (root / "store.json").write_bytes(seal(StoreIdentity("s-1", "local/train")))

    def record(self, seq: int, parent: str | None = None, requested: str | None = None) -> None:
        record = Record(seq=seq, job_uid="u-1", attempt=seq, parent=parent, requested=requested)
        (self.root / RECORDS_DIRECTORY / record_name(seq)).write_bytes(seal(record))

    def save(self, step: int, record: int, complete: bool = True) -> Path:
        directory = self.root / checkpoint_name(step, record)
        directory.mkdir()
        files = {"__0_0.distcp": b"weights" * 1000, MARKER_FILE: b"marker"}
        manifest = Manifest(
            store_id="s-1",
            record=record,
            step=step,
            samples=step * 16,
            world_size=3,
            files={name: hash_bytes(data) for name, data in files.items()},
            attempt=record,
        )
        (directory / MANIFEST_FILE).write_bytes(seal(manifest))
        for name, data in files.items():
            if complete or name != MARKER_FILE:
                (directory / name).write_bytes(data)
        return directory


def branched(root: Path) -> Store:
    """Attempt 1 saved 10, 20 and 30; attempt 2 went on from 20 and saved 25."""
    made = Store(root)
    made.record(1)
    for step in (10, 20, 30):
        made.save(step, 1)
    made.record(2, parent=checkpoint_name(20, 1))
    made.save(25, 2)
    return made


def flip_a_bit(directory: Path) -> None:
    """Same size, same name, other bytes."""
    shard = directory / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[3000] ^= 1
    shard.write_bytes(data)
