"""What lies beside the shards: manifest, record and store identity, as dataclasses and file names.

::

    <root>/store.json                          StoreIdentity
    <root>/records/00000007.json               Record 7, created exactly once
    <root>/step-00001200.7/                    checkpoint of step 1200 by the attempt with record 7
        __0_0.distcp ...                       DCP's own shards
        manifest.json                          Manifest, written and synced before the marker
        .metadata                              DCP's own; committed last: the marker
    <root>/pins/<name>.json                    checkpoints a reader holds
    <root>/history/00000007.jsonl              what record 7's attempt did, for reports
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

STORE_FILE = "store.json"
RECORDS_DIRECTORY = "records"
PINS_DIRECTORY = "pins"
MANIFEST_FILE = "manifest.json"
MARKER_FILE = ".metadata"
HASH_ALGORITHM = "xxh3_128"
BLOCK_BYTES = 8 * 1024 * 1024

_CHECKPOINT = re.compile(r"step-([0-9]{8,18})\.([0-9]{1,18})")  # numbers that fit everywhere
_RECORD = re.compile(r"([0-9]{8,18})\.json")


def checkpoint_name(step: int, record: int) -> str:
    """``step-00001200.7``."""
    return "step-%08d.%d" % (step, record)


def parse_checkpoint_name(name: str) -> Optional[Tuple[int, int]]:
    """(step, record), or None for any other name: ``step-00000100.7.tmp`` is not a checkpoint.

    There is one name for each: ``step-000000100.7`` is another program's.
    """
    match = _CHECKPOINT.fullmatch(name)
    parsed = (int(match[1]), int(match[2])) if match else None
    return parsed if parsed and checkpoint_name(*parsed) == name else None


def record_name(seq: int) -> str:
    """``00000007.json``."""
    return "%08d.json" % seq


def parse_record_name(name: str) -> Optional[int]:
    match = _RECORD.fullmatch(name)
    return int(match[1]) if match and record_name(int(match[1])) == name else None


@dataclass(frozen=True)
class FileEntry:
    """One shard file. ``blocks``: hash of each ``BLOCK_BYTES``, so that a partial read verifies too."""

    bytes: int
    hash: str
    blocks: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """Everything about a checkpoint that is known when it is complete."""

    store_id: str
    record: int
    step: int
    samples: int  # data position, in samples
    world_size: int
    files: Dict[str, FileEntry]  # relative name -> entry; the marker is in it too
    algorithm: str = HASH_ALGORITHM
    block_bytes: int = BLOCK_BYTES
    created: float = 0.0  # wall clock, for people
    attempt: int = 0
    torch_version: str = ""
    data_fingerprint: Dict[str, Any] = field(default_factory=dict)
    blocking_ms: int = 0  # cost of the previous save, for the interval
    durable_ms: int = 0
    version: int = 1


@dataclass(frozen=True)
class Record:
    """Who trains from where: appended by rank 0 after a verified load and before its first step."""

    seq: int
    job_uid: str
    attempt: int
    parent: Optional[
        str
    ]  # directory name (or path, for a foreign checkpoint) it resumed from; None: from nothing
    parent_step: int = 0
    parent_samples: int = 0
    nonce: str = ""  # tells one's own retried create from another writer's
    deliberate: bool = False  # a rollback or resumeFrom by the user
    requested: Optional[str] = None  # resumeFrom in force; the same wish of a job is granted once
    created: float = 0.0
    by_hand: bool = False  # of a person who rolled back: no attempt has verified the parent or trained yet


@dataclass(frozen=True)
class StoreIdentity:
    """Content of ``store.json``. ``owner`` is "namespace/name" of the job."""

    store_id: str
    owner: str
    created: float = 0.0
    version: int = 1
