"""PURE: which rank reads which block, and which bytes it hands on to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Parts = npt.NDArray[np.uint8]
NOBODY = -1
ALL = 255  # of a block


def assign(
    wanted: Parts, sizes: Numbers, owners: Numbers, *, everything: bool, near: Parts | None = None
) -> Numbers:
    """Who reads each block: one that has it in memory, else one that wants much of it; in long runs, and
    alike in bytes if there is a choice.

    Args:
        wanted: ranks x blocks, how much of a block a rank wants: 0 nothing, ALL all of it.
        sizes: bytes of each block.
        owners: who has read a block before, or NOBODY; stays as it is.
        everything: blocks that nobody wants are read, too, so that they are verified.
        near: ranks x blocks, 1 where a rank's worker remembers a block, so that it need not be read.

    Returns:
        the reader of each block, or NOBODY.
    """
    result = owners.copy()
    most = wanted.max(axis=0)
    new = np.flatnonzero((owners == NOBODY) & ((most > 0) | everything))
    load = [int(sizes[owners == rank].sum()) for rank in range(len(wanted))]
    fair = (int(sizes[new].sum()) + sum(load)) / len(wanted)
    last = 0
    for block in new:
        much = 2 * wanted[:, block].astype(int) >= most[block]
        if near is not None and near[:, block].any():
            both = much & (near[:, block] > 0)
            much = both if both.any() else near[:, block] > 0
        who = np.flatnonzero(much).tolist()
        size = int(sizes[block])
        if last not in who or load[last] + size / 2 > fair:
            last = min(who, key=lambda rank: (load[rank], rank))
        load[last] += size
        result[block] = last
    return result


@dataclass(frozen=True)
class Transfer:
    """Bytes ``start`` to ``stop`` of a block, from its reader to one rank, or to all (``to`` None)."""

    block: int
    owner: int
    start: int
    stop: int
    to: int | None


def transfers(owners: Numbers, needs: Sequence[Numbers]) -> list[Transfer]:
    """Everything that is handed on, in the order in which all ranks go through it.

    Owners take turns, so that no single machine's line carries all at a time.

    Args:
        needs: for each rank, rows of (block, start, stop); blocks that it has read itself are left out.
    """
    wanted: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, rows in enumerate(needs):
        for block, start, stop in rows.tolist():
            if owners[block] != rank:
                wanted.setdefault(block, {})[rank] = (start, stop)
    turn: dict[int, int] = {}
    found: list[tuple[int, int, Transfer]] = []
    for block in sorted(wanted):
        owner = int(owners[block])
        turn[owner] = turn.get(owner, 0) + 1
        found += [(turn[owner], owner, one) for one in _of_block(block, owner, wanted[block], len(needs))]
    return [one for _, _, one in sorted(found, key=lambda entry: entry[:2])]


def _of_block(block: int, owner: int, to: dict[int, tuple[int, int]], world_size: int) -> list[Transfer]:
    if len(to) == world_size - 1:
        start, stop = min(start for start, _ in to.values()), max(stop for _, stop in to.values())
        return [Transfer(block, owner, start, stop, None)]
    return [Transfer(block, owner, start, stop, rank) for rank, (start, stop) in sorted(to.items())]


def rows(entries: Sequence[tuple[int, int, int]]) -> Numbers:
    """Entries as ``transfers`` wants them; the entries of one block are joined to one stretch."""
    joined: dict[int, tuple[int, int]] = {}
    for block, start, stop in entries:
        before = joined.get(block, (start, stop))
        joined[block] = (min(start, before[0]), max(stop, before[1]))
    plain: list[Any] = [(block, *stretch) for block, stretch in sorted(joined.items())]
    return np.array(plain, dtype=np.int64).reshape(-1, 3)
