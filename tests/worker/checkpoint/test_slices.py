"""Who stores which part of a replicated state: everything once, balanced, and in few boxes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint import slices
from resumable_training.checkpoint.boxes import Box, inside
from resumable_training.checkpoint.slices import Part, Tensor, boxes, share, share_evenly

shapes = st.lists(st.integers(0, 13), max_size=4).map(tuple)
large_shapes = st.one_of(
    st.tuples(st.integers(1, 200_000)),
    st.tuples(st.integers(1, 5), st.integers(1, 60_000)),
    st.tuples(st.integers(1, 3), st.integers(1, 97), st.integers(1, 7), st.integers(1, 31)),
)
tensors = st.lists(
    st.tuples(st.one_of(shapes, large_shapes), st.sampled_from([1, 2, 4, 8])), max_size=12
).map(lambda many: [Tensor(f"t{i}", shape, itemsize) for i, (shape, itemsize) in enumerate(many)])


def everybodys(many: list[Tensor], loads: list[int]) -> list[list[Part]]:
    return [share(many, rank, loads) for rank in range(len(loads))]


@given(tensors, st.integers(1, 7))
def test_every_element_goes_to_exactly_one_rank(many: list[Tensor], ranks: int) -> None:
    """Parts of a tensor follow one another without gap or overlap, also of empty and 0-d ones."""
    found: dict[str, list[tuple[int, int]]] = {}
    for parts in everybodys(many, [0] * ranks):
        for part in parts:
            found.setdefault(part.key, []).append((part.start, part.stop))
    assert found.keys() == {tensor.key for tensor in many}
    for tensor in many:
        pieces = sorted(found[tensor.key])
        assert [0, *(stop for _, stop in pieces)] == [*(start for start, _ in pieces), tensor.elements]


@given(tensors, st.integers(1, 7))
def test_small_ones_stay_whole(many: list[Tensor], ranks: int) -> None:
    """Below the limit a tensor is in one part."""
    for parts in everybodys(many, [0] * ranks):
        for part in parts:
            tensor = next(one for one in many if one.key == part.key)
            assert tensor.elements >= slices.WHOLE_BELOW or part == Part(tensor.key, 0, tensor.elements)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "many",
    [
        [((1009, 997), 4)],
        [((3, 5_000_011), 2), ((7,), 4)],
        [((1_000_003,), 8)],
        [((512, 512), 4)] * 60 + [((), 4)] * 120,
        [((50_257, 768), 4)] + [((768, 3072), 4)] * 24 + [((768,), 4)] * 50,
    ],
    ids=["prime", "few rows", "one row", "many", "gpt"],
)
def test_balanced_within_a_tenth(many: list[tuple[tuple[int, ...], int]], ranks: int) -> None:
    """The fullest rank has little more than the mean; one that has something already gets less."""
    described = [Tensor(f"t{i:03}", shape, itemsize) for i, (shape, itemsize) in enumerate(many)]
    sizes = {tensor.key: tensor.itemsize for tensor in described}
    total = sum(tensor.bytes for tensor in described)
    for load in (0, total // (2 * ranks)):
        loads = [load] + [0] * (ranks - 1)
        stored = [
            own + sum((part.stop - part.start) * sizes[part.key] for part in parts)
            for own, parts in zip(loads, everybodys(described, loads), strict=True)
        ]
        assert max(stored) < 1.05 * (total + load) / ranks


@given(st.one_of(shapes, large_shapes.filter(lambda shape: math.prod(shape) < 5000)), st.data())
def test_boxes_make_up_the_stretch(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Row by row, in order, they are exactly the elements asked for; and there are few of them."""
    count = math.prod(shape)
    start = data.draw(st.integers(0, max(0, count - 1)))
    stop = data.draw(st.integers(start, count)) if count else 0
    found = boxes(shape, start, stop, 4)
    numbers = torch.arange(count).reshape(shape)
    if start < stop:
        pieces = [numbers[inside(box, Box((0,) * len(shape), shape))].reshape(-1) for box in found]
        assert torch.equal(torch.cat(pieces), torch.arange(start, stop))
        assert len(found) <= 2 * max(1, len(shape)) - 1


def test_no_box_is_too_large_to_be_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader holds one box in memory, and an archive of DCP counts with 32 bits."""
    monkeypatch.setattr(slices, "MOST_BYTES", 1000)
    found = boxes((123, 45), 0, 123 * 45, 4)
    assert max(box.elements * 4 for box in found) <= 1000
    assert sum(box.elements for box in found) == 123 * 45
    assert slices.MOST_BYTES < 1 << 32


@given(st.one_of(shapes, large_shapes), st.integers(1, 5), st.integers(0, 9))
def test_a_shard_that_several_have_is_shared_among_them(
    shape: tuple[int, ...], count: int, turn: int
) -> None:
    """Once in all, and small ones in turn."""
    tensor = Tensor("t", shape, 4)
    parts = [share_evenly(tensor, index, count, turn) for index in range(count)]
    pieces = [(part.start, part.stop) for part in parts if part is not None]
    assert [0, *(stop for _, stop in pieces)] == [*(start for start, _ in pieces), tensor.elements]
    if tensor.elements < slices.WHOLE_BELOW:
        assert parts[turn % count] is not None
