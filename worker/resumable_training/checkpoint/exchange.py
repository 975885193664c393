"""Hand pieces of blocks from the rank that has read them to those that need them, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.share import Transfer

IN_FLIGHT = 4  # pieces; each is at most one block

Give = Callable[[int], torch.Tensor]  # block -> its bytes, on the rank that has read it
Take = Callable[[int, int, torch.Tensor], None]  # block, first byte in it, bytes
Done = Callable[[int], None]  # block: it was given


def exchange(plan: Sequence[Transfer], ranks: Ranks, give: Give, take: Take, done: Done) -> None:
    """Go through ``plan``, the same on all ranks; ``take`` is called in its order and must not raise.

    Every rank begins its transfers in the order of the plan and ends them in it, so that the first one that
    is not ended is begun on all ranks it concerns: nobody waits for ever.
    """
    flying: deque[tuple[Any, Transfer, torch.Tensor]] = deque()
    for tag, one in enumerate(plan):
        if one.to is not None and ranks.rank not in (one.owner, one.to):
            continue
        buffer = _buffer(one, ranks.rank, give)
        flying.append((_begin(one, tag, buffer, ranks), one, buffer))
        if len(flying) == IN_FLIGHT:
            _end(*flying.popleft(), ranks.rank, take, done)
    while flying:
        _end(*flying.popleft(), ranks.rank, take, done)


def _buffer(one: Transfer, rank: int, give: Give) -> torch.Tensor:
    if rank == one.owner:
        return give(one.block)[one.start : one.stop]
    return torch.empty(one.stop - one.start, dtype=torch.uint8)


def _begin(one: Transfer, tag: int, buffer: torch.Tensor, ranks: Ranks) -> Any:
    assert ranks.group is not None
    owner = dist.get_global_rank(ranks.group, one.owner)
    if one.to is None:
        return dist.broadcast(buffer, src=owner, group=ranks.group, async_op=True)
    if ranks.rank == one.to:
        return dist.irecv(buffer, src=owner, group=ranks.group, tag=tag)
    return dist.isend(buffer, dst=dist.get_global_rank(ranks.group, one.to), group=ranks.group, tag=tag)


def _end(work: Any, one: Transfer, buffer: torch.Tensor, rank: int, take: Take, done: Done) -> None:
    work.wait()
    if rank == one.owner:
        done(one.block)
    else:
        take(one.block, one.start, buffer)
