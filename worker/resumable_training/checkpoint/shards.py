"""Which part of a DTensor a rank holds.

Torch's own function counts the rows of a shard out into a tensor: 8 MB, made and dropped, for each bias of a
million elements. For shards that lie in one piece arithmetic will do.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement

from resumable_training.checkpoint.boxes import Box, box


def held(tensor: DTensor) -> Box:
    """This rank's part; of size 0 where it holds nothing."""
    found = held_in_one_piece(tensor)
    if found is not None:
        return found
    shape, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return box(begin, shape)


def held_in_one_piece(tensor: DTensor) -> Box | None:
    """The same where arithmetic tells; None: nothing is held, or the cut is not so simple."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    extents = [mesh.size(number) for number in range(mesh.ndim)]
    return in_one_piece(tensor.shape, extents, coordinate, tensor.placements)


def in_one_piece(
    shape: Sequence[int],
    mesh: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Placement],
) -> Box | None:
    """What the rank at ``coordinate`` of a mesh of these extents holds; None: nothing, or not so simple.

    A dimension is cut as ``torch.chunk`` does, from the outermost dimension of the mesh inwards.
    """
    begin, extent = [0] * len(shape), list(shape)
    for ranks, rank, placement in zip(mesh, coordinate, placements, strict=True):
        if type(placement) is Shard:
            length = extent[placement.dim]
            piece = -(-length // ranks)
            at = min(length, piece * rank)
            begin[placement.dim] += at
            extent[placement.dim] = min(piece, length - at)
        elif not isinstance(placement, Replicate):
            return None
    return box(begin, extent) if 0 not in extent else None
