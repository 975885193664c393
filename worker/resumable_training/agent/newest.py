"""The checkpoint that scripts without the library are offered: the newest DCP directory that is whole.

Rank 0's agent looks, before it starts an attempt's ranks; what it finds is handed to all other members, so
that all ranks resume from the same one. "Whole" is what can be known without a manifest: the marker parses,
and every shard that it names has the bytes that it needs. Damaged ones are passed over for older ones; when
it can't be told whether one is whole, nothing older is offered in its place.

The search runs in a thread of its own: a file system that hangs must not take the agent with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, List, Optional, Tuple, TypeVar

from resumable_training.agent.bounded import within
from resumable_training.contract import env
from resumable_training.contract.assignment import Assignment
from resumable_training.contract.manifest import MARKER_FILE
from resumable_training.contract.marker import DamagedMarker, parse_marker

DEPTH = 3  # directories below the root, e.g. run/epoch/step
LOOK_SECONDS = 20.0  # for the search; what was found until then counts
HANG_SECONDS = 30.0  # then the storage is called hanging
YOUNG_SECONDS = 60.0  # a marker so fresh may be seen before its shards (attribute caches of NFS)
PATIENCE_SECONDS = 10.0  # how long such shards are waited for
VISIBLE_SECONDS = 30.0  # how late another machine's directory may be seen
_PAUSE_SECONDS = 0.2
_SKIPPED = ("lost+found",)  # and hidden ones: a file server's snapshots hold old copies of everything

T = TypeVar("T")


class CannotTell(Exception):
    """The storage gives no answer. The text says what was tried."""


@dataclass(frozen=True)
class Offer:
    """``directory`` is empty when there is none; ``notes`` are worth a warning each."""

    directory: str = ""
    notes: Tuple[str, ...] = ()


async def with_offer(wanted: Assignment) -> Tuple[Assignment, Tuple[str, ...]]:
    """The assignment with what its ranks are offered, in ``env``; and warnings.

    Raises:
        CannotTell: see ``newest_checkpoint`` and ``wait_until_visible``.
    """
    root = wanted.checkpoint.directory
    given = wanted.env.get(env.RESUME_FROM)
    offer = Offer(given or "")
    if given:
        await in_thread(lambda: wait_until_visible(Path(given)), given, VISIBLE_SECONDS + HANG_SECONDS)
    elif given is None and should_look(wanted):
        offer = await in_thread(lambda: newest_checkpoint(Path(root)), root)
    return replace(wanted, env={**wanted.env, env.RESUME_FROM: offer.directory}), offer.notes


def should_look(assignment: Assignment) -> bool:
    """PURE: is this agent the one that looks, and is there a directory to look into?"""
    root = assignment.checkpoint.directory
    return assignment.member().first_rank == 0 and bool(root) and "://" not in root


def newest_checkpoint(root: Path, look_seconds: float = LOOK_SECONDS) -> Offer:
    """Search ``root``. The newest is the one with the youngest marker; at equal times, the greater name.

    Raises:
        CannotTell: the newest one, or ``root`` itself, can't be read.
    """
    notes: List[str] = []
    found = _markers(root, time.monotonic() + look_seconds, notes)
    found.sort(key=lambda each: (each[0], each[1].name), reverse=True)
    for number, (modified, directory) in enumerate(found):
        fresh = number == 0 and abs(time.time() - modified) < YOUNG_SECONDS
        problem = _problem(directory, PATIENCE_SECONDS if fresh else 0.0)
        if problem is None:
            return Offer(str(directory), tuple(notes))
        notes.append("%s is not offered to resume from: %s" % (directory, problem))
    return Offer("", tuple(notes))


def wait_until_visible(directory: Path, seconds: float = VISIBLE_SECONDS) -> None:
    """Until this machine sees the marker that rank 0's saw.

    Raises:
        CannotTell: it does not.
    """
    deadline = time.monotonic() + seconds
    while not _sees_marker(directory):
        if time.monotonic() >= deadline:
            raise CannotTell(
                "rank 0's machine offers %s, but this one has not seen it for %d s: "
                "every worker must mount the same storage (NFS may be late, but not so late)"
                % (directory, seconds)
            )
        time.sleep(_PAUSE_SECONDS)


async def in_thread(work: Callable[[], T], what: str, seconds: float = HANG_SECONDS) -> T:
    """Run blocking file work beside the loop, in a thread that holds up nobody's exit.

    Raises:
        CannotTell: it said so, or took longer than ``seconds``.
    """
    loop = asyncio.get_running_loop()
    result: "asyncio.Future[T]" = loop.create_future()

    def settle(value: Optional[T], error: Optional[BaseException]) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, problem = None, None  # type: Optional[T], Optional[BaseException]
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - handed to the one who waits
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, name="storage", daemon=True).start()
    try:
        return await within(result, seconds)
    except asyncio.TimeoutError:
        raise CannotTell("%s gives no answer for %d s" % (what, seconds)) from None


def _markers(root: Path, give_up_at: float, notes: List[str]) -> List[Tuple[float, Path]]:
    """(time of the marker, directory), level by level."""
    found: List[Tuple[float, Path]] = []
    level = [root]
    for _ in range(DEPTH + 1):
        below: List[Path] = []
        for directory in level:
            if time.monotonic() >= give_up_at:
                notes.append(
                    "%s holds too much to search it all for checkpoints; give the job a directory of its own"
                    % root
                )
                return found
            below += _scan(directory, directory == root, found, notes)
        level = below
    return found


def _scan(directory: Path, is_root: bool, found: List[Tuple[float, Path]], notes: List[str]) -> List[Path]:
    """Note the marker of one directory; its subdirectories."""
    below = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name == MARKER_FILE and entry.is_file():
                    found.append((entry.stat().st_mtime, directory))
                elif not entry.name.startswith(".") and entry.name not in _SKIPPED and entry.is_dir():
                    below.append(directory / entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []  # not made yet, or gone since it was listed
    except OSError as error:
        if isinstance(error, PermissionError) and not is_root:
            notes.append("%s is not searched for checkpoints: %s" % (directory, error.strerror))
            return []
        raise CannotTell("%s can't be searched for checkpoints: %s" % (directory, error.strerror)) from error
    return below


def _problem(directory: Path, patience_seconds: float) -> Optional[str]:
    """What is wrong with it; None when it is whole."""
    try:
        marker = parse_marker((directory / MARKER_FILE).read_bytes())
        outside = marker.outside()
        if outside is not None:
            return "%s names a file outside it: %s" % (MARKER_FILE, outside)
        return marker.gap() or _missing(directory, sorted(marker.needed_bytes().items()), patience_seconds)
    except DamagedMarker as error:
        return "%s: %s" % (MARKER_FILE, error)
    except FileNotFoundError as error:  # of the marker: it is being deleted
        return "%s is gone" % error.filename
    except OSError as error:
        raise CannotTell("%s can't be checked: %s" % (directory, error.strerror)) from error


def _missing(directory: Path, needed: List[Tuple[str, int]], patience_seconds: float) -> Optional[str]:
    """The first file that is missing or short, after looking again for a while."""
    deadline = time.monotonic() + patience_seconds
    while True:
        problem = _short_file(directory, needed)
        if problem is None or time.monotonic() >= deadline:
            return problem
        time.sleep(_PAUSE_SECONDS)
        _list_again(directory)


def _short_file(directory: Path, needed: List[Tuple[str, int]]) -> Optional[str]:
    for name, wanted in needed:
        try:
            size = os.stat(directory / name).st_size
        except (FileNotFoundError, NotADirectoryError):
            return "%s is missing" % name
        if size < wanted:
            return "%s has %d bytes, not %d" % (name, size, wanted)
    return None


def _sees_marker(directory: Path) -> bool:
    """Asks the server again: a listing is what makes an NFS client do so."""
    _list_again(directory.parent)
    try:
        return MARKER_FILE in os.listdir(directory)
    except OSError:
        return False


def _list_again(directory: Path) -> None:
    try:
        os.listdir(directory)
    except OSError:
        return  # whoever needs what is in it finds out
