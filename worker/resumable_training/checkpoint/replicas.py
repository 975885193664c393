"""Whether ranks hold the same values of what they are taken to have alike: only then may each store a slice.

They do where DDP or the script reduces gradients; not where that was forgotten, nor between two meetings of
local SGD. All of it is read once, before a plan is made, and a digest is what ranks tell each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
import xxhash
from torch.distributed.tensor import DTensor, Replicate

from resumable_training.checkpoint import shards
from resumable_training.checkpoint.accord import Agreed, Mesh
from resumable_training.checkpoint.live import local

_CHUNK_BYTES = 64 << 20  # of a tensor, at most, are fetched from a GPU at a time
_MOST_NAMED = 3
Digests = dict[str, dict[str, str]]


def digests(
    tensors: Mapping[str, torch.Tensor], rank_0_keys: Collection[str], world_size: int, agreed: Agreed
) -> Digests:
    """Of the values that other ranks should have, too: by what it is, and in that by key.

    Whoever has the first should have the second alike. What only one rank stores anyway is not among them.
    """
    if world_size == 1:
        return {}
    alone = set(rank_0_keys) | set(agreed.holders or ())
    plain = [key for key in sorted(tensors) if key not in alone and not isinstance(tensors[key], DTensor)]
    groups = {"": plain} if plain else {}
    parts: dict[str, list[tuple[str, tuple[int, ...], tuple[int, ...]]]] = {}
    for key in sorted(tensors):
        tensor = tensors[key]
        if isinstance(tensor, DTensor) and _has_replicas(tensor, agreed):
            held = shards.held(tensor)
            parts.setdefault(str(tensor.placements), []).append((key, held.offsets, held.sizes))
    for described in parts.values():
        groups[_digest_of(repr(described))] = [key for key, _, _ in described]
    known = {what: {key: _values(tensors[key]) for key in keys} for what, keys in groups.items()}
    return {what: {key: one for key, one in each.items() if one} for what, each in known.items()}


def short(found: Digests) -> dict[str, str]:
    """What is told to all ranks at first: one digest of each kind."""
    return {what: _digest_of(repr(sorted(each.items()))) for what, each in found.items()}


def apart(told: Sequence[Mapping[str, str]]) -> bool:
    """Whether two ranks have other values of the same, from ``short`` of all."""
    first: dict[str, str] = {}
    for one in told:
        first = {**one, **first}
    return any(value != first[what] for one in told for what, value in one.items())


def other_than(first: Digests, mine: Digests) -> list[str]:
    """Keys of what this rank has of other values than rank 0 has; only what both have."""
    return sorted(
        key
        for what, each in mine.items()
        for key, value in each.items()
        if first.get(what, {}).get(key, value) != value
    )


def said_of(unlike: Sequence[Sequence[str]]) -> str:
    """Which values differ; ``unlike``: ``other_than`` of all ranks."""
    keys = sorted({key for one in unlike for key in one})
    if not keys:  # nothing that rank 0 has
        return "some DTensors"
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return ", ".join(keys[:_MOST_NAMED]) + more


def _has_replicas(tensor: DTensor, agreed: Agreed) -> bool:
    mesh = tensor.device_mesh
    if mesh.get_coordinate() is None or local(tensor).numel() == 0:
        return False
    pairs = zip(tensor.placements, mesh.shape, strict=True)
    if any(isinstance(placement, Replicate) and size > 1 for placement, size in pairs):
        return True
    return Mesh(tuple(mesh.shape), tuple(int(rank) for rank in mesh.mesh.flatten())) in agreed.twins


def _digest_of(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def _values(tensor: torch.Tensor) -> str:
    """Of this rank's part, its bytes row by row; "" for a kind that no plan takes, as it has none to see."""
    part = local(tensor).detach()
    kind = type(part), part.layout, part.is_quantized, part.is_meta
    if kind != (torch.Tensor, torch.strided, False, False):
        return ""
    digest = xxhash.xxh3_128()
    for chunk in _chunks(part):
        digest.update(chunk.resolve_conj().resolve_neg().reshape(-1).cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _chunks(part: torch.Tensor) -> Iterator[torch.Tensor]:
    if part.numel() == 0:
        return
    if part.dim() == 0:
        yield part
        return
    row_bytes = part.numel() // part.shape[0] * part.element_size()
    rows = max(1, _CHUNK_BYTES // row_bytes)
    for at in range(0, part.shape[0], rows):
        yield part[at : at + rows]
