"""Look at a whole store. No torch."""

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
from resumable_training.checkpoint.errors import StoreNotFound
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
    complete = tuple(name for name in names if store.size(f"{name}/{MARKER_FILE}") is not None)
    incomplete = tuple(name for name in names if name not in set(complete))
    return Survey(records, complete, incomplete, build_chain(records, complete))


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
    verdict: Verdict | None  # None: its bytes were not verified
    why_not: str  # why it is no resume point; empty when it is one

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
    return [_describe(store, name, seen, pins, now, verify_bytes) for name in newest_first]


def _age(name: str) -> tuple[int, int]:
    step, record = parse_checkpoint_name(name) or (0, 0)
    return record, step


def _describe(
    store: Store, name: str, seen: Survey, pins: set[str], now: float, verify_bytes: bool
) -> CheckpointInfo:
    step, seq = parse_checkpoint_name(name) or (0, 0)
    record = seen.records.get(seq)
    manifest = _manifest(store, name)
    entries = store.entries(name)
    complete, on_chain = name in seen.complete, seen.chain.contains(name)
    verdict = verify.verify_checkpoint(store, name) if verify_bytes and complete else None
    made = manifest.created if manifest else max((entry.modified for entry in entries), default=now)
    return CheckpointInfo(
        name=name,
        step=step,
        record=seq,
        attempt=manifest.attempt if manifest else record.attempt if record else None,
        samples=manifest.samples if manifest else None,
        world_size=manifest.world_size if manifest else None,
        bytes=sum(entry.bytes for entry in entries if not entry.is_directory),
        age_seconds=max(0.0, now - made),
        complete=complete,
        on_chain=on_chain,
        pinned=name in pins,
        verdict=verdict,
        why_not=_why_not(complete, on_chain, manifest, verdict),
    )


def _manifest(store: Store, name: str) -> Manifest | None:
    try:
        return unseal(Manifest, store.read(f"{name}/{MANIFEST_FILE}"))
    except (DamagedDocument, StoreNotFound):
        return None


def _why_not(complete: bool, on_chain: bool, manifest: Manifest | None, verdict: Verdict | None) -> str:
    if not complete:
        return "incomplete: it was never committed, or is being written or deleted"
    if not on_chain:
        return "off the chain: a newer attempt went on from an older checkpoint"
    if manifest is None:
        return f"damaged: {MANIFEST_FILE} is missing or not what was written"
    if verdict and verdict.outcome != OK:
        return f"{verdict.outcome.replace('_', ' ')}: {verdict.reason}"
    return ""
