"""For commands whose bytes come to this machine: which checkpoint is meant, held while it is read."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from resumable_operator.cli.checkpoints_common import Pod
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import warning
from resumable_operator.cli.place import Place
from resumable_operator.cli.store_source import Opened, StoreSource, chosen, naming_next_older, store_errors
from resumable_training.checkpoint import pins
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import STORE_FILE, parse_checkpoint_name

HOLD_SECONDS = 3600.0
_POD = Pod()


@dataclass(frozen=True)
class Reading:
    """A checkpoint to read. ``foreign``: it may be another program's."""

    store: Store
    name: str

    @property
    def foreign(self) -> bool:
        return parse_checkpoint_name(self.name) is None

    @property
    def location(self) -> str:
        return f"{self.store.location}/{self.name}"


@contextmanager
def reading(
    where: str,
    which: str | None,
    place: Place,
    holder: str,
    environment: Mapping[str, str] | None = None,
    pod: Pod = _POD,
) -> Iterator[Reading]:
    """The checkpoint that is meant, pinned for the length of the block.

    Args:
        holder: who reads, for people.
        environment: variables ``AWS_...`` for a bucket, above those of this process.
        pod: that serves it to this machine, if it is a job's in a cluster.

    Raises:
        DamagedFound: its bytes are not those that were written; names the next older one.
        UsageProblem: there is none.
    """
    with opened_here(where, place, environment, pod) as found:
        store, name = chosen(found, which)
        with naming_next_older(found, "--step"), pinned(store, name, holder):
            yield Reading(store, name)


@contextmanager
def opened_here(
    where: str, place: Place, environment: Mapping[str, str] | None = None, pod: Pod = _POD
) -> Iterator[Opened]:
    """The store, as if it were on this machine."""
    with checkpoints_at(where, place, pod.image, pod.time_limit, environment) as source, sigterm_interrupts():
        if isinstance(source, StoreSource):
            with source.opened() as found:
                yield found
            return
        from resumable_operator.cli.reader import ReaderStore

        assert isinstance(source, ReaderStore)
        with store_errors(), source.served() as store:
            yield Opened(store, store.foreign, store.only)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """For the length of the block it is like Ctrl-C: a pin is given back, and what is half written goes."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def pinned(store: Store, name: str, holder: str) -> Iterator[None]:
    """Held, where that can be: a store that is read-only here says so, and is read all the same."""
    with ExitStack() as stack:
        if parse_checkpoint_name(name) and store.size(STORE_FILE) is not None:
            try:
                stack.enter_context(pins.holding(store, name, holder, HOLD_SECONDS, warning))
            except StorageUnavailable as error:
                warning(f"{name} can't be pinned, so the job's retention may delete it meanwhile: {error}")
        yield
