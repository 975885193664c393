"""Look at a whole store. No torch.

Each checkpoint costs one or two requests, many at a time where a store answers late, so that ten thousand of
them are listed in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.chain import Chain, build_chain
from resumable_training.checkpoint.documents import (
    DamagedDocument,
    read_pins,
    read_records,
    unseal,
)
from resumable_training.checkpoint.errors import StorageUnavailable, StoreNotFound
from resumable_training.checkpoint.many import at_once
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK, Verdict
from resumable_training.contract.manifest import (
    MANIFEST_FILE,
    MARKER_FILE,
    Manifest,
    Record,
    parse_checkpoint_name,
)


@dataclass(frozen=True)
class Survey:
    """Content of a store at one moment. Names of checkpoints newest first."""

    records: dict[int, Record | None] = field(default_factory=dict)
    complete: tuple[str, ...] = ()  # with a marker
    incomplete: tuple[str, ...] = ()  # half-written, or half-deleted
    chain: Chain = field(default_factory=Chain)

    @property
    def resume_points(self) -> list[str]:
        """Complete checkpoints on the chain, newest first."""
        return self.chain.newest_first(self.complete)


def survey(store: Store, known: dict[int, Record] | None = None) -> Survey:
    """List a store. Raises StorageUnavailable when a part of it can't be listed.

    Records are listed before checkpoints: what is committed in between belongs to a record that is seen.
    """
    records = read_records(store, known)
    names = [
        entry.name for entry in store.entries() if entry.is_directory and parse_checkpoint_name(entry.name)
    ]
    names.sort(key=lambda name: tuple(reversed(parse_checkpoint_name(name) or (0, 0))), reverse=True)
    marked = dict(zip(names, at_once(lambda name: _is_marked(store, name), names), strict=True))
    complete = tuple(name for name in names if marked[name])
    incomplete = tuple(name for name in names if not marked[name])
    return Survey(records, complete, incomplete, build_chain(records, complete))


def _is_marked(store: Store, name: str) -> bool:
    return store.size(f"{name}/{MARKER_FILE}") is not None


@dataclass(frozen=True)
class CheckpointInfo:
    """One line of ``rtj checkpoints list``."""

    name: str
    step: int
    record: int
    attempt: int | None  # None: neither manifest nor record tells
    samples: int | None
    world_size: int | None
    bytes: int
    age_seconds: float
    complete: bool
    on_chain: bool
    pinned: bool
    verdict: Verdict | None  # None: its bytes were not verified now
    why_not: str  # why it is no resume point; empty when it is one
    verified_seconds: float | None = None  # ago, by an attempt that resumed from it; None: by none

    @property
    def resumable(self) -> bool:
        return not self.why_not


def list_checkpoints(store: Store, now: float, *, verify_bytes: bool = False) -> list[CheckpointInfo]:
    """Every checkpoint directory in a store, newest first; ``now`` is wall clock seconds.

    Raises:
        StorageUnavailable: the store can't be listed.
    """
    seen = survey(store)
    try:
        pins = read_pins(store, now)
    except DamagedDocument:
        pins = set(seen.complete)  # as retention does: who can't be asked may hold any of them
    newest_first = sorted((*seen.complete, *seen.incomplete), key=_age, reverse=True)
    look = _Look(store, verify.store_id_of(store), seen, pins, _proofs(seen), now, verify_bytes)
    return at_once(lambda name: _describe(name, look), newest_first)


@dataclass(frozen=True)
class _Look:
    """What all lines have in common. ``proofs``: when each checkpoint was last found whole by a resume."""

    store: Store
    store_id: str
    seen: Survey
    pins: set[str]
    proofs: dict[str, float]
    now: float
    verify_bytes: bool


def _proofs(seen: Survey) -> dict[str, float]:
    """An attempt appends its record after a verified load; a person who rolls back has looked at sizes."""
    found: dict[str, float] = {}
    for record in seen.records.values():
        if record and record.parent and not record.by_hand:
            found[record.parent] = max(record.created, found.get(record.parent, 0.0))
    return found


def _age(name: str) -> tuple[int, int]:
    step, record = parse_checkpoint_name(name) or (0, 0)
    return record, step


def _describe(name: str, look: _Look) -> CheckpointInfo:
    store, seen, now = look.store, look.seen, look.now
    step, seq = parse_checkpoint_name(name) or (0, 0)
    record = seen.records.get(seq)
    complete, on_chain = name in seen.complete, seen.chain.contains(name)
    manifest, size, problem = _manifest(look, name) if complete else (None, 0, "")
    verdict = verify.verify_checkpoint(store, name) if look.verify_bytes and complete else None
    made = manifest.created if manifest else 0.0
    if manifest is None:
        entries = store.entries(name)
        size = sum(entry.bytes for entry in entries if not entry.is_directory)
        made = max((entry.modified for entry in entries), default=now)
    proved = look.proofs.get(name)
    return CheckpointInfo(
        name=name,
        step=step,
        record=seq,
        attempt=manifest.attempt if manifest else record.attempt if record else None,
        samples=manifest.samples if manifest else None,
        world_size=manifest.world_size if manifest else None,
        bytes=size,
        age_seconds=max(0.0, now - made),
        complete=complete,
        on_chain=on_chain,
        pinned=name in look.pins,
        verdict=verdict,
        why_not=_why_not(name, seen, problem, verdict),
        verified_seconds=max(0.0, now - proved) if proved else None,
    )


def _manifest(look: _Look, name: str) -> tuple[Manifest | None, int, str]:
    """And the bytes of all files, by the manifest: with many ranks a listing of each would take long.

    Without one, why there is none that can be believed.
    """
    try:
        data = look.store.read(f"{name}/{MANIFEST_FILE}")
        manifest = unseal(Manifest, data)
    except (DamagedDocument, StoreNotFound):
        return None, 0, f"damaged: {MANIFEST_FILE} is missing or not what was written"
    except StorageUnavailable as error:  # of this one; the others are listed all the same
        return None, 0, f"cannot tell: {error}"
    lie = verify.contradiction(name, manifest, look.store_id)
    if lie:
        return None, 0, f"damaged: {MANIFEST_FILE}: {lie}"
    return manifest, len(data) + sum(entry.bytes for entry in manifest.files.values()), ""


def _why_not(name: str, seen: Survey, problem: str, verdict: Verdict | None) -> str:
    if name in seen.incomplete:
        return "incomplete: it was never committed, or is being written or deleted"
    if not seen.records:
        return "a copy: without records no job resumes it, unless its resumeFrom names it"
    if not seen.chain.contains(name):
        return f"off the chain: {_branched(name, seen)}"
    if problem:
        return problem
    if verdict and verdict.outcome != OK:
        return f"{verdict.outcome.replace('_', ' ')}: {verdict.reason}"
    return ""


def _branched(name: str, seen: Survey) -> str:
    """Which record went on from an older checkpoint."""
    _, seq = parse_checkpoint_name(name) or (0, 0)
    newer: Record | None = None
    for number, last in seen.chain.reach:
        if number == seq and newer is not None:
            who = "a roll-back" if newer.by_hand else f"attempt {newer.attempt}"
            return f"{who} went on from step {last} (record {newer.seq})"
        newer = seen.records.get(number)
    if seq > seen.chain.head:
        return f"record {seq} is missing"
    return "newer attempts went on from another branch"
