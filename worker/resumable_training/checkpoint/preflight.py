"""Prove before the first step that the store can hold checkpoints: writable, shared, create-only.

A directory that every node has for itself looks fine until the first resume on other nodes. So each rank
leaves a file and must see everybody's.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Collection

from resumable_training.checkpoint.errors import (
    StorageRefused,
    StorageUnavailable,
    StoreExists,
    StoreMisconfigured,
)
from resumable_training.checkpoint.identity import (
    PROBES_DIRECTORY,
    claim,
    prove_create_only,
    read_identity,
)
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.store import Store
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import StoreIdentity

_OLD_PROBE_SECONDS = 3600.0


def preflight(store: Store, config: CheckpointConfig, owner: str, ranks: Ranks) -> StoreIdentity:
    """Claim the store and check it from every rank. All ranks return, or all raise.

    Raises:
        StoreMisconfigured: not writable, not shared, no create-only writes (with the fix).
        StoreOwnership: another job's store.
        StorageUnavailable: any of these, for a job that has saved here before: then it is a broken mount.
    """
    try:
        identity = ranks.first(lambda: _claim(store, config, owner))
        round_name, host = ranks.first(lambda: (uuid.uuid4().hex, socket.gethostname()))
        ranks.together(lambda: _await_store(store, identity, host))
        probes = ranks.agree(lambda: _write_probe(store, round_name, ranks.rank))
        ranks.together(lambda: _await_probes(store, probes))
        ranks.together(lambda: _prove_refusal(store, probes, ranks.rank))
        ranks.together(lambda: store.delete(f"{PROBES_DIRECTORY}/{probes[ranks.rank]}"))
    except StoreMisconfigured as error:
        if config.known_checkpoint:
            raise StorageUnavailable(f"{error} (It held this job's checkpoints before.)") from error
        raise
    return identity


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


def _await_probes(store: Store, probes: Collection[str]) -> None:
    missing = set(probes)

    def seen() -> bool:
        missing.difference_update(entry.name for entry in store.entries(PROBES_DIRECTORY))
        return not missing

    if not _wait_until(seen, store.visibility_seconds):
        ranks = ", ".join(str(int(name.rpartition("-")[2])) for name in sorted(missing)[:8])
        first_host = socket.gethostname()
        raise _not_shared(store, first_host, f"{len(missing)} ranks' files are not seen here (rank {ranks})")


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
