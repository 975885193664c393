"""What this rank puts where in its arena: made once, kept as long as nothing changes its shape.

Every tensor is one of three kinds. A DTensor: this rank's shard, and of one that other ranks have too only a
slice. A tensor that only rank 0's copy counts of: all of it, on rank 0. Everything else is replicated: each
rank has the same, and stores its share. Who stores what follows from names and shapes alone, so that ranks
need not speak with each other about it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
import xxhash
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from resumable_training.checkpoint import slices
from resumable_training.checkpoint.boxes import Box
from resumable_training.checkpoint.cargo import Item
from resumable_training.checkpoint.frames import DTYPES
from resumable_training.checkpoint.live import local, picker
from resumable_training.checkpoint.marking import Path

ALIGNMENT = 64
_MOST_NAMED = 3
_SHAPE_OF, _DTYPE_OF = attrgetter("shape"), attrgetter("dtype")
_LOCAL_OF, _SPEC_OF = attrgetter("_local_tensor"), attrgetter("_spec")
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})  # kinds that hold what they look like


class Unsupported(Exception):
    """A kind of tensor that is left to DCP itself; the text names it."""


@dataclass(frozen=True)
class Agreed:
    """What ranks have told each other before the first plan.

    ``holders``: None when all ranks have the same replicated tensors; else who stores those, whole, that not
    all have alike. The others are shared out as ever.
    ``own``: what this rank had then, as ``digest_of``; only beside ``holders``.
    ``rank_0_bytes``: of what only rank 0 gives.
    """

    rank_0_bytes: int = 0
    holders: Mapping[str, int] | None = None
    own: Mapping[str, str] | None = None


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
        fits = _PLAIN.issuperset(map(type, parts)) and Looks.at(parts, specs) == self.looks
        return parts if fits else None


def make_plan(
    tensors: Mapping[str, torch.Tensor],
    paths: Mapping[str, Path],
    rank_0_keys: Iterable[str],
    rank: int,
    world_size: int,
    agreed: Agreed,
) -> Plan:
    """The plan for one rank. ``tensors``: what this rank gives, of all kinds.

    Raises:
        Unsupported: a tensor that is no plain one and no DTensor, or of a type without a known format.
    """
    for key, tensor in tensors.items():
        _check(key, tensor)
    own = set(rank_0_keys)
    alike = {
        key: tensor for key, tensor in tensors.items() if key not in own and not isinstance(tensor, DTensor)
    }
    parts = _shares(alike, rank, world_size, agreed)
    split = Split(list(tensors.values()))
    numbers = dict(zip(split.order, range(len(tensors)), strict=True))
    at, copies, turn = 0, [], 0
    for number, (key, tensor) in enumerate(tensors.items()):
        if isinstance(tensor, DTensor):
            pieces = _of_shard(key, tensor, turn)
            turn += 1
        elif key in alike:
            pieces = _of_part(tensor, parts.get(key))
        else:
            pieces = _of_part(tensor, slices.Part(key, 0, tensor.numel()) if rank == 0 else None)
        for box, offsets in pieces:
            size = box.elements * tensor.dtype.itemsize
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            item = Item(key, paths[key], dtype, shape, offsets, box.sizes, at, size)
            whole = box.sizes == tuple(local(tensor).shape)
            copies.append(Copy(numbers[number], None if whole else box, item))
            at += -(-size // ALIGNMENT) * ALIGNMENT
    view = _view(digest_of(tensors, own), agreed)
    looks = Looks.at(*split.parts(list(tensors.values())))
    return Plan(list(tensors), split, looks, tuple(copies), at, view)


def _view(digest: Mapping[str, str], agreed: Agreed) -> str:
    """Ranks that were alike have to stay so; of others each has to have what it had."""
    if agreed.holders is not None and digest == agreed.own:
        return "as agreed"
    return xxhash.xxh3_128_hexdigest(repr(sorted(digest.items())).encode())


def _check(key: str, tensor: torch.Tensor) -> None:
    part = local(tensor)
    kind = type(part)
    if kind not in _PLAIN or part.layout is not torch.strided or part.is_quantized or part.is_meta:
        raise Unsupported(
            f"{key} is a {kind.__module__}.{kind.__qualname__}, {part.layout}, on {part.device}"
        )
    if str(part.dtype).removeprefix("torch.") not in DTYPES:
        raise Unsupported(f"{key} is of type {part.dtype}")
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
    loads = [agreed.rank_0_bytes] + [0] * (world_size - 1)
    shared = {part.key: part for part in slices.share(described, rank, loads)}
    mine = [key for key, holder in holders.items() if holder == rank and key in alike]
    return shared | {key: slices.Part(key, 0, alike[key].numel()) for key in mine}


Pieces = list[tuple[Box, tuple[int, ...]]]  # box of the local tensor, and its place in the whole


def _of_part(tensor: torch.Tensor, part: slices.Part | None) -> Pieces:
    if part is None:
        return []
    found = slices.boxes(tuple(tensor.shape), part.start, part.stop, tensor.dtype.itemsize)
    return [(box, box.offsets) for box in found]


def _of_shard(key: str, tensor: DTensor, turn: int) -> Pieces:
    """This rank's shard, or its slice of one that others have too."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    index, count = 0, 1
    for placement, place, size in zip(tensor.placements, coordinate, mesh.shape, strict=True):
        if isinstance(placement, Replicate):
            index, count = index * size + place, count * size
    shape, begin = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    if math.prod(shape) == 0 and (tensor.numel() or any(coordinate)):
        return []  # nothing of it is here; an empty tensor is stored once
    part = slices.share_evenly(slices.Tensor(key, tuple(shape), tensor.dtype.itemsize), index, count, turn)
    if part is None:
        return []
    found = slices.boxes(tuple(shape), part.start, part.stop, tensor.dtype.itemsize)
    return [(box, tuple(a + b for a, b in zip(begin, box.offsets, strict=True))) for box in found]


def digest_of(tensors: Mapping[str, torch.Tensor], rank_0_keys: Iterable[str]) -> dict[str, str]:
    """What ranks compare: shape and type of each replicated tensor."""
    own = set(rank_0_keys)
    return {
        key: f"{tensor.dtype}{list(tensor.shape)}"
        for key, tensor in tensors.items()
        if key not in own and not isinstance(tensor, DTensor)
    }


def agree_on(digests: Sequence[Mapping[str, str]], rank_0_bytes: int, rank: int) -> Agreed:
    """PURE: from all ranks' digests. A tensor that not all ranks have alike is stored whole by the first."""
    if all(digest == digests[0] for digest in digests):
        return Agreed(rank_0_bytes)
    alike = {key for key, look in digests[0].items() if all(digest.get(key) == look for digest in digests)}
    holders: dict[str, int] = {}
    for holder, digest in enumerate(digests):
        for key in digest.keys() - alike:
            holders.setdefault(key, holder)
    return Agreed(rank_0_bytes, holders, digests[rank])


def unlike(digests: Sequence[Mapping[str, str]]) -> str:
    """PURE: which tensors not all ranks have alike, and who has them; "" when there are none."""
    keys = sorted({key for digest in digests for key in digest})
    found = [_who_has(key, digests) for key in keys if len({digest.get(key) for digest in digests}) > 1]
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(found[:_MOST_NAMED]) + more


def _who_has(key: str, digests: Sequence[Mapping[str, str]]) -> str:
    looks: dict[str, list[int]] = {}
    for rank, digest in enumerate(digests):
        looks.setdefault(digest.get(key, "nothing"), []).append(rank)
    return f"{key} is " + ", ".join(f"{look} on {_named(ranks)}" for look, ranks in looks.items())


def _named(ranks: Sequence[int]) -> str:
    """``rank 1``, ``rank 1, 2, 3 and 5 more``."""
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"
