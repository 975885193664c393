"""The agent's side of ``guard``: starts it and tells it which sessions live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

from resumable_training.agent.ranks import spawn


class GuardProcess:
    """A running guard. When it dies, its pipe is closed and telling it is no error: ranks go on without."""

    def __init__(self, temporary: Path) -> None:
        read, self._pipe = os.pipe()
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            self.pid = spawn("guard", [str(temporary)], {}, {0: read, 1: null, 2: null})
        finally:
            os.close(read)
            os.close(null)
        os.set_blocking(self._pipe, False)
        self._harboured: List[int] = []

    def add(self, session: int) -> None:
        self._tell("+%d\n" % session)

    def remove(self, session: int) -> None:
        self._harboured = [pid for pid in self._harboured if pid != session]
        self._tell("-%d\n" % session)

    def harbour(self, session: int) -> None:
        """One that belongs to no attempt: it goes with the agent, and is no leftover before."""
        self._harboured.append(session)
        self.add(session)

    def keep(self) -> List[int]:
        return [self.pid, *self._harboured]

    def _tell(self, line: str) -> None:
        try:
            os.write(self._pipe, line.encode())
        except (BrokenPipeError, BlockingIOError):
            return
