"""Delete what retention would delete, for a person at a shell instead of rank 0 after a save.

Safe beside a job that runs, by the same rules (``retain``): the newest complete checkpoints on the chain
stay, and a save in progress is of the newest record and newer than they are. Here also what failed saves have
left goes while good checkpoints are still few, since that is when a disk is full. Another machine may see a
marker late, so what looks incomplete must be old.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass

from resumable_training.checkpoint.documents import DamagedDocument, read_pins
from resumable_training.checkpoint.errors import CheckpointError, StorageUnavailable
from resumable_training.checkpoint.identity import PROBES_DIRECTORY
from resumable_training.checkpoint.listing import Survey, survey
from resumable_training.checkpoint.many import at_once
from resumable_training.checkpoint.retain import dead, leftovers, to_delete
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

LEFTOVER_SECONDS = 600.0  # far more than any file system shows a marker late


@dataclass(frozen=True)
class Doomed:
    """A checkpoint directory to delete."""

    name: str
    why: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What to delete, oldest first, and what was spared."""

    doomed: tuple[Doomed, ...]
    kept: tuple[str, ...]  # complete checkpoints on the chain that stay, newest first
    pinned: tuple[str, ...] = ()  # would go, but somebody reads them
    young: tuple[str, ...] = ()  # look left over, but may just be seen late
    missing: tuple[str, ...] = ()  # somebody will want them, and nothing here is of that name or step

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.doomed)


def plan(
    store: Store,
    now: float,
    *,
    keep_last: int,
    keep_every_steps: int | None = None,
    protected: Collection[str] = (),
) -> Plan:
    """Decide; nothing is changed. ``protected``: names or steps that somebody will want, as a resumeFrom.

    Raises:
        StorageUnavailable: it can't be listed, or a pin can't be read, so nobody knows what it holds.
    """
    pinned = pins_of(store, now)
    seen = survey(store)
    held = {*pinned, *protected, *(name for name in seen.complete if _step(name) in protected)}
    wanted = {
        *to_delete(
            seen.chain,
            seen.complete,
            seen.incomplete,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
        ),
        *leftovers(seen.chain, seen.complete, seen.incomplete, only_incomplete=True),
        *dead(seen.chain, seen.incomplete),
    }
    found = at_once(lambda name: _describe(store, name, seen, now), sorted(wanted))
    old = {one.name for one, age in found if one.name in seen.complete or age >= LEFTOVER_SECONDS}
    doomed = sorted((one for one, _ in found if one.name in wanted & old - held), key=_order)
    return Plan(
        tuple(doomed),
        tuple(name for name in seen.resume_points if name not in {one.name for one in doomed}),
        tuple(sorted(wanted & held)),
        tuple(sorted(wanted - old - held)),
        tuple(one for one in protected if not _is_there(one, seen)),
    )


def _is_there(name_or_step: str, seen: Survey) -> bool:
    return any(name_or_step in (name, _step(name)) for name in seen.complete)


def _order(one: Doomed) -> tuple[int, int]:
    step, record = parse_checkpoint_name(one.name) or (0, 0)
    return record, step


def _step(name: str) -> str:
    return str((parse_checkpoint_name(name) or (-1, 0))[0])


def pins_of(store: Store, now: float) -> set[str]:
    """Pinned names.

    Raises:
        StorageUnavailable: a pin can't be read.
    """
    try:
        return read_pins(store, now)
    except DamagedDocument as error:
        raise StorageUnavailable(
            f"{store.location}: a pin can't be read ({error}), so nobody knows what it holds:"
            " remove it (rtj checkpoints unpin --damaged) and pin again"
        ) from error


def _describe(store: Store, name: str, seen: Survey, now: float) -> tuple[Doomed, float]:
    """With its age in seconds."""
    entries = store.entries(name)
    age = now - max((entry.modified for entry in entries), default=0.0)
    return Doomed(name, _why(name, seen), sum(entry.bytes for entry in entries)), age


def _why(name: str, seen: Survey) -> str:
    if name in seen.incomplete:
        return "left by a save or a deletion that was cut off"
    return "older than those to keep" if seen.chain.contains(name) else "off the chain"


def earlier_clock(store: Store, now: float) -> float:
    """Our wall clock or the store's, whichever is behind.

    Pins say until when they hold: by a clock that is a week ahead none would. Ours is taken where the store
    lets nobody write, as on a full disk.
    """
    name = f"{PROBES_DIRECTORY}/{uuid.uuid4().hex}"
    try:
        store.create(name, b"")
        there = [entry.modified for entry in store.entries(PROBES_DIRECTORY) if name.endswith(entry.name)]
        store.delete(name)
    except CheckpointError:
        return now
    return min([now, *there])


def carry_out(
    store: Store, planned: Plan, now: float, failed: Callable[[Doomed, CheckpointError], None]
) -> list[Doomed]:
    """Delete, oldest first, and return what is gone. What was pinned meanwhile is left alone.

    Args:
        failed: told of each that can't be deleted; the others go all the same.
    """
    gone = []
    for one in planned.doomed:
        if one.name in pins_of(store, now):
            continue
        try:
            remove(store, one.name)
        except CheckpointError as error:
            failed(one, error)
        else:
            gone.append(one)
    return gone


def remove(store: Store, name: str) -> None:
    """The marker first: half a checkpoint must not look whole."""
    store.delete(f"{name}/{MARKER_FILE}")
    store.delete_tree(name)
