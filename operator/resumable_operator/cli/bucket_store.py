"""Checkpoints in object storage, as ``rtj checkpoints`` sees them. Needs no torch.

Credentials and endpoint come from the environment, as they do for the job that wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from resumable_operator.cli.directory_store import (
    Target,
    all_targets,
    chosen,
    listing_of,
    one_target,
    store_errors,
    verify_all,
)
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.source import Checked, Listing
from resumable_operator.decide.assign import store_root
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_checkpoint, open_store
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

PREFIX = "AWS_"  # of the variables that an S3 client reads


class BucketStore:
    """``source.CheckpointSource`` of an URL.

    Args:
        environment: variables that the job sets for itself, above those of this process.
    """

    def __init__(self, url: str, environment: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._environment = environment or {}

    @property
    def title(self) -> str:
        return self._url

    def listing(self) -> Listing:
        with _environment(self._environment), store_errors():
            store = open_store(self._url)
            if store.size(MARKER_FILE) is not None:
                raise UsageProblem(
                    f"{self._url} is one checkpoint: give what holds it, {self._url.rpartition('/')[0]}"
                )
            return listing_of(store, lambda: foreign_prefixes(store))

    def verify(self, step: int | None, tell: Callable[[Checked], None]) -> list[Checked]:
        with _environment(self._environment):
            return verify_all(lambda: self._targets(step), tell)

    def _targets(self, step: int | None) -> list[Target]:
        store = open_store(self._url)
        if store.size(MARKER_FILE) is not None:
            found = [one_target(*open_checkpoint(self._url))]
        else:
            found = all_targets(store, foreign_prefixes(store))
        return chosen(found, step, self._url)


def foreign_prefixes(store: Store) -> list[str]:
    """What another program's DCP made directly below the store, newest first.

    No deeper: a bucket is large, and each level costs a listing for each prefix.
    """
    found = []
    for entry in store.entries():
        if entry.is_directory and parse_checkpoint_name(entry.name) is None:
            times = [each.modified for each in store.entries(entry.name) if each.name == MARKER_FILE]
            found += [(modified, entry.name) for modified in times]
    return [name for _, name in sorted(found, reverse=True)]


def bucket_of_run(directory: Path) -> BucketStore | None:
    """The store of the run in that directory, if it is in object storage."""
    spec = RunDir(directory).spec() if is_run(directory) else None
    if spec is None or spec.checkpoint.s3 is None:
        return None
    own = spec.worker_container().get("env") or ()
    given = {str(entry.get("name")): str(entry.get("value") or "") for entry in own}
    environment = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    return BucketStore(store_root(spec.checkpoint), environment)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """With these variables, which the client reads whenever it is made."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
