"""The one door to checkpoints for the training loop: preflight, restore, save, close.

Every method is called by all ranks; all return, or all raise the same kind of error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from resumable_training.checkpoint import optimizers, resume
from resumable_training.checkpoint.async_save import AsynchronousSaver
from resumable_training.checkpoint.errors import (
    NoResumePoint,
    StorageUnavailable,
    StoreMisconfigured,
)
from resumable_training.checkpoint.fence import Fence
from resumable_training.checkpoint.fitness import Needs
from resumable_training.checkpoint.footprint import state_bytes
from resumable_training.checkpoint.inventory import Inventory
from resumable_training.checkpoint.keeper import Flight, RankLink
from resumable_training.checkpoint.lineage import Lineage, is_own
from resumable_training.checkpoint.load import Loaded, Loader, Look
from resumable_training.checkpoint.memory import Memory
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.preflight import preflight
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.read import NotWhole
from resumable_training.checkpoint.recall import Room, recall, room
from resumable_training.checkpoint.reports import Fallback, Reached, RestoreReport, SaveReport
from resumable_training.checkpoint.resume import Choice
from resumable_training.checkpoint.save import Offer, Saver, SaveTask, SynchronousSaver
from resumable_training.checkpoint.saved import Source
from resumable_training.checkpoint.state import (
    Content,
    TrainingState,
    build_state_dict,
    check_schedules,
    require_tracked,
)
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import opened
from resumable_training.checkpoint.verify import DAMAGED, Verdict
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import (
    Manifest,
    Record,
    StoreIdentity,
    checkpoint_name,
)

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # pauses before "cannot tell" ends the attempt


class CheckpointEngine:
    """Checkpoints of one attempt. ``config`` may be replaced while it runs; ``keep_*`` are read each time."""

    def __init__(
        self,
        config: CheckpointConfig,
        job: str,
        job_uid: str,
        attempt: int,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        warn: Callable[[str], None],
        *,
        counted: bool = True,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        host: str | None = None,
    ) -> None:
        """``job``: "namespace/name"; ``warn`` is called on the rank that has something to say.

        ``counted`` False: ``attempt`` begins again at 1 with each start, as under torchrun, so that a lower
        number than the newest record's is not an attempt from the past.
        ``host``: rank 0's address; saves are asynchronous then, and without it synchronous.

        Raises:
            StoreMisconfigured: neither directory nor object storage is configured. One that can't be opened
                is refused by ``preflight``, on all ranks.
        """
        if not config.directory:
            raise StoreMisconfigured("no checkpoint directory is configured")
        self.config = config
        self._job, self._attempt = job, attempt
        self._ranks = Ranks(group, rank, world_size)
        self._warn = warn
        self._retry_seconds = tuple(retry_seconds)
        self._store = opened(config.directory)
        self._lineage = Lineage(
            self._store, job, job_uid, attempt, warn, counted=counted, retry_seconds=self._retry_seconds
        )
        self._identity: StoreIdentity | None = None
        self._record: Record | None = None
        self._keeper = RankLink(rank)
        self._saver: Saver = SynchronousSaver(self._store, self._ranks, warn)
        if host is not None:
            self._saver = AsynchronousSaver(self._store, self._ranks, host, warn, self._keeper)
        self._failed_saves = 0
        self._committed: SaveReport | None = None
        self._finished: SaveReport | None = None  # as _committed, or one that failed

    @property
    def store(self) -> Store:
        return self._store

    @property
    def record(self) -> Record | None:
        """The record this attempt trains under; None before ``restore``."""
        return self._record

    def preflight(self, state: TrainingState | None = None) -> None:
        """Claim the store and prove that it can be trusted; see ``preflight.preflight`` for errors.

        ``state``: what will be saved; without it nobody asks whether there is room for it.
        """
        needs = Needs(state_bytes(state) if state else 0)
        self._identity = preflight(self._store, self.config, self._job, self._ranks, needs, self._warn)

    # Restore --------------------------------------------------------------------------------------------

    def restore(self, state: TrainingState) -> RestoreReport | None:
        """Load the newest verified checkpoint on the chain and append this attempt's record.

        Before it chooses it waits for what an older attempt's writers on its workers still store.
        None: there was nothing to resume from, and starting from nothing is right.

        Raises:
            StateMismatch: the checkpoint does not fit; nothing was changed.
            StorageUnavailable: cannot tell, after retries.
            NoResumePoint: only damaged checkpoints, or the wanted one is not usable.
            Superseded: a newer attempt has its record.
        """
        require_tracked(state)
        started = time.monotonic()
        fallback: list[Fallback] = []
        pauses = list(self._retry_seconds)
        there, flights, rooms = self._look_around(state)
        while True:
            try:
                report = self._restore_once(there, rooms, fallback, started)
                return report and replace(report, landed=_landed(report, flights))
            except _ChooseAgain:
                continue
            except StorageUnavailable as error:
                if not pauses:
                    raise
                self._say(f"{error}; trying again")
                time.sleep(pauses.pop(0))

    def _look_around(self, state: TrainingState) -> tuple[Inventory, list[Flight], list[Room]]:
        """What is tracked here; how saves ended whose ranks had died; how much memory each machine has.

        Afterwards no writer of an older attempt is left on any worker of this one.
        """
        found: list[Inventory] = []

        def look() -> tuple[list[Flight], Room]:
            found.append(Inventory.of(state))
            return self._keeper.await_flights(), room()

        told = self._ranks.agree(look)
        flights = [one for mine, _ in told for one in mine]
        for line in _lost_lines([one for one in flights if not one.ok]):
            self._say(line)
        return found[0], flights, [where for _, where in told]

    def _restore_once(
        self, there: Inventory, rooms: Sequence[Room], fallback: list[Fallback], started: float
    ) -> RestoreReport | None:
        with ExitStack() as ours:
            opened: list[Loader] = []  # on rank 0

            def loader_of(source: Source) -> Loader:
                return ours.enter_context(closing(self._loader(source, there, rooms)))

            def look() -> tuple[Choice, int, Offer, Look | None]:
                rejected = [one.checkpoint for one in fallback]
                choice, head = self._lineage.choose(self.config, self._claimed, rejected)
                offer = self._saver.offer()
                if choice.kind == resume.FRESH:
                    return choice, head, offer, None
                source = self._lineage.source(choice)
                moment("load.pin")
                self._lineage.hold(source)
                moment("load.look")
                opened.append(loader_of(source))
                return choice, head, offer, opened[0].look()

            choice, head, offer, seen = self._ranks.first(look)
            if seen is None:
                self._ranks.together(lambda: self._rehearse(there.state))
                self._append_record(head + 1, None, deliberate=self.config.start_fresh)
                self._saver.start(offer)
                return None
            source = self._source_of_all(choice)
            loader = opened[0] if opened else loader_of(source)
            try:
                loaded = loader.load(seen)
            except NotWhole as error:
                self._pass_over(choice, error.verdict, fallback)
        for disagreement in check_schedules(there.state):
            self._say(f"{source.label}: {disagreement}")
        moment("load.record")
        record = self._append_record(
            head + 1, choice.name, loaded.manifest, deliberate=choice.kind == resume.DELIBERATE
        )
        moment("load.unpin")
        if self._ranks.rank == 0:
            self._lineage.release(source)
        self._saver.start(offer)
        report = _restore_report(source, record, loaded, fallback, time.monotonic() - started)
        return replace(report, deliberate=record.deliberate or choice.by_hand)

    def _loader(self, source: Source, there: Inventory, rooms: Sequence[Room]) -> Loader:
        """With what this worker still has of the resume point, once storage has said that it is that."""

        def remembered(manifest: Manifest | None) -> Memory:
            ours = manifest if source.store is self._store else None
            return recall(
                self._keeper,
                rooms,
                self._ranks.rank,
                source.name,
                ours,
                lambda: state_bytes(there.state),
                self._warn,
            )

        return Loader(source, there, self._ranks, self._warn, remembered)

    def _rehearse(self, state: TrainingState) -> None:
        """What can't be saved is better known now than after the first interval."""
        build_state_dict(state, shared={}, per_rank={}, rank=self._ranks.rank)

    def _source_of_all(self, choice: Choice) -> Source:
        """As ``Lineage.source``, on all ranks or none: what is elsewhere may open on some of them alone."""
        if is_own(choice):
            return self._lineage.source(choice)
        return self._ranks.together(lambda: self._lineage.source(choice))

    def _pass_over(self, choice: Choice, verdict: Verdict, fallback: list[Fallback]) -> NoReturn:
        """Choose again after a damaged checkpoint; give up on a wanted one."""
        if verdict.outcome != DAMAGED:
            raise StorageUnavailable(f"{choice.name}: cannot tell whether it is whole: {verdict.reason}")
        if choice.kind == resume.DELIBERATE:
            raise NoResumePoint(
                f"resumeFrom: {choice.name} can't be used: {verdict.reason}{self._lineage.older_than(choice)}"
            )
        self._say(f"{choice.name} is damaged ({verdict.reason}): falling back to the next older checkpoint")
        fallback.append(Fallback(choice.name, verdict.reason))
        raise _ChooseAgain

    def _append_record(
        self, seq: int, parent: str | None, manifest: Manifest | None = None, *, deliberate: bool
    ) -> Record:
        """The act by which this attempt owns the store from here on; a loser of the race is superseded."""
        record = self._lineage.record(
            seq, parent, manifest, deliberate=deliberate, requested=self.config.resume_from
        )
        self._record = self._ranks.first(lambda: self._lineage.append(record))
        return self._record

    # Save -----------------------------------------------------------------------------------------------

    def save(
        self,
        state: TrainingState,
        reached: Reached,
        *,
        history: tuple[str, ...] = (),
        anew: bool = False,
    ) -> SaveReport:
        """Commit everything at this step. The report's ``ok`` tells; training goes on in either case.

        Returns when the state may be changed again. Saving the same step twice commits once.
        ``anew``, the same on all ranks: they tell each other again what they hold, as at the first save.
        For the save after one whose report was ``unlike`` on rank 0: without it, it would fail like that one.

        Raises:
            Superseded: a newer attempt owns the store.
            NotPlain: a value that could only be saved with pickle.
        """
        require_tracked(state)
        assert self._record is not None, "restore comes before the first save"
        committed = self._committed
        if committed and (committed.step, committed.samples) == (reached.step, reached.samples):
            return committed
        task = replace(self._task(state, reached), history=history, anew=anew)
        return self._finish(self._saver.begin(task))

    def copy(self, state: TrainingState, reached: Reached, *, durable_seconds: float | None = None) -> bool:
        """Hold everything at this step in memory; it becomes a checkpoint if ranks die before the next copy
        or save, and all of them hold the same step. False: left out, as while a save is in flight.

        ``durable_seconds``: what a save takes until it is durable. So the next attempt waits long enough.

        Raises:
            NotPlain: as ``save``.
        """
        assert self._record is not None, "restore comes before the first copy"
        return self._saver.copy(self._task(state, reached), durable_seconds)

    @property
    def free_to_copy(self) -> bool:
        """False: ``copy`` would leave it out now, so that nothing need be collected for it.

        ``busy`` is another question: a writer that deletes is busy, and copies are held meanwhile.
        """
        return self._saver.free_to_copy

    @property
    def can_copy(self) -> bool:
        """False: ``copy`` will never hold anything here, and need not be asked again."""
        return self._saver.can_copy

    def drop_held(self) -> None:
        """Copies between saves are not to be stored; those of all ranks go, as they need all of them."""
        self._saver.drop_held()

    @property
    def copy_seconds(self) -> float | None:
        """What the newest copy took; None: there was none."""
        return self._saver.copy_seconds

    def _task(self, state: TrainingState, reached: Reached) -> SaveTask:
        assert self._record is not None
        return SaveTask(
            checkpoint_name(reached.step, self._record.seq),
            self._manifest(reached),
            Content(state, self._envelope(state, reached), reached.per_rank),
            self._fence,
            self._guard,
            keep_last=self.config.keep_last,
            keep_every_steps=self.config.keep_every_steps,
        )

    @property
    def busy(self) -> bool:
        """Whether a save now would have to wait for the one before."""
        return self._saver.busy

    @property
    def standing(self) -> bool:
        """Whether this rank's writer is up, as it is some time after the first ``poll``; never waits.

        A first save that comes earlier waits for it.
        """
        return self._saver.standing

    def poll(self) -> SaveReport | None:
        """The final report of a save that began earlier, once; does not wait.

        Raises:
            Superseded: it was found meanwhile that a newer attempt owns the store.
        """
        report = self._saver.poll()
        return self._finish(report) if report is not None else None

    def wait(self) -> SaveReport | None:
        """Until the last save is durable; its final report, or None when there was none.

        Raises:
            Superseded: as ``poll``.
        """
        report = self._saver.wait()
        return self._finish(report) if report is not None and report != self._finished else report

    def land(self, seconds: float) -> None:
        """Wait, not longer than that and without the other ranks, for what this rank is still storing."""
        self._saver.land(seconds)

    def hand_over(self, seconds: float) -> None:
        """Wait, not longer than that, until the writer of this rank can go on without it."""
        self._saver.hand_over(seconds)

    def close(self) -> SaveReport | None:
        """``wait``, and nothing may be saved afterwards."""
        report = self.wait()
        self._saver.close()
        self._keeper.close()
        self._record = None
        return report

    def _envelope(self, state: TrainingState, reached: Reached) -> dict[str, Any]:
        return {
            "step": reached.step,
            "samples": reached.samples,
            "world_size": self._ranks.world_size,
            "optimizers": {name: optimizers.class_name(state, name) for name in state.optimizers},
            "shared": dict(reached.shared),
        }

    def _manifest(self, reached: Reached) -> Manifest:
        assert self._record is not None
        fingerprint = reached.shared.get("fingerprint")
        return Manifest(
            store_id=self._claimed.store_id,
            record=self._record.seq,
            step=reached.step,
            samples=reached.samples,
            world_size=self._ranks.world_size,
            files={},
            attempt=self._attempt,
            torch_version=torch.__version__,
            data_fingerprint=fingerprint if isinstance(fingerprint, dict) else {},
            blocking_ms=self._committed.blocking_ms if self._committed else 0,
            durable_ms=self._committed.durable_ms if self._committed else 0,
        )

    @property
    def _claimed(self) -> StoreIdentity:
        assert self._identity is not None, "preflight comes first"
        return self._identity

    @property
    def _fence(self) -> Fence:
        assert self._record is not None
        return Fence(self._claimed, self._record.seq)

    def _guard(self) -> None:
        """On rank 0: is this still our store, and is our record still the newest?"""
        self._fence.check(self._store)

    def _finish(self, report: SaveReport) -> SaveReport:
        if not report.durable:
            return report
        self._finished = report
        if not report.ok:
            self._failed_saves += 1
            self._say(
                f"checkpoint {report.name} was not saved ({self._failed_saves} in a row),"
                f" training goes on: {report.message}"
            )
            return report
        if report.message:
            self._say(report.message)
        self._failed_saves = 0
        self._committed = report
        return report

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0:
            self._warn(text)


def _lost_lines(lost: Sequence[Flight]) -> list[str]:
    """What did not land, and why. That ranks had copied different steps is one event."""
    names = sorted({one.checkpoint for one in lost})
    whys = list(dict.fromkeys(one.message for one in lost))
    if len(names) > 1:
        names, whys = [" and ".join(names)], ["ranks held different steps"]
    what = "in flight when the attempt before ended, did not land"
    return [f"checkpoint {name}, {what}: {why}" for name in names for why in whys]


def _landed(report: RestoreReport, flights: Sequence[Flight]) -> SaveReport | None:
    """The save that made the resume point, if its ranks did not live to tell."""
    for one in flights:
        if one.ok and one.checkpoint == report.checkpoint:
            save = SaveReport(report.checkpoint, report.step, report.samples, one.bytes)
            return replace(save, durable_ms=round(one.seconds * 1000))
    return None


class _ChooseAgain(Exception):
    """Not an error: the loop in ``restore`` goes round once more."""


def _restore_report(
    source: Source, record: Record, loaded: Loaded, fallback: Sequence[Fallback], seconds: float
) -> RestoreReport:
    shared = loaded.shared
    return RestoreReport(
        checkpoint=source.label,
        record=record.seq,
        step=shared.get("step", 0),
        samples=shared.get("samples", 0),
        shared=shared.get("shared", {}),
        memory_bytes=loaded.memory_bytes,
        storage_bytes=loaded.storage_bytes,
        per_rank=loaded.per_rank,
        saved_world_size=shared.get("world_size", 0),
        fallback=tuple(fallback),
        seconds=seconds,
    )
