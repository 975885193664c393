"""Where an attempt comes from, and the record by which it goes on: one link of the chain in the store.

By one rank alone; ``engine`` has all ranks learn of it, and of what went wrong.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from resumable_training.checkpoint import documents, identity, resume
from resumable_training.checkpoint.elsewhere import located
from resumable_training.checkpoint.errors import (
    CheckpointError,
    NoResumePoint,
    StorageUnavailable,
    StoreExists,
    Superseded,
)
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.resume import Choice
from resumable_training.checkpoint.saved import Source
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_checkpoint
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import (
    RECORDS_DIRECTORY,
    Manifest,
    Record,
    StoreIdentity,
    parse_checkpoint_name,
    record_name,
)

_PIN_SECONDS = 3600.0


class Lineage:
    """Of one attempt of a job in one store."""

    def __init__(
        self,
        store: Store,
        job: str,
        job_uid: str,
        attempt: int,
        warn: Callable[[str], None],
        *,
        counted: bool,
        retry_seconds: Sequence[float],
    ) -> None:
        """``counted`` False: nobody numbers attempts over all starts of the job.

        ``retry_seconds``: pauses before a record that can't be made ends the attempt.
        """
        self._store = store
        self._job, self._job_uid, self._attempt = job, job_uid, attempt
        self._warn = warn
        self._counted = counted
        self._retry_seconds = tuple(retry_seconds)
        self._known_records: dict[int, Record] = {}

    # The parent -----------------------------------------------------------------------------------------

    def choose(
        self, config: CheckpointConfig, claimed: StoreIdentity, rejected: Sequence[str]
    ) -> tuple[Choice, int]:
        """What to resume from, and the number of the newest record. ``rejected``: proven damaged.

        Raises:
            Superseded: a newer attempt has its record.
            StorageUnavailable: cannot tell.
            NoResumePoint: only damaged checkpoints, or the wanted one is not there.
        """
        identity.check_same(self._store, claimed)
        seen = survey(self._store, self._known_records)
        self._known_records = {seq: record for seq, record in seen.records.items() if record}
        choice = resume.choose(
            seen, config, self._job_uid, self._attempt if self._counted else None, rejected
        )
        where = self._store.location
        if choice.kind == resume.SUPERSEDED:
            raise Superseded(choice.reason)
        if choice.kind == resume.POOR_LISTING:
            raise StorageUnavailable(
                f"{where}: {choice.reason}. To start from nothing, set startFresh: true."
            )
        if choice.kind == resume.ALL_DAMAGED:
            raise NoResumePoint(f"{where}: {choice.reason}. To start from nothing, set startFresh: true.")
        if choice.kind == resume.DELIBERATE:
            choice = replace(choice, name=located(choice.name, self._store))
        return choice, seen.chain.head

    def source(self, choice: Choice) -> Source:
        """In this store by name; anything else is the path or the URL of a DCP directory.

        Raises:
            StoreMisconfigured: that can't be opened here. Never so of one in this store.
        """
        if is_own(choice):
            return Source(self._store, choice.name, choice.name)
        store, name = open_checkpoint(choice.name)
        if store.location == self._store.location and parse_checkpoint_name(name):
            return Source(self._store, name, name)
        return Source(store, name, f"{store.location}/{name}", foreign=True)

    def older_than(self, choice: Choice) -> str:
        """For people: what can be wished for instead of a damaged one; empty if nothing is known."""
        source = self.source(choice)
        try:
            points = survey(source.store).resume_points
        except CheckpointError:  # the damage is worth more than this
            return ""
        older = points[points.index(source.name) + 1 :] if source.name in points else []
        if not older:
            return ""
        ours = source.store is self._store
        return f". The next older one is {older[0] if ours else f'{source.store.location}/{older[0]}'}"

    def hold(self, source: Source) -> None:
        """Ask retention of an attempt that still runs to leave the checkpoint alone while it is read."""
        held = documents.Pin(source.name, self._job, time.time() + _PIN_SECONDS)
        self._pin(source, lambda: documents.pin(self._store, f"{self._prefix}{self._attempt}", held))

    def release(self, source: Source) -> None:
        """It was read; also what attempts before this one held when they died."""
        self._pin(source, lambda: documents.unpin_up_to(self._store, self._prefix, self._attempt))

    @property
    def _prefix(self) -> str:
        return f"restore-{self._job_uid}-".replace("/", "-")

    def _pin(self, source: Source, change: Callable[[], None]) -> None:
        if source.store is not self._store:
            return
        try:
            change()
        except CheckpointError as error:
            self._warn(f"could not pin {source.name}: {error}")

    # The record -----------------------------------------------------------------------------------------

    def record(
        self,
        seq: int,
        parent: str | None,
        manifest: Manifest | None,
        *,
        deliberate: bool,
        requested: str | None,
    ) -> Record:
        """This attempt's, as it is to be made. ``manifest``: of the checkpoint ``parent``, if it has one."""
        return Record(
            seq=seq,
            job_uid=self._job_uid,
            attempt=self._attempt,
            parent=parent,
            parent_step=manifest.step if manifest else 0,
            parent_samples=manifest.samples if manifest else 0,
            nonce=uuid.uuid4().hex,
            deliberate=deliberate,
            requested=requested,
            created=time.time(),
        )

    def append(self, record: Record) -> Record:
        """The act by which this attempt owns the store from here on; a loser of the race is superseded.

        Raises:
            Superseded: the number is taken.
            StorageUnavailable: after retries; or an attempt that this one replaces has just taken it.
        """
        name = f"{RECORDS_DIRECTORY}/{record_name(record.seq)}"
        for pause in (*self._retry_seconds, None):
            try:
                self._store.create(name, documents.seal(record))
                return record
            except StoreExists:
                break  # perhaps by our own earlier try
            except StorageUnavailable:
                if pause is None:
                    raise
                time.sleep(pause)
        found = documents.read_record(self._store, record.seq)  # by its name: a listing may be old
        if found is not None and found.nonce == record.nonce:
            return record
        if found is not None and self._is_older(found):
            raise StorageUnavailable(
                f"attempt {found.attempt} has just made record {record.seq} of {self._store.location}, or its"
                " listing is old"
            )
        by = f"attempt {found.attempt} of job {found.job_uid}" if found else "another attempt"
        raise Superseded(f"record {record.seq} of {self._store.location} was made by {by}")

    def _is_older(self, record: Record) -> bool:
        """Of an attempt that this one replaces: what it has done must be looked at, not be obeyed."""
        return self._counted and record.job_uid == self._job_uid and record.attempt < self._attempt


def is_own(choice: Choice) -> bool:
    """Whether it names a checkpoint of the job's own store, so that nothing else need be opened."""
    return parse_checkpoint_name(choice.name) is not None
