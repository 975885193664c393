"""Whether the pieces that a marker names make up their tensor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.contract.marker import Item, Marker

Box = tuple[tuple[int, ...], tuple[int, ...]]


def gap(shape: tuple[int, ...], boxes: list[Box]) -> str | None:
    items = {("w", offsets): Item("f", 0, 1) for offsets, _ in boxes}
    return Marker({"w": shape}, {"w": tuple(boxes)}, items).gap()


@pytest.mark.parametrize(
    ("shape", "boxes", "whole"),
    [
        ((), [((), ())], True),
        ((4,), [((0,), (2,)), ((2,), (2,))], True),
        ((4,), [((2,), (2,)), ((4,), (0,)), ((0,), (2,))], True),  # an empty shard
        ((0, 3), [((0, 0), (0, 3))], True),
        ((4, 4), [((0, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 0), (2, 2)), ((2, 2), (2, 2))], True),
        ((3, 3), [((0, 0), (1, 3)), ((1, 0), (2, 1)), ((1, 1), (2, 2))], True),  # no grid
        ((4,), [((0,), (2,)), ((0,), (2,))], False),
        ((4,), [((0,), (3,)), ((1,), (1,))], False),
        ((4,), [((-1,), (2,)), ((1,), (2,))], False),
        ((4,), [((3,), (4,))], False),
        ((4,), [((0,), (8,)), ((0,), (-4,))], False),
        ((4, 4), [((0, 0), (4, 2)), ((0, 1), (4, 2))], False),
        ((2, 2), [((0,), (4,))], False),
        ((4,), [], False),
    ],
)
def test_pieces(shape: tuple[int, ...], boxes: list[Box], whole: bool) -> None:
    """Each element once, nothing outside; else what is not covered would be whatever lay in memory."""
    assert (gap(shape, boxes) is None) == whole


@st.composite
def cut(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A tensor, cut in two again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, sizes[axis]))
        low, high, begin = list(sizes), list(sizes), list(offsets)
        low[axis], high[axis], begin[axis] = at, sizes[axis] - at, offsets[axis] + at
        boxes += [(offsets, tuple(low)), (tuple(begin), tuple(high))]
    return shape, [box for box in boxes if math.prod(box[1])]


@given(pieces=cut(), data=st.data())
def test_any_partition_is_whole_and_none_less(
    pieces: tuple[tuple[int, ...], list[Box]], data: st.DataObject
) -> None:
    """However it is cut; with a piece moved by one, or a piece twice in place of another, it is not."""
    shape, boxes = pieces
    assert gap(shape, boxes) is None
    number = data.draw(st.integers(0, len(boxes) - 1))
    offsets, sizes = boxes[number]
    moved = (tuple(at + 1 for at in offsets), sizes)
    assert gap(shape, [*boxes[:number], moved, *boxes[number + 1 :]]) is not None
    assert gap(shape, [*boxes[:number], *boxes[number + 1 :]]) is not None
