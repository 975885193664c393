"""For commands that read a checkpoint's bytes on this machine: which one is meant, held while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import warning
from resumable_operator.cli.place import Place
from resumable_operator.cli.store_source import Opened, StoreSource, chosen, naming_next_older
from resumable_operator.decide.assign import store_root
from resumable_training.checkpoint import pins
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import STORE_FILE, parse_checkpoint_name

if TYPE_CHECKING:
    from resumable_operator.cli.reader import ReaderStore

HOLD_SECONDS = 3600.0


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
) -> Iterator[Reading]:
    """The checkpoint that is meant, pinned for the length of the block.

    Args:
        holder: who reads, for people.
        environment: variables ``AWS_...`` for a bucket, above those of this process.

    Raises:
        DamagedFound: its bytes are not those that were written; names the next older one.
        UsageProblem: there is none; or it is a job's in a cluster, and then how to reach it.
    """
    with opened_here(where, place, environment) as found:
        store, name = chosen(found, which)
        with naming_next_older(found, "--step"), pinned(store, name, holder):
            yield Reading(store, name)


@contextmanager
def opened_here(where: str, place: Place, environment: Mapping[str, str] | None = None) -> Iterator[Opened]:
    """The store, on this machine."""
    with checkpoints_at(where, place, None, None, environment) as source:
        if not isinstance(source, StoreSource):
            from resumable_operator.cli.reader import ReaderStore

            assert isinstance(source, ReaderStore)
            raise UsageProblem(_how_to_reach(source, where))
        with source.opened() as found:
            yield found


def _how_to_reach(source: ReaderStore, job: str) -> str:
    """What to do about a store that only a cluster's pods can read."""
    spec = source.spec()
    root = store_root(spec.checkpoint)
    command = click.get_current_context().command_path.rpartition(" ")[2]
    here = f"`rtj checkpoints {command}`"
    if spec.checkpoint.s3 is not None:
        return (
            f"job {job} keeps its checkpoints in {root}: give {here} that URL instead of the job, without -n,"
            " with credentials in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL where it"
            " is not AWS"
        )
    pod = f"{source.session.namespace}/{job}-0-1"
    return (
        f"job {job} keeps its checkpoints on a claim, which this machine can't read. Fetch one through a pod"
        f" that mounts it (kubectl rtj status {job} lists the job's own), and give {here} the copy:"
        f" kubectl cp -c worker {pod}:{root}/step-00001200.7 step-00001200.7"
    )


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
