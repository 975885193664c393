"""The copies that a rank makes between saves: from the copy's begin to where it is whole, and held.

GPUs copy while the loop goes on, so that a copy may be whole only steps later; until then the one before is
held, in the other arena. ``holding`` says what a writer makes of it.
"""

from __future__ import annotations

import contextlib
import time

from resumable_training.checkpoint.holding import Letter
from resumable_training.checkpoint.snapshot import Snapshot
from resumable_training.contract.framing import Message


class Copies:
    """One at a time, in the arenas that saves are copied into, too.

    Numbers of arenas, None where there is no such copy: ``held_in``, of the newest that is held;
    ``whole_in``, of the newest that is whole, and be it one that was saved, from which the next attempt could
    restore; ``sure_in``, of the newest that all ranks are known to hold.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._message: Message | None = None  # copied, but for GPUs that may be at it
        self._started = 0.0
        self._letters: list[Letter] = []  # of each arena, from the first copy to be held on
        self.held_in: int | None = None
        self.whole_in: int | None = None
        self.sure_in: int | None = None
        self.seconds: float | None = None  # from the call to where it was whole, of the newest that is

    @property
    def to_be_held(self) -> bool:
        """Whether nobody would find the newest yet: GPUs were still at it when they were last asked."""
        return self._message is not None

    @property
    def began(self) -> bool:
        """Whether there are letters, which a writer must have."""
        return bool(self._letters)

    def open(self) -> list[int]:
        """The descriptors of the letters, for a writer. Raises OSError."""
        if not self._letters:
            first = Letter()
            try:
                self._letters = [first, Letter()]
            except OSError:
                first.close()
                raise
        return [letter.descriptor for letter in self._letters]

    def met(self) -> None:
        """All ranks were free to copy: what is held now all of them hold."""
        self.sure_in = self.held_in

    @property
    def needed_in(self) -> int | None:
        """Of what a save must leave alone. Ranks do not meet for it, and may be one copy apart."""
        return self.sure_in if self.sure_in is not None else self.held_in

    def hold(self, message: Message, started: float) -> None:
        """What was just copied, as soon as it is whole. ``message``: as for a save, without the seal."""
        self._message, self._started = message, started
        self.settle()

    def settle(self) -> None:
        """It is held from now on, if it is whole."""
        message = self._message
        if message is None or not self._snapshot.copied():
            return
        arena, number = self._snapshot.arena, self._snapshot.number
        assert arena is not None
        self._message = None
        with contextlib.suppress(OSError):  # no memory for it: it is not held
            self._letters[number].write({**message, "seal": arena.seal()})
            self.held_in = self.whole_in = number
            self.seconds = time.monotonic() - self._started

    def forget(self) -> None:
        """What is being copied is not to be held: a save is begun instead."""
        self._message = None

    def landed(self, *, ok: bool) -> None:
        """The newest copy was a save's, and ``ok``: is a checkpoint by now: what was held before is older.

        Else what was held where the save was copied to is gone, and the copy before that one counts.
        """
        number = self._snapshot.number
        if ok:
            self.drop()
            self.whole_in = number
            return
        if self.sure_in == number:
            self.sure_in = None
        if self.held_in == number:
            self.held_in = self.sure_in
        if self.whole_in == number:
            self.whole_in = self.held_in

    def drop(self) -> None:
        """Neither what is held nor what would be is to be stored."""
        self._message = self.held_in = self.sure_in = None
        for letter in self._letters:
            letter.clear()

    def close(self) -> None:
        for letter in self._letters:
            letter.close()
        self._letters = []
