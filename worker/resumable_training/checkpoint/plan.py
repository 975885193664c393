"""What this rank puts where in its arena: made once, kept as long as nothing changes its shape.

Every tensor is one of three kinds. A DTensor: this rank's shard, and of one that other ranks have too only a
slice, be they on the same mesh or on a twin of it. A tensor that only rank 0's copy counts of: all of it, on
rank 0. Everything else is replicated: each rank has the same, and stores its share. Who stores what follows
from names and shapes alone, and from what was agreed before, so that ranks need not speak with each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
import xxhash
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from resumable_training.checkpoint import shards, slices
from resumable_training.checkpoint.accord import Agreed, Look, Mesh, Stock
from resumable_training.checkpoint.boxes import Box
from resumable_training.checkpoint.cargo import Item
from resumable_training.checkpoint.frames import DTYPES
from resumable_training.checkpoint.live import local, picker
from resumable_training.checkpoint.marking import Path
from resumable_training.checkpoint.plain import PLAIN_TENSORS, require_tensor

ALIGNMENT = 64
_SHAPE_OF, _DTYPE_OF = attrgetter("shape"), attrgetter("dtype")
_LOCAL_OF, _SPEC_OF = attrgetter("_local_tensor"), attrgetter("_spec")


class Unsupported(Exception):
    """A kind of tensor that is left to DCP itself; the text names it."""


@dataclass(frozen=True)
class Looks:
    """How parts were when the plan was made, one list for each side of it, so that comparing is quick.

    ``specs``: of those that are a DTensor's: mesh, placements and the shape of the whole.
    """

    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    specs: list[DTensorSpec]

    @staticmethod
    def at(parts: Sequence[torch.Tensor], specs: list[DTensorSpec]) -> Looks:
        return Looks(list(map(_SHAPE_OF, parts)), list(map(_DTYPE_OF, parts)), specs)


class Split:
    """Takes this rank's parts of tensors: first those that are no DTensors, then what DTensors hold here."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sharded = [number for number, tensor in enumerate(tensors) if isinstance(tensor, DTensor)]
        plain = sorted(set(range(len(tensors))) - set(sharded))
        self._sharded, self._plain = picker(sharded), picker(plain)
        self.order = [*plain, *sharded]

    def parts(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[DTensorSpec]]:
        """Parts, and specs of the DTensors. Raises AttributeError when one of these is none any more."""
        sharded = self._sharded(tensors)
        return [*self._plain(tensors), *map(_LOCAL_OF, sharded)], list(map(_SPEC_OF, sharded))


@dataclass(frozen=True)
class Copy:
    """One box: from element range ``box`` of part number ``source`` (None: all of it) to ``item.at``."""

    source: int
    box: Box | None
    item: Item


@dataclass(frozen=True)
class Plan:
    """``keys``: of all tensors, in order; ``looks``: of their parts, as ``split`` has them; ``copies``: what
    this rank stores of these.

    ``view``: of what all ranks have, as this one knows it. Plans with the same one make a whole together.
    """

    keys: list[str]
    split: Split
    looks: Looks
    copies: tuple[Copy, ...]
    bytes: int
    view: str

    @property
    def items(self) -> list[Item]:
        return [copy.item for copy in self.copies]

    def parts_of(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor] | None:
        """This rank's parts, as ``copies`` count them; None: the plan does not hold for these tensors."""
        if list(tensors) != self.keys:
            return None
        try:
            parts, specs = self.split.parts(list(tensors.values()))
        except AttributeError:
            return None
        fits = PLAIN_TENSORS.issuperset(map(type, parts)) and Looks.at(parts, specs) == self.looks
        return parts if fits else None


def make_plan(
    tensors: Mapping[str, torch.Tensor],
    paths: Mapping[str, Path],
    rank_0_keys: Collection[str],
    rank: int,
    world_size: int,
    agreed: Agreed,
) -> Plan:
    """The plan for one rank. ``tensors``: what this rank gives, of all kinds.

    Raises:
        Unstorable: a tensor of a kind that no resume could bring back.
        Unsupported: one of a type, or placed in a way, that only DCP itself knows how to store.
    """
    for key, tensor in tensors.items():
        _check(key, tensor)
    own = _own_pieces(tensors, rank_0_keys, rank, agreed)
    alike = {key: tensor for key, tensor in tensors.items() if key not in own}
    parts = _shares(alike, rank, world_size, agreed)
    split = Split(list(tensors.values()))
    numbers = dict(zip(split.order, range(len(tensors)), strict=True))
    at, copies = 0, []
    for number, (key, tensor) in enumerate(tensors.items()):
        for box, offsets in own[key] if key in own else _of_part(tensor, parts.get(key)):
            size = box.elements * tensor.dtype.itemsize
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            item = Item(key, paths[key], dtype, shape, offsets, box.sizes, at, size)
            whole = box.sizes == tuple(local(tensor).shape)
            copies.append(Copy(numbers[number], None if whole else box, item))
            at += -(-size // ALIGNMENT) * ALIGNMENT
    view = agreed.view(stock_of(tensors, rank_0_keys, world_size))
    looks = Looks.at(*split.parts(list(tensors.values())))
    return Plan(list(tensors), split, looks, tuple(copies), at, view)


def stock_of(tensors: Mapping[str, torch.Tensor], rank_0_keys: Collection[str], world_size: int) -> Stock:
    """What ranks compare: shape and type of each replicated tensor, and what lies on meshes of some ranks."""
    looks: dict[str, Look] = {}
    meshes, parted = _Meshes(), dict[Mesh, list[tuple[str, ...]]]()
    for key, tensor in tensors.items():
        if not isinstance(tensor, DTensor):
            if key not in rank_0_keys:
                looks[key] = Look(str(tensor.dtype), tuple(tensor.shape), _bytes(tensor))
        elif tensor.device_mesh.size() < world_size and tensor.device_mesh.get_coordinate() is not None:
            look = (key, str(tensor.dtype), str(list(tensor.shape)), str(tensor.placements))
            parted.setdefault(meshes.of(tensor), []).append(look)
    digests = {mesh: xxhash.xxh3_128_hexdigest(repr(sorted(held)).encode()) for mesh, held in parted.items()}
    return Stock(looks, digests)


def own_bytes(
    tensors: Mapping[str, torch.Tensor], rank_0_keys: Collection[str], rank: int, agreed: Agreed
) -> int:
    """About what this rank stores besides what all have alike: its part of DTensors, and rank 0's own."""
    meshes, total = _Meshes(), 0
    for key, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            twins = len(agreed.twins.get(meshes.of(tensor), (None,)))
            total += _bytes(local(tensor)) // (_replica(tensor)[1] * twins)
        elif key in rank_0_keys and rank == 0:
            total += _bytes(tensor)
    return total


def _bytes(tensor: torch.Tensor) -> int:
    """As ``nbytes``, which sparse tensors refuse to tell."""
    return tensor.numel() * tensor.element_size()


def _check(key: str, tensor: torch.Tensor) -> None:
    require_tensor(tensor, key)
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        raise Unsupported(f"{key} is of type {tensor.dtype}")
    if isinstance(tensor, DTensor) and any(type(one) not in (Shard, Replicate) for one in tensor.placements):
        raise Unsupported(f"{key} is placed as {tensor.placements}")


def _shares(
    alike: Mapping[str, torch.Tensor], rank: int, world_size: int, agreed: Agreed
) -> dict[str, slices.Part]:
    holders = agreed.holders or {}
    described = [
        slices.Tensor(key, tuple(tensor.shape), tensor.dtype.itemsize)
        for key, tensor in sorted(alike.items())
        if key not in holders
    ]
    loads = agreed.loads or [0] * world_size
    if agreed.apart:
        parts = [slices.Part(one.key, 0, one.elements) for one in described if rank == 0]
    else:
        parts = slices.share(described, rank, loads)
    shared = {part.key: part for part in parts}
    mine = [key for key, holder in holders.items() if holder == rank and key in alike]
    return shared | {key: slices.Part(key, 0, alike[key].numel()) for key in mine}


Pieces = list[tuple[Box, tuple[int, ...]]]  # box of the local tensor, and its place in the whole


def _of_part(tensor: torch.Tensor, part: slices.Part | None) -> Pieces:
    if part is None:
        return []
    found = slices.boxes(tuple(tensor.shape), part.start, part.stop, tensor.dtype.itemsize)
    return [(box, box.offsets) for box in found]


def _own_pieces(
    tensors: Mapping[str, torch.Tensor], rank_0_keys: Collection[str], rank: int, agreed: Agreed
) -> dict[str, Pieces]:
    """Of all DTensors, and of what only rank 0's copy counts of: what this rank stores, or nothing."""
    found: dict[str, Pieces] = {}
    meshes, turns = _Meshes(), dict[Mesh, int]()
    for key in sorted(tensors):
        tensor = tensors[key]
        if isinstance(tensor, DTensor):
            mesh = meshes.of(tensor)
            turns[mesh] = turn = turns.get(mesh, -1) + 1  # all who have it count those of their mesh alone
            twins = agreed.twins.get(mesh, (mesh,))
            replica = twins.index(mesh), len(twins)
            found[key] = _of_shard(key, tensor, turn, replica, apart=agreed.apart)
        elif key in rank_0_keys:
            found[key] = _of_part(tensor, slices.Part(key, 0, tensor.numel()) if rank == 0 else None)
    return found


class _Meshes:
    """Each mesh is described once: many tensors lie on it."""

    def __init__(self) -> None:
        self._known: dict[int, Mesh] = {}

    def of(self, tensor: DTensor) -> Mesh:
        mesh = tensor.device_mesh
        known = self._known.get(id(mesh))
        if known is None:
            ranks = tuple(int(rank) for rank in mesh.mesh.flatten())
            known = self._known[id(mesh)] = Mesh(tuple(mesh.shape), ranks)
        return known


def _replica(tensor: DTensor) -> tuple[int, int]:
    """Which one this rank's part is of those on its mesh that are the same, and of how many."""
    mesh, index, count = tensor.device_mesh, 0, 1
    for placement, place, size in zip(
        tensor.placements, mesh.get_coordinate() or mesh.shape, mesh.shape, strict=True
    ):
        if isinstance(placement, Replicate):
            index, count = index * size + place, count * size
    return index, count


def _of_shard(key: str, tensor: DTensor, turn: int, twin: tuple[int, int], *, apart: bool) -> Pieces:
    """This rank's shard, or its slice of one that others have too. ``twin``: number of its mesh, and of how
    many; ``apart``: the first one has it whole."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    index, count = _replica(tensor)
    index, count = twin[0] * count + index, twin[1] * count
    if apart:
        if index:
            return []
        count = 1
    held = shards.held(tensor)
    shape, begin = held.sizes, held.offsets
    if tensor.numel() == 0:
        if index or any(coordinate):
            return []  # it is stored once, too
        turn = 0
    elif math.prod(shape) == 0:
        return []  # nothing of it is here
    part = slices.share_evenly(slices.Tensor(key, shape, tensor.dtype.itemsize), index, count, turn)
    if part is None:
        return []
    found = slices.boxes(shape, part.start, part.stop, tensor.dtype.itemsize)
    return [(box, tuple(a + b for a, b in zip(begin, box.offsets, strict=True))) for box in found]
