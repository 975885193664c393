"""Ranks that are forked before they are wanted, and wait at their gates for an attempt.

To fork a process that has imported torch takes some hundredths of a second. While ranks train nobody waits
for that; when they have died everybody does. One that stands by shares nearly all of its memory with its
parent, and ends with its agent, whose end of its gate is the only one.
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Deque, List, Optional, Protocol, Sequence, Tuple

from resumable_training.agent.preload_parent import Forked

AFTER_SECONDS = 1.0  # ranks are up by then, mostly, and forking more does not delay them
BETWEEN_SECONDS = 0.05  # one is made after the other: the agent's loop stands still meanwhile
PATIENCE_SECONDS = 0.5  # with each, since nobody needs it yet
AGAIN_SECONDS = 30.0  # after one could not be forked, or was killed: that may go on for a while


class Harbour(Protocol):
    """Told which children are no leftovers of an attempt."""

    def harbour(self, session: int) -> None: ...

    def remove(self, session: int) -> None: ...


class Timer(Protocol):
    """What ``call_later`` returns."""

    def cancel(self) -> None: ...


class Standbys:
    """Those of one parent."""

    def __init__(self, harbour: Harbour) -> None:
        self._harbour = harbour
        self._waiting: List[Forked] = []
        self._planned: Optional[Timer] = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pids(self) -> List[int]:
        return [one.pid for one in self._waiting]

    def plan(self, more: Callable[[], Timer]) -> None:
        """More are made later; what was planned before is not done."""
        self.unplan()
        self._planned = more()

    def unplan(self) -> None:
        if self._planned is not None:
            self._planned.cancel()
        self._planned = None

    def add(self, forked: Sequence[Forked]) -> None:
        for one in forked:
            self._harbour.harbour(one.pid)
        self._waiting += forked

    def take(self, most: int, is_fit: Callable[[int], bool]) -> Deque[Forked]:
        """No more than ``most`` of them, which are the caller's now; the others end.

        ``is_fit``: of a pid; one may have been stopped, or killed and not reaped yet.
        """
        taken = deque([one for one in self._waiting if is_fit(one.pid)][:most])
        for one in taken:
            self._harbour.remove(one.pid)
            self._waiting.remove(one)
        self.give_up()
        return taken

    def give_up(self) -> None:
        """They end."""
        for one in self._waiting:
            self._harbour.remove(one.pid)
            one.give_up()
        self._waiting.clear()

    def reaped(self, ended: Sequence[Tuple[int, int]]) -> bool:
        """Children of the agent that have ended, as (pid, code): whether somebody has killed one of these."""
        gone = {pid for pid, _ in ended}
        killed = [one for one in self._waiting if one.pid in gone]
        for one in killed:
            self._waiting.remove(one)
            self._harbour.remove(one.pid)
            one.close()
        return bool(killed)
