"""The copies that a rank makes between saves: from the copy's begin to where it is whole, and held.

GPUs copy while the loop goes on, so that a copy may be whole only steps later; until then nothing is held, as
what was held before was copied over. ``holding`` says what a writer makes of it.
"""

from __future__ import annotations

import contextlib
import time

from resumable_training.checkpoint.holding import Letter
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.contract.framing import Message


class Copies:
    """One at a time, in the arena that saves are copied into, too."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._message: Message | None = None  # copied, but for GPUs that may be at it
        self._started = 0.0
        self.letter: Letter | None = None  # from the first copy to be held on
        self.seconds: float | None = None  # from the call to where it was whole, of the newest that is

    @property
    def in_the_making(self) -> bool:
        """Whether GPUs still copy: copied over now, and again next time, nothing would ever be held."""
        return self._message is not None and not self._snapshot.copied()

    @property
    def to_be_held(self) -> bool:
        """Whether there is one that nobody would find yet."""
        return self._message is not None

    def open(self) -> int:
        """The descriptor of the letter, for a writer. Raises OSError."""
        if self.letter is None:
            self.letter = Letter()
        return self.letter.descriptor

    def hold(self, message: Message, started: float) -> None:
        """What was just copied, as soon as it is whole. ``message``: as for a save, without the seal."""
        self._message, self._started = message, started
        self.settle()

    def settle(self) -> None:
        """It is held from now on, if it is whole."""
        message = self._message
        if message is None or not self._snapshot.copied():
            return
        assert self._snapshot.arena is not None
        assert self.letter is not None
        self._message = None
        with contextlib.suppress(OSError):  # no memory for it: nothing is held until the next one
            self.letter.write({**message, "seal": self._snapshot.arena.seal()})
            self.seconds = time.monotonic() - self._started

    def forget(self) -> None:
        """Its place is taken for something else, which breaks the seal."""
        self._message = None

    def drop(self) -> None:
        """Neither what is held nor what would be is to be stored."""
        self._message = None
        if self.letter is not None:
            self.letter.clear()

    def close(self) -> None:
        if self.letter is not None:
            self.letter.close()
            self.letter = None
