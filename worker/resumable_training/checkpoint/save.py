"""How a save is asked for, and the way of saving that stops training until the checkpoint is durable.

Shards first, each hashed by the rank that writes it; then what ``commit`` does. Any rank's error ends the
save on all ranks before the marker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from resumable_training.checkpoint.commit import claim, commit, discard
from resumable_training.checkpoint.errors import (
    CheckpointError,
    StorageUnavailable,
    StoreExists,
    StoreNotFound,
    Superseded,
    Unstorable,
)
from resumable_training.checkpoint.fence import Fence
from resumable_training.checkpoint.files import StoreWriter, single_process_is_fine
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.reports import SaveReport
from resumable_training.checkpoint.state import Content
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.sweep import Sweeper
from resumable_training.contract.manifest import FileEntry, Manifest

Offer = tuple[str, int]  # a secret of this attempt's writers, and the port at which they meet


@dataclass(frozen=True)
class SaveTask:
    """One save, ready to be written. ``manifest`` has everything but its files."""

    name: str
    manifest: Manifest
    content: Content
    fence: Fence
    guard: Callable[[], None]  # the fence, in this process: on rank 0, before and after writing
    history: tuple[str, ...] = ()  # lines for reports, of rank 0; written after the commit
    keep_last: int = 2  # of retention, which follows the commit
    keep_every_steps: int | None = None
    anew: bool = False  # ranks are to tell each other again what they hold; the same on all


class Saver(Protocol):
    """How checkpoints get to the store. All methods are called by all ranks."""

    def offer(self) -> Offer:
        """On rank 0, before ``start``: what it gets on every rank. Raises StorageUnavailable."""
        ...

    def start(self, offer: Offer) -> None:
        """Get ready, in the background, while the ranks train up to the first save. Once; then nothing."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a save now would have to wait for the one before."""
        ...

    @property
    def standing(self) -> bool:
        """Whether the first save need not wait for anything to come up; never waits itself."""
        ...

    def begin(self, task: SaveTask) -> SaveReport:
        """Take the state as it is now; the report is final if ``durable``.

        Raises Superseded; other errors of the store are in a report.
        """
        ...

    @property
    def free_to_copy(self) -> bool:
        """Whether nothing is in the way of a copy now: no save in flight, no copy that GPUs still make."""
        ...

    def copy(self, task: SaveTask, durable_seconds: float | None = None) -> bool:
        """Have the state as it is now held in memory, and stored should ranks die; whether that was done.

        It takes the place of the copy before, and is left out where it is not ``free_to_copy``.
        ``durable_seconds``: what a save takes until it is durable, as far as that is known.
        """
        ...

    @property
    def copy_seconds(self) -> float | None:
        """From the call to where it was whole, of the newest copy that is."""
        ...

    @property
    def can_copy(self) -> bool:
        """False: no copy will ever be held."""
        ...

    def drop_held(self) -> None:
        """What was copied between saves is not to be stored; a save in flight is none of it."""

    def poll(self) -> SaveReport | None:
        """The final report of a save that began earlier, once; does not wait. Raises Superseded."""
        ...

    def wait(self) -> SaveReport | None:
        """Until nothing is in flight; the report of the last save, now final. None: there was none."""
        ...

    def land(self, seconds: float) -> None:
        """As ``wait``, but for this rank's part alone, and no longer than that."""
        ...

    def hand_over(self, seconds: float) -> None:
        """Until what is in flight needs this process no more, and no longer than that."""
        ...

    def close(self) -> None:
        """Nothing is saved afterwards."""
        ...


class SynchronousSaver:
    """Durable when ``begin`` returns. Written by DCP itself, so it takes whatever DCP takes."""

    busy = False
    standing = True
    free_to_copy = True
    copy_seconds: float | None = None

    def __init__(
        self, store: Store, ranks: Ranks, warn: Callable[[str], None], *, apart: bool = False
    ) -> None:
        """``apart``: ranks hold other values of the same, so that the first one has to store all of it."""
        self._store = store
        self._apart = apart
        self._ranks = ranks
        self._warn = warn
        self._sweeper = Sweeper(store)
        self._last: SaveReport | None = None

    def begin(self, task: SaveTask) -> SaveReport:
        started = time.monotonic()
        report = SaveReport(task.name, task.manifest.step, task.manifest.samples)
        claimed = False
        try:
            self._ranks.first(lambda: claim(self._store, task.name, task.guard))
            claimed = True
            size, note = self._write_and_commit(task)
            report = replace(report, bytes=size, message=note)
        except Superseded:
            raise
        except Unstorable as error:
            if self._last is None:  # better now than after more work; later it is a save that fails
                raise
            left = self._ranks.first(lambda: discard(self._store, task.name)) if claimed else ""
            report = replace(report, ok=False, message=f"{error}{left}")
        except (StorageUnavailable, StoreNotFound, StoreExists) as error:
            left = self._ranks.first(lambda: discard(self._store, task.name)) if claimed else ""
            report = replace(report, ok=False, message=f"{error}{left}")
        elapsed = round((time.monotonic() - started) * 1000)
        self._last = self._ranks.first(lambda: replace(report, blocking_ms=elapsed, durable_ms=elapsed))
        if self._ranks.rank == 0:
            self._sweep(task, short=not report.ok)
        return self._last

    def offer(self) -> Offer:
        return "", 0

    def start(self, offer: Offer) -> None:
        return None

    def copy(self, task: SaveTask, durable_seconds: float | None = None) -> bool:
        return False

    @property
    def can_copy(self) -> bool:
        return False

    def drop_held(self) -> None:
        return None

    def poll(self) -> SaveReport | None:
        return None

    def wait(self) -> SaveReport | None:
        return self._last

    def land(self, seconds: float) -> None:
        return None

    def hand_over(self, seconds: float) -> None:
        return None

    def close(self) -> None:
        return None

    def _write_and_commit(self, task: SaveTask) -> tuple[int, str]:
        """What ``commit`` has to say."""
        state_dict = self._ranks.together(lambda: task.content.build(self._ranks.rank))
        writer = StoreWriter(self._store, task.name)
        write_shards(writer, state_dict, self._ranks, apart=self._apart)
        parts = self._ranks.gather(writer.files.written)
        files = {file: entry for part in parts for file, entry in part.items()}
        return self._ranks.first(lambda: self._commit(task, files, writer.files.marker))

    def _commit(self, task: SaveTask, files: dict[str, FileEntry], marker: bytes | None) -> tuple[int, str]:
        assert marker is not None
        return commit(self._store, task.name, task.manifest, files, marker, task.guard, task.history)

    def _sweep(self, task: SaveTask, *, short: bool) -> None:
        problem = self._sweeper.sweep(task.keep_last, task.keep_every_steps, short=short)
        if problem:
            self._warn(problem)


def write_shards(
    writer: StoreWriter, state_dict: dict[str, Any], ranks: Ranks, *, apart: bool = False
) -> None:
    """All shards of all ranks, synced. ``apart``: of what several have, the first one's.

    Raises:
        StorageUnavailable: on all ranks, when the store failed on any.
        RuntimeError: on all ranks, for any other error.
    """
    try:
        with single_process_is_fine():
            dcp_save(
                state_dict,
                storage_writer=writer,
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=apart),
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
    except CheckpointException as error:
        raise storage_failure(error, "saving") from error


def storage_failure(error: CheckpointException, doing: str) -> Exception:
    """What DCP collected from all ranks, as one error of ours."""
    failures = {rank: failure for rank, (failure, _) in error.failures.items()}
    text = "; ".join(f"rank {rank}: {failure}" for rank, failure in sorted(failures.items()))
    if all(isinstance(failure, (OSError, CheckpointError)) for failure in failures.values()):
        return StorageUnavailable(f"{doing} failed on {text}")
    return RuntimeError(f"{doing} failed on {text}")
