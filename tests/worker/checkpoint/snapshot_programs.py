"""Snapshots without a writer, looked into; and what ranks do with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate

from resumable_training.checkpoint import TrainingState, snapshot
from resumable_training.checkpoint.boxes import Box, inside
from resumable_training.checkpoint.cargo import Item, Small
from resumable_training.checkpoint.keeper import RankLink
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.snapshot import Snapshot, collect
from resumable_training.checkpoint.state import Content


@dataclass
class Stored:
    """What lay in the arena after one save."""

    items: list[Item]
    smalls: list[Small]
    data: bytes

    def of(self, one: Item | Small) -> bytes:
        return self.data[one.at : one.at + one.bytes]

    def bytes_of(self, key: str) -> bytes:
        return next(self.of(small) for small in self.smalls if small.key.endswith(key))


class Taken:
    """A snapshot that all ranks have agreed on."""

    def __init__(self, state: TrainingState, ranks: Ranks) -> None:
        self._content = Content(state, {"step": 1}, {"model-text": b"text"})
        self._snapshot = Snapshot(ranks, RankLink(ranks.rank))
        assert self._snapshot.agree(self._content) == ""
        self.take()

    def take(self) -> Stored:
        smalls, _ = self._snapshot.take(self._content)
        plan, arena = self._snapshot.plan, self._snapshot.arena
        assert plan is not None
        assert arena is not None
        return Stored(plan.items, smalls, bytes(arena.tensor.numpy()))

    def close(self) -> None:
        self._snapshot.drop()


@contextmanager
def taken(state: TrainingState, ranks: Ranks | None = None) -> Iterator[Taken]:
    one = Taken(state, ranks or Ranks(None, 0, 1))
    yield one
    one.close()


def same_as_built(stored: Stored, state: TrainingState, rank: int = 0) -> bool:
    """Whether it has the tensors of a state dict that is built now, and of each what it says to have.

    Of DTensors all ranks together have the whole; on one rank alone everything must be there.
    """
    values, _, _ = collect(Content(state, {"step": 1}, {"model-text": b"text"}), rank)
    alone = not dist.is_initialized()
    elements = dict.fromkeys(values.tensors, 0)
    for item in stored.items:
        tensor = values.tensors[item.key].detach()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        part = whole[inside(Box(item.offsets, item.sizes), Box((0,) * whole.dim(), tuple(whole.shape)))]
        if tuple(whole.shape) != item.shape or item.dtype != str(whole.dtype).removeprefix("torch."):
            return False
        kept = (
            torch.frombuffer(bytearray(stored.of(item)), dtype=whole.dtype)
            if item.bytes
            else whole.new_empty(0)
        )
        if not torch.equal(kept.view(item.sizes), part):
            return False
        elements[item.key] += kept.numel()
    plain = {small.key for small in stored.smalls if small.pickled}
    complete = all(elements[key] == tensor.numel() for key, tensor in values.tensors.items())
    return plain == values.plain.keys() and (complete or not alone)


def sharded_run(rank: int, world_size: int, group: Any) -> list[tuple[bool, int]]:
    """After each change: whether the right values were taken, and how often a state dict was built for it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    mesh = dist.init_device_mesh("cpu", (world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState({"model": model}, {"optimizer": optimizer})
    train(state)
    real, built = snapshot.collect, list[None]()

    def collecting(*given: Any) -> Any:
        built.append(None)
        return real(*given)

    found = []
    with taken(state, Ranks(group, rank, world_size)) as one:
        snapshot.collect = collecting
        for change in (nothing, other_local, other_state, other_placement, nothing):
            change(state)
            built.clear()
            stored = one.take()
            times = len(built)
            found.append((same_as_built(stored, state, rank), times))
    return found


def train(state: TrainingState) -> None:
    state.modules["model"](torch.ones(2, 6)).sum().backward()
    state.optimizers["optimizer"].step()
    state.optimizers["optimizer"].zero_grad()


def nothing(state: TrainingState) -> None:
    train(state)


def other_local(state: TrainingState) -> None:
    moment = state.optimizers["optimizer"].state[state.modules["model"][0].weight]["exp_avg"]  # type: ignore[index]
    moment._local_tensor = torch.full_like(moment._local_tensor, 3.0)


def other_state(state: TrainingState) -> None:
    kept = state.optimizers["optimizer"].state[state.modules["model"][0].weight]  # type: ignore[index]
    kept["exp_avg_sq"] = kept["exp_avg_sq"] * 2


def other_placement(state: TrainingState) -> None:
    """One that all ranks have whole, of which each stores a slice."""
    kept = state.optimizers["optimizer"].state[state.modules["model"][1].weight]  # type: ignore[index]
    kept["exp_avg"] = kept["exp_avg"].redistribute(placements=[Replicate()])
