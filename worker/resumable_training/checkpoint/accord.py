"""PURE: what ranks tell each other before the first plan, and what follows from it for who stores what.

Most often all hold the same, and a short digest is all that is said. Else each tells what it holds, and all
conclude the same from it: who stores what only some of them have, and whose meshes are twins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

_MOST_NAMED = 3


class Look(NamedTuple):
    """How a tensor that is no DTensor looks on one rank."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Mesh(NamedTuple):
    """A mesh of some of the ranks; ``ranks`` in its order."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...]


class Stock(NamedTuple):
    """What one rank holds: its tensors, and of each mesh that has not all ranks a digest of what lies on it.

    Without what only rank 0 gives, and without what lies on a mesh of all ranks.
    """

    tensors: Mapping[str, Look]
    meshes: Mapping[Mesh, str]

    @property
    def digest(self) -> str:
        """The same where ranks hold alike; meshes of other ranks, of the same shape, may hold the same."""
        layouts = sorted((mesh.shape, held) for mesh, held in self.meshes.items())
        return xxhash.xxh3_128_hexdigest(repr((sorted(self.tensors.items()), layouts)).encode())


@dataclass(frozen=True)
class Agreed:
    """``loads``: bytes that each rank stores besides its share of what all have alike; none told: nothing.

    ``holders``: None when all ranks hold alike; else who stores those, whole, that not all have alike. The
    others are shared out as ever. ``own``: what this rank held then; only beside ``holders``.
    ``twins``: of a mesh, all meshes that hold the same, itself among them: replicas of one another.
    ``apart``: ranks hold other values of what they have alike (``replicas``). Nothing is cut into slices of
    several ranks then: the first one that has it stores it, as DDP would send its values to all.
    """

    loads: tuple[int, ...] = ()
    holders: Mapping[str, int] | None = None
    own: Stock | None = None
    twins: Mapping[Mesh, tuple[Mesh, ...]] = field(default_factory=dict)
    apart: bool = False

    def view(self, stock: Stock) -> str:
        """Of what all ranks hold, as one knows it that holds this: plans with the same make a whole together.

        Ranks that were alike have to stay so; of others each has to have what it had.
        """
        return "as agreed" if self.own is not None and stock == self.own else stock.digest


def twins_of(told: Sequence[Stock]) -> dict[Mesh, tuple[Mesh, ...]]:
    """Meshes of the same shape with the same tensors, placed alike; only those that have a twin.

    A key means one tensor, whoever has it: so it is in all of DCP, which would keep any one copy.
    """
    alike: dict[tuple[tuple[int, ...], str], list[Mesh]] = {}
    for mesh in sorted({mesh for one in told for mesh in one.meshes}):
        held = {one.meshes.get(mesh, "") for rank, one in enumerate(told) if rank in mesh.ranks}
        if len(held) == 1:  # all of its ranks know it alike
            alike.setdefault((mesh.shape, held.pop()), []).append(mesh)
    return {mesh: tuple(group) for group in alike.values() if len(group) > 1 for mesh in group}


def agree_on(told: Sequence[Stock], loads: Sequence[int], rank: int) -> Agreed:
    """From what all ranks have told, or from what one of them has if all hold alike.

    A tensor that not all ranks have alike is stored whole, as the first has it: by one of those that have it
    like that, the one with the least to store.

    Args:
        loads: bytes that each rank stores of its own: of rank 0 alone, and of DTensors.
    """
    twins = twins_of(told)
    if all(one.digest == told[0].digest for one in told):
        return Agreed(tuple(loads), twins=twins)
    first: dict[str, Look] = {}
    for one in told:
        first = {**one.tensors, **first}
    alike = {key for key, look in first.items() if all(one.tensors.get(key) == look for one in told)}
    holders, full = dict[str, int](), list(loads)
    for key in sorted(first.keys() - alike, key=lambda key: (-first[key].bytes, key)):
        having = [number for number, one in enumerate(told) if one.tensors.get(key) == first[key]]
        holders[key] = min(having, key=lambda number: (full[number], number))
        full[holders[key]] += first[key].bytes
    return Agreed(tuple(full), holders, told[rank], twins)


def unlike(told: Sequence[Stock]) -> str:
    """What not all ranks have alike, and who has it; "" when there is nothing."""
    tensors = [one.tensors for one in told]
    keys = sorted({key for one in tensors for key in one})
    found = [_who_has(key, tensors) for key in keys if len({one.get(key) for one in tensors}) > 1]
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    if not found and any(one.digest != told[0].digest for one in told):
        return "they hold other DTensors on parts of the mesh"
    return "; ".join(found[:_MOST_NAMED]) + more


def _who_has(key: str, tensors: Sequence[Mapping[str, Look]]) -> str:
    looks: dict[str, list[int]] = {}
    for rank, one in enumerate(tensors):
        looks.setdefault(str(one.get(key, "nothing")), []).append(rank)
    return f"{key} is " + ", ".join(f"{look} on {_named(ranks)}" for look, ranks in looks.items())


def _named(ranks: Sequence[int]) -> str:
    """``rank 1``, ``rank 1, 2, 3 and 5 more``."""
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"
