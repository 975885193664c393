"""Prove before the first step that the store can hold checkpoints: writable, shared, create-only, large.

A directory that every node has for itself looks fine until the first resume on other nodes. So each rank
leaves a file and must see everybody's. What is found, here and about the machines (``fitness``), comes as one
message, so that it can be mended in one go.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from resumable_training.checkpoint.errors import (
    CheckpointError,
    CheckpointUserError,
    StorageRefused,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
)
from resumable_training.checkpoint.fitness import (
    ERROR,
    Finding,
    Look,
    Needs,
    Room,
    Shm,
    judge,
    message,
)
from resumable_training.checkpoint.identity import (
    PROBES_DIRECTORY,
    claim,
    read_identity,
)
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.retain import LEAST_KEPT
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import Unopened
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import StoreIdentity

SHM = Path("/dev/shm")  # noqa: S108  no file is made there
_OLD_PROBE_SECONDS = 3600.0
_MOST_NAMED = 8


def preflight(
    store: Store,
    config: CheckpointConfig,
    owner: str,
    ranks: Ranks,
    needs: Needs | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> StoreIdentity:
    """Claim the store and check it from every rank. All ranks return, or all raise.

    Args:
        needs: of this rank, where it is known.
        warn: called on rank 0, once, with all that is no error.

    Raises:
        StoreMisconfigured: not writable, not shared, no create-only writes, too small (with the fix); or it
            can't be opened on some ranks, which are named.
        StoreOwnership: another job's store.
        StorageUnavailable: any of these but the last one of the first, for a job that has saved here before:
            then it is a broken mount.
    """
    needs = needs or Needs()
    try:
        identity, findings = _prove(store, config, owner, ranks, needs)
    except CheckpointUserError as error:
        if not error.on_all_ranks:
            _refuse(error, [], config)
        told = ranks.gather((_look(needs, time.time()), _why_unopened(store)))
        looks = [look for look, _ in told]
        if any(why for _, why in told):
            raise StoreMisconfigured(_unopened_text([why for _, why in told], looks)) from error
        _refuse(error, _errors(judge(looks, ranks.first(lambda: _room(store, config)), [])), config)
    if _errors(findings):
        _refuse(None, _errors(findings), config)
    if findings and ranks.rank == 0:
        warn(message(findings))
    return identity


def _errors(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.severity == ERROR]


def _refuse(failure: CheckpointUserError | None, errors: list[Finding], config: CheckpointConfig) -> NoReturn:
    """Raises one error with all that is wrong."""
    kind = type(failure) if failure is not None else StoreMisconfigured
    first = [Finding(ERROR, str(failure))] if failure is not None else []
    text = message([*first, *errors])
    if config.known_checkpoint and issubclass(kind, StoreMisconfigured):
        raise StorageUnavailable(f"{text} (It held this job's checkpoints before.)") from failure
    raise kind(text) from failure


def _why_unopened(store: Store) -> str:
    return str(store.why) if isinstance(store, Unopened) else ""


def _unopened_text(whys: Sequence[str], looks: Sequence[Look]) -> str:
    """``whys``: of each rank, "" where the store could be opened."""
    if len(set(whys)) == 1:
        return whys[0]
    where: dict[str, list[str]] = {}
    for rank, (why, look) in enumerate(zip(whys, looks, strict=True)):
        if why:
            where.setdefault(why, []).append(f"{rank} (on {look.host})")
    return "; ".join(f"rank {_some(ranks)}: {why}" for why, ranks in where.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _look(needs: Needs, clock: float) -> Look:
    return Look(socket.gethostname(), clock, _shm(), needs)


def _shm() -> Shm | None:
    try:
        told = os.statvfs(SHM)
    except OSError:
        return None
    return Shm(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize)


def _room(store: Store, config: CheckpointConfig) -> Room:
    keep = max(config.keep_last, LEAST_KEPT)
    return Room(store.location, _free(store), keep, config.known_checkpoint)


def _free(store: Store) -> int | None:
    """Of a directory; of its nearest parent while it is not there. None: object storage has no end."""
    if not isinstance(store, LocalStore):
        return None
    there = next((path for path in (store.root, *store.root.parents) if path.exists()), None)
    try:
        told = os.statvfs(there) if there is not None else None
    except OSError:
        return None
    return told.f_bavail * told.f_frsize if told is not None and told.f_blocks else None


@dataclass(frozen=True)
class _Claimed:
    """What rank 0 tells the others: the store, what this proof is called, and from where."""

    identity: StoreIdentity
    proof: str
    host: str
    room: Room


def _prove(
    store: Store, config: CheckpointConfig, owner: str, ranks: Ranks, needs: Needs
) -> tuple[StoreIdentity, list[Finding]]:
    """The store's identity, and what else is found. In three exchanges, since each waits for every rank."""
    claimed = ranks.first(lambda: _claim(store, config, owner))
    probes = ranks.agree(lambda: _leave_probe(store, claimed, ranks.rank))
    clock = time.time()  # all read theirs at about the same moment

    def seen() -> tuple[Look, float]:
        return _look(needs, clock), _check_probes(store, claimed, [name for name, _ in probes], ranks.rank)

    told = ranks.agree(seen)
    own, _ = probes[ranks.rank]
    with suppress(CheckpointError):  # a later attempt sweeps it
        store.delete(f"{PROBES_DIRECTORY}/{own}")
    skews = [modified - written for (_, modified), (_, written) in zip(told, probes, strict=True)]
    return claimed.identity, judge([look for look, _ in told], claimed.room, skews)


def _claim(store: Store, config: CheckpointConfig, owner: str) -> _Claimed:
    try:
        if not config.known_checkpoint:
            store.prepare_root()
        identity = claim(
            store, owner, adopt=config.adopt, may_create=not config.known_checkpoint, now=time.time()
        )
        _sweep_probes(store)
    except StorageUnavailable as error:
        raise _judged(store, error) from error
    return _Claimed(identity, uuid.uuid4().hex, socket.gethostname(), _room(store, config))


def _leave_probe(store: Store, claimed: _Claimed, rank: int) -> tuple[str, float]:
    """Its name, and when it was written, by this rank's clock."""
    name = f"{claimed.proof}-{rank:05d}"
    try:
        _await_store(store, claimed.identity, claimed.host)
    except StorageRefused as error:  # this rank's credentials are not rank 0's
        raise _judged(store, error) from error
    try:
        store.create(f"{PROBES_DIRECTORY}/{name}", socket.gethostname().encode())
    except StorageUnavailable as error:
        raise _judged(store, error) from error
    return name, time.time()


def _check_probes(store: Store, claimed: _Claimed, probes: list[str], rank: int) -> float:
    """All are seen here, and none can be made twice; when its own was written, by the store's clock."""
    modified = _await_probes(store, probes, claimed.host)[probes[rank]]
    _prove_refusal(store, probes, rank)
    return modified


def _judged(store: Store, error: StorageUnavailable) -> Exception:
    """What a user must mend, or what may pass: a server in trouble, an identity that can't be read."""
    cause = error.__cause__
    of_the_system = isinstance(cause, OSError) and cause.errno is not None
    if not isinstance(error, StorageRefused) and not of_the_system:
        return error
    return StoreMisconfigured(
        f"the checkpoint store {store.location} can't be written: {error}. {store.advice.writable}"
    )


def _sweep_probes(store: Store) -> None:
    """Probes that killed attempts left. Young ones may belong to an attempt that is just starting."""
    for entry in store.entries(PROBES_DIRECTORY):
        if time.time() - entry.modified > _OLD_PROBE_SECONDS:
            store.delete(f"{PROBES_DIRECTORY}/{entry.name}")


def _await_store(store: Store, identity: StoreIdentity, first_host: str) -> None:
    def seen() -> bool:
        found = read_identity(store)
        if found is not None and found.store_id != identity.store_id:
            raise _not_shared(store, first_host, f"it holds another store ({found.store_id}) here")
        return found is not None

    if not _wait_until(seen, store.visibility_seconds):
        raise _not_shared(store, first_host, f"nothing that rank 0 wrote is seen on {socket.gethostname()}")


def _not_shared(store: Store, first_host: str, what: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"the checkpoint store {store.location} is not shared between the ranks: {what}"
        f" (rank 0 is on {first_host}). {store.advice.shared}"
    )


def _await_probes(store: Store, probes: Collection[str], first_host: str) -> dict[str, float]:
    """When the store says that each was written, in seconds of its clock."""
    missing = set(probes)
    modified: dict[str, float] = {}

    def seen() -> bool:
        modified.update({entry.name: entry.modified for entry in store.entries(PROBES_DIRECTORY)})
        missing.difference_update(modified)
        return not missing

    if not _wait_until(seen, store.visibility_seconds):
        ranks = ", ".join(str(int(name.rpartition("-")[2])) for name in sorted(missing)[:_MOST_NAMED])
        raise _not_shared(store, first_host, f"{len(missing)} ranks' files are not seen here (rank {ranks})")
    return modified


def _prove_refusal(store: Store, probes: list[str], rank: int) -> None:
    """A create must be refused, also when another machine made the file; everything else rests on that."""
    other = probes[(rank + 1) % len(probes)]
    try:
        store.create(f"{PROBES_DIRECTORY}/{other}", b"")
    except StoreExists:
        return
    raise StoreMisconfigured(
        f"{store.location}: a file could be created twice under one name, by rank {rank} after another had"
        f" made it. {store.advice.create_only}"
    )


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
