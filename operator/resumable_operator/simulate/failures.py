"""When machines fail: endless, lazy sequences in order of time, drawn from streams of chance that come in.

Each machine draws from a stream of its own. So a seed means the same failures whatever else is varied:
interval, costs, spares and sizes are compared under the same bad luck, and differences between cells of a
table are seen with far fewer seeds than their spread suggests.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gamma
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from random import Random

Streams = Callable[[str], "Random"]  # a stream of chance by name: the same name is the same stream
Kind = Literal["machine", "rack", "spot", "process", "trace"]


@dataclass(frozen=True)
class Failure:
    """Machines (by slot) that go at one moment.

    ``in_place``: only the ranks die, the machine stays good. ``notice``: seconds of warning before they go;
    ``at`` is when it is given. ``back``: seconds from their loss until others are there; None: as usual.
    """

    at: float
    slots: tuple[int, ...]
    kind: Kind = "machine"
    notice: float = 0.0
    in_place: bool = False
    back: float | None = None


@dataclass(frozen=True)
class Machines:
    """Machines that fail one by one.

    ``mtbf``: mean seconds between failures of one machine. ``shape``: of the Weibull distribution of the time
    between them; 1 is the exponential one, so failures are Poisson; below 1 they come in bursts, above 1 they
    are more regular. ``in_place``: the share of failures that leave the machine good.
    """

    mtbf: float
    shape: float = 1.0
    in_place: float = 0.0

    @property
    def leaves_machines(self) -> bool:
        """Whether some failures kill ranks alone."""
        return self.in_place > 0

    def failures(self, slots: int, streams: Streams) -> Iterator[Failure]:
        return heapq.merge(
            *(self._of_one(slot, streams(f"machine/{slot}")) for slot in range(slots)), key=_at
        )

    def _of_one(self, slot: int, chance: Random) -> Iterator[Failure]:
        at, scale = 0.0, self.mtbf / gamma(1 + 1 / self.shape)
        while True:
            at += chance.weibullvariate(scale, self.shape)
            stays = chance.random() < self.in_place
            yield Failure(at, (slot,), "process" if stays else "machine", in_place=stays)


@dataclass(frozen=True)
class Racks:
    """All machines of a rack (or behind a switch, on a power feed) fail at once.

    ``size``: machines in a rack; ``mtbf``: mean seconds between losses of one rack, Poisson.
    """

    size: int
    mtbf: float
    leaves_machines = False

    def failures(self, slots: int, streams: Streams) -> Iterator[Failure]:
        racks = range(0, slots, self.size)
        return heapq.merge(
            *(
                self._of_one(tuple(range(first, min(first + self.size, slots))), streams(f"rack/{first}"))
                for first in racks
            ),
            key=_at,
        )

    def _of_one(self, slots: tuple[int, ...], chance: Random) -> Iterator[Failure]:
        at = 0.0
        while True:
            at += chance.expovariate(1 / self.mtbf)
            yield Failure(at, slots, "rack")


@dataclass(frozen=True)
class SpotWaves:
    """The provider takes machines back in waves, with notice.

    ``mtbf``: mean seconds between waves, Poisson. ``share``: of all machines that one takes, each drawn for
    itself. ``lasts``: for so long it gives no others.
    """

    mtbf: float
    share: float
    notice: float = 120.0
    lasts: float = 3600.0
    leaves_machines = False

    def failures(self, slots: int, streams: Streams) -> Iterator[Failure]:
        when, at = streams("waves"), 0.0
        whom = [streams(f"wave/{slot}") for slot in range(slots)]
        while True:
            at += when.expovariate(1 / self.mtbf)
            taken = tuple(slot for slot, chance in enumerate(whom) if chance.random() < self.share)
            if taken:
                yield Failure(at, taken, "spot", notice=self.notice, back=self.lasts)


@dataclass(frozen=True)
class Trace:
    """Failures that were written down. Those of machines that the job does not have do not concern it."""

    failed: tuple[Failure, ...]

    @property
    def leaves_machines(self) -> bool:
        return any(failure.in_place for failure in self.failed)

    def elsewhere(self, slots: int) -> int:
        """How many failures are of machines alone that the job does not have."""
        return sum(min(failure.slots) >= slots for failure in self.failed)

    def failures(self, slots: int, _streams: Streams) -> Iterator[Failure]:
        for failure in sorted(self.failed, key=_at):
            own = tuple(slot for slot in failure.slots if slot < slots)
            if own:
                yield replace(failure, slots=own)


Process = Machines | Racks | SpotWaves | Trace


def failures(processes: tuple[Process, ...], slots: int, streams: Streams) -> Iterator[Failure]:
    """All of them together, in order of time."""
    return heapq.merge(*(process.failures(slots, streams) for process in processes), key=_at)


def _at(failure: Failure) -> float:
    return failure.at
