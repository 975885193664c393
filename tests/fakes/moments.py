"""Breaks a rank at an exact moment of its life, without any change to the library it runs.

A test puts wishes into the environment (``environment_for``); the training script calls ``arm()`` before
``rt.start()``, which wraps the library's own functions, also in the rank's checkpoint writer, and ``reach()``
at moments of its own. A wish is granted once: the rank notes that it is there (a file), and then kills itself
or waits. At a moment of a save it is the writer that waits, or kills its rank and then itself.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WISHES = "TINY_WISHES"
DIRECTORY = "TINY_MOMENTS"
KILL = "kill"  # SIGKILL to the rank
WAIT = "wait"  # until the test lets it go
DRAIN = "drain"  # wait until it knows that it is to drain
LEAVE = "leave"  # with exit code 0, as if all were done
KILL_RANK = "kill-rank"  # a writer: its rank dies, and it goes on
WRITER_SECONDS = 120.0  # for one to come up and stand by, on a machine that is busy with other things

# Moments in the order of an attempt.
RENDEZVOUS = "rendezvous"  # before it says that it is there
RESTORE = "restore"  # values are read, nothing is applied
RECORD = "record"  # restored, and the attempt's record is written
FIRST_STEP = "first-step"  # in the first step of an attempt
STEP = "step"  # in a later step, before its optimizer step
SHARDS = "shards"  # this rank's shards are written; no manifest, no marker
BEFORE_MARKER = "before-marker"  # manifest is there, marker is not; rank 0 only
AFTER_MARKER = "after-marker"  # committed, and nobody knows it yet; rank 0 only
EVALUATION = "evaluation"
ALL = (RENDEZVOUS, RESTORE, RECORD, FIRST_STEP, STEP, SHARDS, BEFORE_MARKER, AFTER_MARKER, EVALUATION)
OF_RANK_0 = (BEFORE_MARKER, AFTER_MARKER)
AFTER_A_RESTART = (RESTORE, RECORD)  # need a checkpoint to restore


@dataclass(frozen=True)
class Wish:
    """``nth``: the how manyth time that this rank reaches the moment in that attempt."""

    moment: str
    attempt: int = 1
    rank: int = 0
    action: str = KILL
    nth: int = 1

    def note(self, directory: Path) -> Path:
        """The file that says that the rank is there."""
        return directory / f"{self.moment}-{self.attempt}-{self.rank}-{self.nth}"


def environment_for(directory: Path, *wishes: Wish) -> dict[str, str]:
    """Variables that make ranks fulfil ``wishes``; notes go to ``directory``."""
    directory.mkdir(exist_ok=True)
    return {WISHES: text_of(*wishes), DIRECTORY: str(directory)}


def text_of(*wishes: Wish) -> str:
    """The value of ``WISHES``."""
    return json.dumps([asdict(wish) for wish in wishes])


def let_go(directory: Path, wish: Wish) -> None:
    """The rank that waits there goes on."""
    wish.note(directory).with_suffix(".go").touch()


def half_checkpoints(directory: Path) -> set[str]:
    """Names of checkpoints that had no marker at a moment when a rank was killed."""
    return {name for path in directory.glob("*.half") for name in path.read_text().split()}


_reached: dict[str, int] = {}
_rank: int | None = None  # in its writer: the rank's pid


def reach(moment: str) -> None:
    """This rank is there now."""
    if WISHES not in os.environ:
        return
    _reached[moment] = _reached.get(moment, 0) + 1
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
    here = (moment, attempt, int(os.environ.get("RANK", "0")), _reached[moment])
    for wish in (Wish(**plain) for plain in json.loads(os.environ[WISHES])):
        if (wish.moment, wish.attempt, wish.rank, wish.nth) == here:
            _grant(wish, Path(os.environ[DIRECTORY]))


def _grant(wish: Wish, directory: Path) -> None:
    if wish.action == KILL_RANK:
        assert _rank is not None
        wish.note(directory).touch()
        os.kill(_rank, signal.SIGKILL)
        return
    if wish.action == LEAVE:
        wish.note(directory).touch()
        os._exit(0)
    half = wish.note(directory).with_suffix(".half")
    half.write_text(" ".join(_half_checkpoints()))
    wish.note(directory).touch()
    if wish.action == KILL:
        os.kill(_rank or os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    while not (wish.note(directory).with_suffix(".go").exists() or (wish.action == DRAIN and _drains())):
        time.sleep(0.01)
    half.unlink()  # it goes on and may complete it


def _drains() -> bool:
    from resumable_training import run

    return bool(run._started[0]._session.agreement.requested)


def _half_checkpoints() -> list[str]:
    store = Path(os.environ.get("RESUMABLE_CHECKPOINT_DIR", "/nowhere"))
    return [path.name for path in store.glob("step-*") if not (path / ".metadata").exists()]


def settle_saves() -> None:
    """The loop waits after each step until what is being saved is stored, and copies can be held.

    Steps of a test take milliseconds, and the next save would be due before the one before has landed: it is
    then taken some steps later, and the test could not say at which. So with copies, which are left out until
    the writer stands by.
    """
    _wrap("saving", "Saver", "after_step", after=_settle)


def _settle(saver: Any) -> None:
    engine, clock = saver._engine, saver._session.clock
    before = clock.phase
    while engine.busy:
        clock.enter("checkpointing")
        saver.poll()
        time.sleep(0.002)
    if saver._copy_every:
        _settle_copies(engine._saver)
    clock.enter(before)


def _settle_copies(writing: Any) -> None:
    """Wait until the writer stands by that was asked to."""
    from resumable_training.checkpoint.async_save import AsynchronousSaver

    if not isinstance(writing, AsynchronousSaver):
        return
    deadline = time.monotonic() + WRITER_SECONDS
    while writing.can_copy and writing._copies.began and not writing._stands_by:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the checkpoint writer does not stand by after {WRITER_SECONDS:.0f} s")
        writing._hear(0.002)


def arm() -> None:
    """Wrap the library's functions at whose calls a moment is."""
    if WISHES not in os.environ:
        return
    _wrap("process_group", None, "_meet", before=lambda *_: reach(RENDEZVOUS))
    _wrap("checkpoint.load", "Loader", "_apply", before=lambda *_: reach(RESTORE))
    _wrap("checkpoint.engine", "CheckpointEngine", "_append_record", after=_after_record)
    _arm_saves()
    writer = importlib.import_module("resumable_training.checkpoint.writer")
    here = str(Path(__file__).parent)
    writer.PROGRAM = f"import sys; sys.path.append({here!r}); {_WRITER}; {writer.PROGRAM}"


_WRITER = "sys.path.append(sys.argv[1]); import moments; moments.arm_writer()"


def arm_writer() -> None:
    """In the process that stores checkpoints."""
    global _rank
    _rank = os.getppid()
    _wrap("checkpoint.cargo", None, "store_cargo", after=lambda *_: reach(SHARDS))
    _arm_stores()


def _arm_saves() -> None:
    _wrap("checkpoint.files", "StoreWriter", "write_data", after=lambda *_: reach(SHARDS))
    _arm_stores()


def _arm_stores() -> None:
    _wrap("checkpoint.local", "LocalStore", "create", _before_create, _after_create)
    _wrap("checkpoint.s3", "S3Store", "create", _before_create, _after_create)


def _after_record(_engine: Any, _seq: int, parent: str | None, *_: Any) -> None:
    if parent is not None:
        reach(RECORD)


def _before_create(_store: Any, name: str, *_: Any) -> None:
    if name.endswith("/.metadata"):
        reach(BEFORE_MARKER)


def _after_create(_store: Any, name: str, *_: Any) -> None:
    if name.endswith("/.metadata"):
        reach(AFTER_MARKER)


def _nothing(*_: Any) -> None:
    pass


def _wrap(
    module: str,
    owner: str | None,
    name: str,
    before: Callable[..., None] = _nothing,
    after: Callable[..., None] = _nothing,
) -> None:
    found: Any = importlib.import_module(f"resumable_training.{module}")
    found = getattr(found, owner) if owner else found
    function = getattr(found, name)

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        before(*arguments)
        result = function(*arguments, **options)
        after(*arguments)
        return result

    setattr(found, name, wrapped)
