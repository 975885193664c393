"""What ranks held in memory when they died, on its way to storage: for how long, and whether it arrives.

As the worker's agent has it (``agent.landing`` there): a writer stores when its own rank is dead, and what it
stores needs those of all ranks. A rank that hangs in a collective dies only when the failure is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

MOST_SECONDS = 120.0  # for a copy in memory to be stored when its ranks are dead
UNKNOWN_SECONDS = 5.0  # for a job's first checkpoint, of which nobody knows how long it takes


@dataclass(frozen=True)
class Landing:
    """Times are milliseconds from the job's start.

    ``before``: step of the newest checkpoint without it; None: there is none. ``held``: its own step.
    ``until``: the next attempt waits so long before it restores. ``writers``: workers that store it.
    """

    before: int | None
    held: int
    lands: bool
    until: int
    writers: frozenset[str]

    @classmethod
    def of(
        cls, before: int | None, held: int, worth: int, needed: int, dead_at: int, writers: frozenset[str]
    ) -> Self:
        """Writers get as long as the steps in it took, and a bounded time.

        Args:
            worth: milliseconds of its steps beyond ``before``.
            needed: milliseconds to store it.
            dead_at: when the last rank is.
        """
        most = MOST_SECONDS if before is not None else UNKNOWN_SECONDS
        patience = min(worth, round(most * 1000))
        return cls(before, held, needed <= patience, dead_at + min(needed, patience), writers)

    @property
    def step(self) -> int | None:
        """Of the checkpoint that there is when it is over; None: none."""
        return self.held if self.lands else self.before

    def needs(self, worker: str, now: int) -> bool:
        """Whether it is given up if that worker goes now. At the very moment of its end it is, too."""
        return worker in self.writers and now <= self.until
