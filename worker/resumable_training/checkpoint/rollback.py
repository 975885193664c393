"""Go back to an older checkpoint on purpose: one more record, whose parent it is.

The next attempt sees the chain begin there and goes on from it; no byte is deleted, so until retention takes
the branch that was left, going back to its newest checkpoint (by name) undoes it. Nobody may train meanwhile:
an attempt that does is superseded by the new record, and its next save ends it.
"""

from __future__ import annotations

from dataclasses import dataclass

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.documents import seal
from resumable_training.checkpoint.errors import (
    DamagedCheckpoint,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
    Superseded,
)
from resumable_training.checkpoint.identity import read_identity
from resumable_training.checkpoint.listing import Survey, survey
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK
from resumable_training.checkpoint.wanted import find
from resumable_training.contract.manifest import RECORDS_DIRECTORY, Manifest, Record, record_name


@dataclass(frozen=True)
class RolledBack:
    """What was done. ``record`` None: the checkpoint was the next resume point already."""

    checkpoint: str
    step: int
    samples: int
    left: tuple[str, ...]  # complete checkpoints that are off the chain by it, newest first
    record: int | None


def roll_back(store: Store, wanted: str, *, now: float, nonce: str) -> RolledBack:
    """Make ``wanted`` (a step on the chain, or any complete checkpoint's name) the next resume point.

    Args:
        now: wall clock, in seconds, for people.
        nonce: unlike any other, so that a record that was written is known as one's own.

    Raises:
        NoResumePoint: there is no such checkpoint; says which there are.
        DamagedCheckpoint: it is not whole.
        StoreMisconfigured: this is no store of this library's.
        Superseded: an attempt began just now.
        StorageUnavailable: cannot tell; perhaps nothing was changed.
    """
    seen, target, manifest = _target(store, wanted)
    if seen.resume_points[:1] == [target]:
        return RolledBack(target, manifest.step, manifest.samples, (), None)
    record = _record(seen, target, manifest, now, nonce)
    _append(store, record)
    after = survey(store)
    left = [name for name in seen.resume_points if not after.chain.contains(name)]
    return RolledBack(target, manifest.step, manifest.samples, tuple(left), record.seq)


def check(store: Store, wanted: str) -> str:
    """Name of the checkpoint that ``roll_back`` would go back to: to ask before a job is stopped for it.

    Changes nothing, and may be called while the job trains.

    Raises:
        NoResumePoint, StoreMisconfigured, StorageUnavailable: as ``roll_back`` does.
    """
    return _target(store, wanted)[1]


def _target(store: Store, wanted: str) -> tuple[Survey, str, Manifest]:
    if read_identity(store) is None:
        raise StoreMisconfigured(f"{store.location} is no store of checkpoints with records to roll back")
    seen = survey(store)
    target = find(seen, wanted)
    return seen, target, _manifest_of(store, target)


def _manifest_of(store: Store, name: str) -> Manifest:
    """By sizes alone; all bytes are verified by the attempt that resumes."""
    looked = verify.inspect(store, name)
    if looked.verdict.outcome == OK and looked.manifest is not None:
        return looked.manifest
    if looked.verdict.outcome == verify.DAMAGED:
        raise DamagedCheckpoint(name, looked.verdict.reason)
    raise StorageUnavailable(f"{name}: cannot tell whether it is whole: {looked.verdict.reason}")


def _record(seen: Survey, target: str, manifest: Manifest, now: float, nonce: str) -> Record:
    """In the name of the newest attempt: any later one of the job may follow it, an earlier one may not.

    An earlier wish of the spec stays granted: it must not come back over this one.
    """
    whole = [record for record in seen.records.values() if record]
    newest = max(whole, key=lambda record: record.seq, default=None)
    return Record(
        seq=seen.chain.head + 1,
        job_uid=newest.job_uid if newest else "",
        attempt=newest.attempt if newest else 0,
        parent=target,
        parent_step=manifest.step,
        parent_samples=manifest.samples,
        nonce=nonce,
        deliberate=True,
        requested=newest.requested if newest else None,
        created=now,
        by_hand=True,
    )


def _append(store: Store, record: Record) -> None:
    try:
        store.create(f"{RECORDS_DIRECTORY}/{record_name(record.seq)}", seal(record))
    except StoreExists as error:
        raise Superseded(
            f"{store.location} has got record {record.seq} from somebody else meanwhile: does the job train?"
        ) from error
