"""When Python looks for cycles of dead objects. The operator's process is the only caller.

To look at all that the operator of ten thousand workers keeps takes about a second, in which it does nothing
else, and finds nothing: nearly all of it lives as long as the process. So what is there is set aside, and
from then on only what is younger is looked at; all of it again once an hour. What dies without cycles, as
nearly everything does, is freed at once all the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

YOUNG_OBJECTS = (
    10_000  # as many new ones, and the young are looked at; Python's own 700 is for small programs
)
GENERATIONS = (20, 100)  # looks at the younger ones before the next older ones
SECOND_LOOK_SECONDS = 60.0  # by then the agents' streams are open, too
PERIOD_SECONDS = 3600.0


class Garbage:
    """Call ``tidy`` now and then, when nothing is urgent."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._wait = SECOND_LOOK_SECONDS
        self._due = monotonic()
        gc.set_threshold(YOUNG_OBJECTS, *GENERATIONS)

    def tidy(self) -> bool:
        """When it is due: look at everything, and set what is left aside. True: it was."""
        if self._monotonic() < self._due:
            return False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._due, self._wait = self._monotonic() + self._wait, PERIOD_SECONDS
        return True
