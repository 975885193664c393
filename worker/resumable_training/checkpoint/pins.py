"""Hold checkpoints, so that retention leaves them alone: for an export, a copy, an evaluation job. No torch.

::

    from resumable_training.checkpoint import pins

    with pins.held("runs/gpt/checkpoints", holder="eval", step=1200) as path:
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=path)

A pin says until when it holds, so that one whose holder died ends by itself; while the block runs it is
renewed. Retention looks at the pins before it deletes: a checkpoint that was going just then is chosen again.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from resumable_training.checkpoint.documents import DamagedDocument, Pin, pin, pin_names, unpin, unseal
from resumable_training.checkpoint.errors import CheckpointError, NoResumePoint, StoreExists, StoreNotFound
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import open_store
from resumable_training.checkpoint.wanted import choices, find
from resumable_training.contract.manifest import MARKER_FILE, PINS_DIRECTORY

HOLD_SECONDS = 3600.0
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class PinFile:
    """A pin and the file that it is in. ``pin`` None: it can't be read, so it may hold any checkpoint."""

    file: str  # without ``.json``
    pin: Pin | None

    def counts(self, now: float) -> bool:
        return self.pin is None or self.pin.until > now


def read_pin_files(store: Store) -> list[PinFile]:
    """All of them, also expired and damaged ones.

    Raises:
        StorageUnavailable: they can't be listed or read.
    """
    found = []
    for name in pin_names(store):
        try:
            document = store.read(f"{PINS_DIRECTORY}/{name}.json")
        except StoreNotFound:
            continue  # given back since the listing
        try:
            found.append(PinFile(name, unseal(Pin, document)))
        except DamagedDocument:
            found.append(PinFile(name, None))
    return found


def file_name(holder: str, checkpoint: str) -> str:
    """One for each holder and checkpoint, so that pinning again only changes the time."""
    plain = _UNFIT.sub("-", holder).strip("-")[:40]
    told = hashlib.sha256(f"{holder}\n{checkpoint}".encode()).hexdigest()[:12]
    return f"{plain or 'pin'}-{told}"


def give(store: Store, held: Pin, file: str | None = None) -> str:
    """Hold a checkpoint until ``held.until``; the name of the pin's file (``file``, or the holder's own).

    Raises:
        NoResumePoint: it is not there, or retention has just taken it.
        StorageUnavailable: cannot tell whether it is held.
    """
    name = file or file_name(held.holder, held.checkpoint)
    try:
        pin(store, name, held)
    except StoreNotFound:  # a copied store, whose job has not begun there yet
        _make_directory(store)
        pin(store, name, held)
    if store.size(f"{held.checkpoint}/{MARKER_FILE}") is None:  # looked at after: retention looks before
        unpin(store, name)
        raise NoResumePoint(f"{held.checkpoint} is not there, or not complete: it can't be held")
    return name


def _make_directory(store: Store) -> None:
    try:
        store.make_directory(PINS_DIRECTORY)
    except StoreExists:
        return


def take_back(store: Store, files: list[PinFile]) -> None:
    """Give pins back."""
    for one in files:
        unpin(store, one.file)


@contextmanager
def held(
    where: str,
    *,
    holder: str,
    step: int | None = None,
    seconds: float = HOLD_SECONDS,
    warn: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Hold a checkpoint of the store at ``where`` (a directory or an URL) for the length of a block.

    Args:
        holder: who reads, for people.
        step: of the checkpoint, on the chain; None: the newest.
        seconds: how long it is still held when this process dies. It is renewed every third of that.
        warn: told when it could not be renewed; the checkpoint may then go when the time is over.

    Returns:
        The path, or the URL, of the checkpoint.

    Raises:
        NoResumePoint: there is no such checkpoint; says which there are.
        StorageUnavailable: the store can't be read, or not be written.
    """
    store = open_store(where)
    for _ in range(3):  # retention may take the one that was chosen
        name = _choose(store, step)
        try:
            with holding(store, name, holder, seconds, warn):
                yield f"{store.location}/{name}"
        except _Gone:
            continue
        return
    raise NoResumePoint(f"{store.location}: each checkpoint that was chosen has been deleted meanwhile")


def _choose(store: Store, step: int | None) -> str:
    seen = survey(store)
    if step is not None:
        return find(seen, str(step))
    if not seen.resume_points:
        raise NoResumePoint(f"{store.location}: {choices(seen)}")
    return seen.resume_points[0]


class _Gone(NoResumePoint):
    """It went between the choice and the pin."""


@contextmanager
def holding(
    store: Store, name: str, holder: str, seconds: float, warn: Callable[[str], None] | None = None
) -> Iterator[None]:
    """As ``held``, of a checkpoint by its name. Raises NoResumePoint when it is not there."""
    try:
        unique = f"{file_name(holder, name)}-{uuid.uuid4().hex[:8]}"  # the same holder may read it twice
        file = give(store, Pin(name, holder, time.time() + seconds), unique)
    except NoResumePoint as error:
        raise _Gone(str(error)) from error
    over = threading.Event()
    arguments: tuple[Any, ...] = (store, Pin(name, holder, 0.0), file, seconds, over, warn)
    renewal = threading.Thread(target=_renew, args=arguments, name="pin", daemon=True)
    renewal.start()
    try:
        yield
    finally:
        over.set()
        renewal.join()
        try:
            unpin(store, file)
        except CheckpointError as error:  # it ends by itself
            if warn:
                warn(f"{name} stays pinned for up to {seconds:.0f} s: {error}")


def _renew(
    store: Store,
    held: Pin,
    file: str,
    seconds: float,
    over: threading.Event,
    warn: Callable[[str], None] | None,
) -> None:
    while not over.wait(seconds / 3):
        try:
            pin(store, file, Pin(held.checkpoint, held.holder, time.time() + seconds))
        except CheckpointError as error:
            if warn:
                warn(f"{held.checkpoint} could not be pinned for longer: {error}")
