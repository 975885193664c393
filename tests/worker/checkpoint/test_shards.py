"""Which part of a DTensor a rank holds, without a tensor of its rows."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from resumable_training.checkpoint.boxes import box
from resumable_training.checkpoint.shards import in_one_piece

SHAPES = st.lists(st.integers(0, 13), min_size=1, max_size=3)
MESHES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(SHAPES, MESHES, st.data())
def test_as_torch_counts_it(shape: list[int], mesh: list[int], data: st.DataObject) -> None:
    """Even or not, cut once or twice in one dimension, replicated: at each place of the mesh."""
    placement = st.one_of(st.just(Replicate()), st.integers(0, len(shape) - 1).map(Shard))
    placements = [data.draw(placement) for _ in mesh]
    for coordinate in product(*map(range, mesh)):
        sizes, begin = _compute_local_shape_and_global_offset(
            tuple(shape), tuple(mesh), list(coordinate), placements
        )
        expected = box(begin, sizes) if 0 not in sizes else None
        assert in_one_piece(shape, mesh, coordinate, placements) == expected


def test_what_is_not_so_simple() -> None:
    """Left to torch: rows that lie apart, sums that are not there yet."""
    for placement in (_StridedShard(0, split_factor=2), Partial()):
        assert in_one_piece([8], [2], [0], [placement]) is None
