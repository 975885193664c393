"""Whether an attempt may still write: the store is the one it claimed, its record the newest. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from resumable_training.checkpoint import documents, identity
from resumable_training.checkpoint.errors import StorageUnavailable, Superseded
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import StoreIdentity


@dataclass(frozen=True)
class Fence:
    """``identity``: the store as it was claimed; ``record``: number of the attempt's own record."""

    identity: StoreIdentity
    record: int

    def check(self, store: Store) -> None:
        """Rank 0 asks before and after it writes.

        Raises:
            Superseded: a newer record exists, or another job has adopted the store.
            StorageUnavailable: it is not the same store, or can't be read.
        """
        identity.check_same(store, self.identity)
        newest = max(documents.record_numbers(store), default=0)
        if newest > self.record:
            raise Superseded(f"record {newest} is newer than ours ({self.record})")
        if newest < self.record:
            raise StorageUnavailable(f"{store.location} has lost record {self.record}")
