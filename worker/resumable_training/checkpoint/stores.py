"""From what a user writes (a directory, ``s3://BUCKET/PREFIX``) to a store. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, cast

from resumable_training.checkpoint.errors import StoreMisconfigured
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.s3 import S3Store
from resumable_training.checkpoint.store import Store

S3_SCHEME = "s3://"


def is_url(location: str) -> bool:
    """As a path it would be a directory that goes with the container."""
    return "://" in location


def open_store(
    location: str,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Store:
    """The store at a directory or an URL; nothing is read yet.

    Args:
        environment: variables ``AWS_...`` for this store alone, above those of the process.
        tell: told once of a server that is waited for.

    Raises:
        StoreMisconfigured: an URL that we have no store for, or its client is not installed, or is
            told what it does not understand.
    """
    if not is_url(location):
        return LocalStore(location)
    if location.startswith(S3_SCHEME):
        return S3Store(location, environment=environment, tell=tell)
    raise StoreMisconfigured(f"{location}: checkpoints go to a directory or to {S3_SCHEME}BUCKET/PREFIX")


class Unopened:
    """Stands for a store that can't be opened here: whatever else is asked of it raises ``why``.

    One rank alone may lack the client. It must not raise before the ranks tell each other.
    """

    def __init__(self, location: str, why: StoreMisconfigured) -> None:
        self.location = location
        self.why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise self.why


def opened(location: str) -> Store:
    """As ``open_store``, but what it would raise is raised at the store's first use."""
    try:
        return open_store(location)
    except StoreMisconfigured as error:
        return cast(Store, Unopened(location, error))


def open_checkpoint(
    location: str,
    environment: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Store, str]:
    """The store that one checkpoint lies in, and its name there; the rest as for ``open_store``.

    Raises:
        StoreMisconfigured: as for ``open_store``, or no name is left.
    """
    if not is_url(location):
        path = Path(location).absolute()
        return LocalStore(path.parent), path.name
    parent, _, name = location.rstrip("/").rpartition("/")
    if not name or parent.endswith(":/"):
        raise StoreMisconfigured(f"{location} is a bucket, not a checkpoint in one")
    return open_store(parent, environment, tell), name
