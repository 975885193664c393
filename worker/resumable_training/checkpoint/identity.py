"""Whose store this is (``store.json``), and proof that it is still the same one.

The identity is checked at every save and resume: an unmounted volume leaves an empty directory, a
mis-typed path another job's.
"""

from __future__ import annotations

import uuid

from resumable_training.checkpoint.documents import DamagedDocument, record_numbers, seal, unseal
from resumable_training.checkpoint.errors import (
    StorageUnavailable,
    StoreExists,
    StoreNotFound,
    StoreOwnership,
    Superseded,
)
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import (
    PINS_DIRECTORY,
    RECORDS_DIRECTORY,
    STORE_FILE,
    StoreIdentity,
)

PROBES_DIRECTORY = "probes"


def read_identity(store: Store) -> StoreIdentity | None:
    """Content of ``store.json``; None when there is none.

    Raises:
        StorageUnavailable: it can't be read, or is damaged.
    """
    try:
        return unseal(StoreIdentity, store.read(STORE_FILE))
    except StoreNotFound:
        return None
    except DamagedDocument as error:
        raise StorageUnavailable(f"{store.location}/{STORE_FILE}: {error}") from error


def claim(store: Store, owner: str, *, adopt: bool, may_create: bool, now: float) -> StoreIdentity:
    """Take the store for ``owner`` ("namespace/name"): found again, adopted, or made.

    Raises:
        StoreOwnership: it is another job's, and ``adopt`` is not set.
        StorageUnavailable: it is missing though it must exist.
    """
    identity = read_identity(store)
    if identity is None:
        _refuse_to_create(store, may_create)
        identity = _create(store, owner, now)
    if identity.owner != owner:
        identity = _adopt(store, identity, owner, adopt, now)
    for directory in (RECORDS_DIRECTORY, PINS_DIRECTORY, PROBES_DIRECTORY):
        _make_missing_directory(store, directory)
    return identity


def _refuse_to_create(store: Store, may_create: bool) -> None:
    if not may_create:
        raise StorageUnavailable(
            f"{store.location} has no {STORE_FILE}, and this job has saved a checkpoint before:"
            f" is it the right one, and is the volume mounted? (A fresh start needs startFresh: true.)"
        )
    if record_numbers(store):
        raise StorageUnavailable(f"{store.location} has records but no {STORE_FILE}: restore that file")


def _create(store: Store, owner: str, now: float) -> StoreIdentity:
    identity = StoreIdentity(uuid.uuid4().hex, owner, now)
    try:
        store.create(STORE_FILE, seal(identity))
    except StoreExists:
        found = read_identity(store)
        if found is None:
            raise StorageUnavailable(f"{store.location}/{STORE_FILE} comes and goes") from None
        return found
    return identity


def _adopt(store: Store, identity: StoreIdentity, owner: str, adopt: bool, now: float) -> StoreIdentity:
    if not adopt:
        raise StoreOwnership(
            f"the checkpoint store {store.location} belongs to job {identity.owner}, this is {owner}."
            " Use another directory, or set checkpoint.adopt: true to take it over."
        )
    adopted = StoreIdentity(identity.store_id, owner, now)
    store.put(STORE_FILE, seal(adopted))
    return adopted


def _make_missing_directory(store: Store, name: str) -> None:
    try:
        store.make_directory(name)
    except StoreExists:
        return


def check_same(store: Store, expected: StoreIdentity) -> None:
    """Raise unless this is still the store that preflight claimed.

    Raises:
        StorageUnavailable: ``store.json`` is gone, or another store is in its place.
        Superseded: another job has adopted the store.
    """
    found = read_identity(store)
    if found is None:
        raise StorageUnavailable(f"{store.location} has lost its {STORE_FILE}: is the volume still mounted?")
    if found.store_id != expected.store_id:
        raise StorageUnavailable(
            f"{store.location} is now store {found.store_id}, not {expected.store_id}:"
            " another volume is mounted there"
        )
    if found.owner != expected.owner:
        raise Superseded(f"the store was adopted by job {found.owner}")
