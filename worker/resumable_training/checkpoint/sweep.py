"""Retention: rank 0 deletes what ``retain`` dooms, after a commit. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from resumable_training.checkpoint import documents
from resumable_training.checkpoint.errors import CheckpointError
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.retain import dead, to_delete
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import MARKER_FILE, Record

_MOST_SECONDS = 30.0  # on what can't be deleted
_MOST_TOLD = 3


class Sweeper:
    """Of one store. Failures never stop training: they are told, and the next sweep tries again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: dict[int, Record] = {}  # they never change: read once
        self._dead: set[str] = set()  # as seen when the save before had failed, too

    def sweep(
        self,
        keep_last: int,
        keep_every_steps: int | None,
        in_flight: Collection[str] = (),
        *,
        short: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> str:
        """Delete; why not everything could be deleted, or "".

        One that can't be deleted leaves no others behind: the disk would fill up.
        ``short``: this save has failed, perhaps for want of room. When the one before had, too, what older
        attempts were cut off in goes as well, be it newer than all good ones. Not at the first of such looks,
        as a marker may be seen late.
        ``stop``: asked before each, whether there is something better to do; the next sweep deletes the rest.
        """
        failures: list[str] = []
        lost = 0.0
        if not short:
            self._dead = set()
        try:
            for name in self._doomed(keep_last, keep_every_steps, in_flight, short):
                if stop():
                    break
                began = time.monotonic()
                failed = self._delete(name)
                failures += failed
                lost += time.monotonic() - began if failed else 0.0
                if lost > _MOST_SECONDS:
                    break  # a store in trouble: the next save need not wait for all of them
        except (CheckpointError, documents.DamagedDocument, OSError) as error:
            failures.append(str(error))
        return f"old checkpoints could not be deleted: {'; '.join(failures[:_MOST_TOLD])}" if failures else ""

    def _delete(self, name: str) -> list[str]:
        try:
            moment("retain.marker")
            self._store.delete(f"{name}/{MARKER_FILE}")  # first: half a checkpoint must not look whole
            moment("retain.data")
            self._store.delete_tree(name)
        except (CheckpointError, OSError) as error:
            return [str(error)]
        return []

    def _doomed(
        self, keep_last: int, keep_every_steps: int | None, in_flight: Collection[str], short: bool
    ) -> list[str]:
        pinned = documents.read_pins(self._store, time.time())
        seen = survey(self._store, self._records)
        self._records = {seq: record for seq, record in seen.records.items() if record}
        gone: set[str] = set()
        if short:
            before, self._dead = self._dead, dead(seen.chain, seen.incomplete) - pinned
            gone = self._dead & before
        doomed = to_delete(
            seen.chain,
            seen.complete,
            seen.incomplete,
            keep_last=keep_last,
            keep_every_steps=keep_every_steps,
            pinned=pinned,
            in_flight=in_flight,
        )
        return [*doomed, *sorted(gone - set(doomed))]
