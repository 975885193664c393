"""Which part of a global batch is whose, and in how many micro-batches. Pure.

A global batch is cut into contiguous shares, one a rank, that differ by at most one sample. All ranks make
the same number of micro-batches, because each is a forward and backward with collectives in it. A rank that
would be left with an empty one repeats a sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resumable_training.data.order import Stream


@dataclass(frozen=True)
class Piece:
    """One micro-batch: positions ``start .. stop - 1``; ``real`` 0: padding, its weight is 0."""

    start: int
    stop: int
    real: int


@dataclass(frozen=True)
class StepPlan:
    """One global batch as one rank sees it. ``pieces`` has the same length on all ranks."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Samples in the global batch, over all ranks."""
        return self.stop - self.start


def cut(count: int, parts: int, part: int) -> tuple[int, int]:
    """Start and stop of one of ``parts`` contiguous parts of ``0 .. count - 1``; they differ by 1 at most."""
    return count * part // parts, count * (part + 1) // parts


def check_sizes(global_batch_size: int, micro_batch_size: int, world_size: int) -> None:
    """Raises:
    ValueError: a size that can't be split; the text names what to change.
    """
    if micro_batch_size < 1:
        raise ValueError(f"micro_batch_size must be at least 1, not {micro_batch_size}")
    if global_batch_size < world_size:
        raise ValueError(
            f"global_batch_size {global_batch_size} is smaller than the {world_size} ranks that share it: "
            f"raise it to at least {world_size}, or run fewer ranks"
        )


def micro_batch_count(count: int, world_size: int, micro_batch_size: int) -> int:
    """Micro-batches that every rank makes of a global batch of ``count`` samples."""
    largest_share = -(-count // world_size)
    return -(-largest_share // micro_batch_size)


def plan_step(start: int, stop: int, rank: int, world_size: int, micro_batch_size: int) -> StepPlan:
    """This rank's micro-batches of the global batch at positions ``start .. stop - 1``."""
    count = micro_batch_count(stop - start, world_size, micro_batch_size)
    share_start, share_stop = cut(stop - start, world_size, rank)
    share = share_stop - share_start
    full = min(count, share)
    bounds = [cut(share, full, number) for number in range(full)]
    begin = start + share_start
    pieces = [Piece(begin + first, begin + last, last - first) for first, last in bounds]
    pieces += [Piece(start, start + 1, 0)] * (
        count - full
    )  # last, so that an iterable has a sample to repeat
    return StepPlan(start, stop, tuple(pieces))


def plan_steps(
    stream: Stream, position: int, global_batch_size: int, rank: int, world_size: int, micro_batch_size: int
) -> Iterator[StepPlan]:
    """This rank's plans of all global batches from ``position`` on."""
    batch = stream.next_batch(position, global_batch_size)
    while batch is not None:
        start, stop = batch
        yield plan_step(start, stop, rank, world_size, micro_batch_size)
        batch = stream.next_batch(stop, global_batch_size)
