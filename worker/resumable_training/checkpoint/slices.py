"""PURE: who writes which part of what all ranks have alike, so that each writes the same number of bytes.

Small tensors stay whole and go to the rank that has least so far. All others are thought of as laid end to
end on one line of bytes, which is cut once per rank: so a rank touches whole tensors, and parts of two at
most. A cut goes between rows, or deeper in a tensor with few, large rows. As DCP stores boxes and a stretch
of a line need not be one, a part becomes a few boxes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resumable_training.checkpoint.boxes import Box

WHOLE_BELOW = 1024  # elements; splitting less costs more than it saves
MOST_BYTES = 1 << 30  # of one stored box: a reader holds a whole one in memory
_FINENESS = 100  # cuts are as fine as this part of a rank's share, or finer


@dataclass(frozen=True)
class Tensor:
    """A tensor that all ranks of a group have alike."""

    key: str
    shape: tuple[int, ...]
    itemsize: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


@dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``stop`` of a tensor, row by row. An empty tensor has one part, too."""

    key: str
    start: int
    stop: int


def share(tensors: Sequence[Tensor], rank: int, loads: Sequence[int]) -> list[Part]:
    """What ``rank`` writes, in the order of ``tensors``. All ranks must ask with the same values.

    Args:
        loads: bytes that each rank has to write besides; as many as there are ranks.
    """
    loads = list(loads)
    whole = [tensor for tensor in tensors if tensor.elements < WHOLE_BELOW]
    mine = set()
    for tensor in sorted(whole, key=lambda one: -one.bytes):
        owner = min(range(len(loads)), key=lambda number: (loads[number], number))
        loads[owner] += max(tensor.bytes, 1)
        if owner == rank:
            mine.add(tensor.key)
    parts = [Part(one.key, 0, one.elements) for one in whole if one.key in mine]
    large = [tensor for tensor in tensors if tensor.elements >= WHOLE_BELOW]
    return parts + _of_line(large, rank, _fill(loads, sum(tensor.bytes for tensor in large)))


def _fill(loads: Sequence[int], total: int) -> list[int]:
    """How much of ``total`` each rank gets so that the fullest is as low as can be (water into a vessel)."""
    order = sorted(loads)
    level, below = 0.0, 0
    for count, load in enumerate(order, 1):
        below += load
        level = (total + below) / count
        if count == len(order) or level <= order[count]:
            break
    shares = [max(0, int(level) - load) for load in loads]
    shares[-1] += total - sum(shares)  # of the rounding
    return shares


def _of_line(tensors: Sequence[Tensor], rank: int, shares: Sequence[int]) -> list[Part]:
    begins = [0]
    for tensor in tensors:
        begins.append(begins[-1] + tensor.bytes)
    grain = max(1, sum(shares) // len(shares) // _FINENESS)
    at = sum(shares[:rank])
    first = _cut(tensors, begins, at, grain)
    last = _cut(tensors, begins, at + shares[rank] if rank + 1 < len(shares) else begins[-1], grain)
    parts = []
    for number in range(first[0], min(last[0] + 1, len(tensors))):
        tensor = tensors[number]
        start = first[1] if number == first[0] else 0
        stop = last[1] if number == last[0] else tensor.elements
        if start < stop:
            parts.append(Part(tensor.key, start, stop))
    return parts


def _cut(tensors: Sequence[Tensor], begins: Sequence[int], at: int, grain: int) -> tuple[int, int]:
    """The tensor and the element at which the line is cut near byte ``at``."""
    number = min(bisect_right(begins, at) - 1, len(tensors))
    if number == len(tensors):
        return number, 0
    tensor = tensors[number]
    step = _step(tensor, grain)
    element = round((at - begins[number]) / tensor.itemsize / step) * step
    return number, min(element, tensor.elements)


def _step(tensor: Tensor, grain: int) -> int:
    """Elements of the largest whole rows, planes, ... that are no more than ``grain`` bytes."""
    for dimension in range(1, len(tensor.shape)):
        step = math.prod(tensor.shape[dimension:])
        if step * tensor.itemsize <= grain:
            return step
    return 1


def share_evenly(tensor: Tensor, index: int, count: int, turn: int) -> Part | None:
    """As ``share``, for one tensor that only ``count`` ranks have alike; None: nothing for this one.

    ``turn``: a number that small tensors are dealt out by.
    """
    if tensor.elements < WHOLE_BELOW:
        return Part(tensor.key, 0, tensor.elements) if turn % count == index else None
    step = _step(tensor, max(1, tensor.bytes // count // _FINENESS))
    start, stop = (round(tensor.elements * place / count / step) * step for place in (index, index + 1))
    stop = tensor.elements if index + 1 == count else min(stop, tensor.elements)
    return Part(tensor.key, start, stop) if start < stop else None


def boxes(shape: tuple[int, ...], start: int, stop: int, itemsize: int) -> list[Box]:
    """Elements ``start`` to ``stop`` of a tensor, row by row, as boxes of at most ``MOST_BYTES``."""
    most = max(1, MOST_BYTES // itemsize)
    if start == stop:
        return [Box((0,) * len(shape), shape)]
    pieces = [(at, min(at + most, stop)) for at in range(start, stop, most)]
    return [box for begin, end in pieces for box in _boxes(shape, begin, end)]


def _boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    if stop - start == math.prod(shape):
        yield Box((0,) * len(shape), shape)
        return
    row = math.prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last and row > 1:
        yield from _inside(shape, first, start - first * row, stop - first * row)
        return
    if start % row:
        yield from _inside(shape, first, start % row, row)
        first += 1
    rows = stop // row - first
    if rows:
        yield Box((first,) + (0,) * (len(shape) - 1), (rows, *shape[1:]))
    if stop % row:
        yield from _inside(shape, stop // row, 0, stop % row)


def _inside(shape: tuple[int, ...], row: int, start: int, stop: int) -> Iterator[Box]:
    for box in _boxes(shape[1:], start, stop):
        yield Box((row, *box.offsets), (1, *box.sizes))
