"""PURE: boxes of a tensor: a place and an extent in each dimension. And where one lies in another's bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A part of a tensor, in the tensor's own coordinates."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


def box(offsets: Sequence[int], sizes: Sequence[int]) -> Box:
    return Box(tuple(int(number) for number in offsets), tuple(int(number) for number in sizes))


def overlap(one: Box, other: Box) -> Box | None:
    """What both have in common; None when that is nothing."""
    offsets = tuple(max(a, b) for a, b in zip(one.offsets, other.offsets, strict=True))
    ends = (
        min(a + m, b + n)
        for a, m, b, n in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )
    sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
    return Box(offsets, sizes) if all(size > 0 for size in sizes) else None


def inside(part: Box, whole: Box) -> tuple[slice, ...]:
    """Indices of ``part`` in a tensor that holds ``whole``."""
    return tuple(
        slice(at - start, at - start + size)
        for at, size, start in zip(part.offsets, part.sizes, whole.offsets, strict=True)
    )


def run(part: Box, whole: Box) -> tuple[int, int] | None:
    """Elements ``start`` to ``stop`` of ``whole``, row by row, if exactly these are ``part``; else None.

    They are in one piece if, after the first dimension in which ``part`` is longer than 1, it has the whole
    extent in every other.
    """
    first = next((d for d, size in enumerate(part.sizes) if size != 1), len(part.sizes))
    if part.sizes[first + 1 :] != whole.sizes[first + 1 :]:
        return None
    start = 0
    for at, begin, size in zip(part.offsets, whole.offsets, whole.sizes, strict=True):
        start = start * size + at - begin
    return start, start + part.elements
