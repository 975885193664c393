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
from collections.abc import Callable, Collection
from pathlib import Path

from resumable_training.checkpoint.errors import (
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
    prove_create_only,
    read_identity,
)
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.retain import LEAST_KEPT
from resumable_training.checkpoint.store import Store
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import StoreIdentity

SHM = Path("/dev/shm")  # noqa: S108  no file is made there
_OLD_PROBE_SECONDS = 3600.0


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
        StoreMisconfigured: not writable, not shared, no create-only writes, too small (with the fix).
        StoreOwnership: another job's store.
        StorageUnavailable: any of these, for a job that has saved here before: then it is a broken mount.
    """
    ranks.gather(None)  # so that all read their clocks at about the same moment
    looks = ranks.gather(_look(needs or Needs()))
    failure: CheckpointUserError | None = None
    identity: StoreIdentity | None = None
    skews: list[float] = []
    try:
        identity, skews = _prove(store, config, owner, ranks)
    except CheckpointUserError as error:
        failure = error
    found = ranks.first(lambda: judge(looks, _room(store, config), skews))
    errors = [one for one in found if one.severity == ERROR]
    if identity is None or errors:
        _refuse(failure, errors, config)
    assert identity is not None
    warnings = [one for one in found if one.severity != ERROR]
    if warnings and ranks.rank == 0:
        warn(message(warnings))
    return identity


def _refuse(failure: CheckpointUserError | None, errors: list[Finding], config: CheckpointConfig) -> None:
    """Raises one error with all that is wrong."""
    kind = type(failure) if failure is not None else StoreMisconfigured
    first = [Finding(ERROR, str(failure))] if failure is not None else []
    text = message([*first, *errors])
    if config.known_checkpoint and issubclass(kind, StoreMisconfigured):
        raise StorageUnavailable(f"{text} (It held this job's checkpoints before.)") from failure
    raise kind(text) from failure


def _look(needs: Needs) -> Look:
    return Look(socket.gethostname(), time.time(), _shm(), needs)


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


def _prove(
    store: Store, config: CheckpointConfig, owner: str, ranks: Ranks
) -> tuple[StoreIdentity, list[float]]:
    """The store's identity, and by rank how far the store's clock is ahead of its own."""
    identity = ranks.first(lambda: _claim(store, config, owner))
    round_name, host = ranks.first(lambda: (uuid.uuid4().hex, socket.gethostname()))
    ranks.together(lambda: _await_store(store, identity, host))
    probes = ranks.agree(lambda: _write_probe(store, round_name, ranks.rank))
    written = time.time()
    modified = ranks.together(lambda: _await_probes(store, probes, probes[ranks.rank]))
    skews = ranks.gather(modified - written)
    ranks.together(lambda: _prove_refusal(store, probes, ranks.rank))
    ranks.together(lambda: store.delete(f"{PROBES_DIRECTORY}/{probes[ranks.rank]}"))
    return identity, skews


def _claim(store: Store, config: CheckpointConfig, owner: str) -> StoreIdentity:
    try:
        if not config.known_checkpoint:
            store.prepare_root()
        identity = claim(
            store, owner, adopt=config.adopt, may_create=not config.known_checkpoint, now=time.time()
        )
        _sweep_probes(store)
        name = f"{PROBES_DIRECTORY}/{uuid.uuid4().hex}"
        prove_create_only(store, name)
        store.delete(name)
    except StorageUnavailable as error:
        raise _judged(store, error) from error
    return identity


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


def _write_probe(store: Store, round_name: str, rank: int) -> str:
    name = f"{round_name}-{rank:05d}"
    try:
        store.create(f"{PROBES_DIRECTORY}/{name}", socket.gethostname().encode())
    except StorageUnavailable as error:
        raise _judged(store, error) from error
    return name


def _await_probes(store: Store, probes: Collection[str], own: str) -> float:
    """When the store says that our own was written, in seconds of its clock."""
    missing = set(probes)
    modified = {}

    def seen() -> bool:
        modified.update({entry.name: entry.modified for entry in store.entries(PROBES_DIRECTORY)})
        missing.difference_update(modified)
        return not missing

    if not _wait_until(seen, store.visibility_seconds):
        ranks = ", ".join(str(int(name.rpartition("-")[2])) for name in sorted(missing)[:8])
        first_host = socket.gethostname()
        raise _not_shared(store, first_host, f"{len(missing)} ranks' files are not seen here (rank {ranks})")
    return float(modified[own])


def _prove_refusal(store: Store, probes: list[str], rank: int) -> None:
    """A create must be refused also when another machine made the file."""
    other = probes[(rank + 1) % len(probes)]
    try:
        store.create(f"{PROBES_DIRECTORY}/{other}", b"")
    except StoreExists:
        return
    raise StoreMisconfigured(
        f"{store.location}: this rank could create a file that another rank had made."
        f" {store.advice.create_only}"
    )


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
