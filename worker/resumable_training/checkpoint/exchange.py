"""Hand pieces of blocks from the rank that has read them to those that need them, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.share import Transfer

IN_FLIGHT = 4  # pieces; each is at most one block

Give = Callable[[int], torch.Tensor]  # block -> its bytes, on the rank that has read it
Take = Callable[[int, int, torch.Tensor], None]  # block, first byte in it, bytes: valid during the call
Done = Callable[[int], None]  # block: it was given


def exchange(plan: Sequence[Transfer], ranks: Ranks, give: Give, take: Take, done: Done) -> None:
    """Go through ``plan``, the same on all ranks; ``take`` is called in its order and must not raise.

    Every rank begins its transfers in the order of the plan and ends them in it, so that the first one that
    is not ended is begun on all ranks it concerns: nobody waits for ever.
    """
    flying: deque[_Flight] = deque()
    spare: list[torch.Tensor] = []  # memory that was touched before costs no page faults
    for tag, one in enumerate(plan):
        if one.to is not None and ranks.rank not in (one.owner, one.to):
            continue
        if len(flying) == IN_FLIGHT:
            _end(flying.popleft(), take, done, spare)
        flying.append(_begin(one, tag, ranks, give, spare))
    while flying:
        _end(flying.popleft(), take, done, spare)


@dataclass(frozen=True)
class _Flight:
    work: Any
    transfer: Transfer
    piece: torch.Tensor
    buffer: torch.Tensor | None  # that it comes into, at least as long; None: it goes from here


def _begin(one: Transfer, tag: int, ranks: Ranks, give: Give, spare: list[torch.Tensor]) -> _Flight:
    buffer = None if ranks.rank == one.owner else _room(one.stop - one.start, spare)
    piece = give(one.block)[one.start : one.stop] if buffer is None else buffer[: one.stop - one.start]
    return _Flight(_start(one, tag, ranks, piece), one, piece, buffer)


def _room(size: int, spare: list[torch.Tensor]) -> torch.Tensor:
    buffer = spare.pop() if spare else None
    return buffer if buffer is not None and len(buffer) >= size else torch.empty(size, dtype=torch.uint8)


def _start(one: Transfer, tag: int, ranks: Ranks, piece: torch.Tensor) -> Any:
    assert ranks.group is not None
    owner = dist.get_global_rank(ranks.group, one.owner)
    if one.to is None:
        return dist.broadcast(piece, src=owner, group=ranks.group, async_op=True)
    if ranks.rank == one.to:
        return dist.irecv(piece, src=owner, group=ranks.group, tag=tag)
    return dist.isend(piece, dst=dist.get_global_rank(ranks.group, one.to), group=ranks.group, tag=tag)


def _end(flight: _Flight, take: Take, done: Done, spare: list[torch.Tensor]) -> None:
    flight.work.wait()
    one = flight.transfer
    if flight.buffer is None:
        done(one.block)
        return
    take(one.block, one.start, flight.piece)
    spare.append(flight.buffer)
