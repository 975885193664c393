"""Checkpoints in object storage, as ``rtj checkpoints`` sees them. Needs no torch.

Credentials and endpoint come from the environment, as they do for the job that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from resumable_operator.cli.directory_store import keeping_of
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.output import warning
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.store_source import Keeping, Opened, StoreSource, store_errors
from resumable_operator.decide.assign import store_root
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_checkpoint, open_store
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

PREFIX = "AWS_"  # of the variables that an S3 client reads


class BucketStore(StoreSource):
    """Of an URL.

    Args:
        environment: variables ``AWS_...``, above those of this process.
        keeping: what the job keeps, where it is known.
    """

    def __init__(
        self, url: str, environment: Mapping[str, str] | None = None, keeping: Keeping | None = None
    ) -> None:
        self._url = url
        self._environment = environment
        self._keeping = keeping or Keeping()

    @property
    def title(self) -> str:
        return self._url

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        with store_errors():
            store = open_store(self._url, self._environment, warning)
            if store.size(MARKER_FILE) is not None:
                above, name = open_checkpoint(self._url, self._environment, warning)
                yield Opened(above, list, name)
            else:
                yield Opened(store, lambda: foreign_prefixes(store))

    def keeping(self) -> Keeping:
        return self._keeping


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


def bucket_of_run(directory: Path, environment: Mapping[str, str] | None = None) -> BucketStore | None:
    """The store of the run in that directory, if it is in object storage.

    Args:
        environment: variables ``AWS_...``, in place of those that the job sets for itself.
    """
    spec = RunDir(directory).spec() if is_run(directory) else None
    if spec is None or spec.checkpoint.s3 is None:
        return None
    own = spec.worker_container().get("env") or ()
    given = {str(entry.get("name")): str(entry.get("value") or "") for entry in own}
    if environment is None:
        environment = {name: value for name, value in given.items() if name.startswith(PREFIX)}
    return BucketStore(store_root(spec.checkpoint), environment, keeping_of(spec))


def sides(
    variables: MutableMapping[str, str], source: str | None, target: str | None
) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    """What source and target of a copy are reached with, where each has variables of its own.

    A prefix is put in front of the names, as by ``envFrom.prefix`` of a container: with ``OLD_`` the source's
    key is ``OLD_AWS_ACCESS_KEY_ID``. A side without a prefix has the plain names. These are taken out of
    ``variables`` (those of this process), or a client would mix them with the other's.

    Raises:
        UsageProblem: there is no variable with that prefix.
    """
    if source is None and target is None:
        return None, None
    found = _with_prefix(variables, "--source-env", source), _with_prefix(variables, "--target-env", target)
    for name in [name for name in variables if name.startswith(PREFIX)]:
        del variables[name]
    return found


def _with_prefix(variables: Mapping[str, str], option: str, prefix: str | None) -> dict[str, str]:
    begin = f"{prefix or ''}{PREFIX}"
    found = {
        name.removeprefix(prefix or ""): value for name, value in variables.items() if name.startswith(begin)
    }
    if prefix is not None and not found:
        raise UsageProblem(f"{option} {prefix}: no variable {begin}... is set, such as {begin}ACCESS_KEY_ID")
    return found
