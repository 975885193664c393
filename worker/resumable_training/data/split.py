"""Which part of a global batch is whose, and in how many micro-batches. Pure.

A global batch is cut into contiguous shares, one a rank, that differ by at most one sample. All ranks make
the same number of micro-batches, because each is a forward and backward with collectives in it. A rank that
would be left with an empty one repeats a sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from resumable_training.data.order import Stream


@dataclass(frozen=True)
class Piece:
    """One micro-batch: samples ``start .. stop - 1`` of the global batch; ``real`` 0: padding of weight 0."""

    start: int
    stop: int
    real: int


@dataclass(frozen=True)
class StepPlan:
    """The global batch at positions ``start .. stop - 1`` as one rank sees it; as many ``pieces`` on all."""

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


@lru_cache(maxsize=64)
def split_batch(size: int, rank: int, world_size: int, micro_batch_size: int) -> tuple[Piece, ...]:
    """This rank's micro-batches of a global batch of ``size`` samples."""
    count = micro_batch_count(size, world_size, micro_batch_size)
    begin, end = cut(size, world_size, rank)
    full = min(count, end - begin)
    bounds = [cut(end - begin, full, number) for number in range(full)]
    pieces = [Piece(begin + first, begin + last, last - first) for first, last in bounds]
    pieces += [Piece(0, 1, 0)] * (count - full)  # last, so that an iterable has a sample to repeat
    return tuple(pieces)


def plan_step(start: int, stop: int, rank: int, world_size: int, micro_batch_size: int) -> StepPlan:
    """This rank's part of the global batch at positions ``start .. stop - 1``."""
    return StepPlan(start, stop, split_batch(stop - start, rank, world_size, micro_batch_size))


def plan_steps(
    stream: Stream, position: int, global_batch_size: int, rank: int, world_size: int, micro_batch_size: int
) -> Iterator[StepPlan]:
    """This rank's plans of all global batches from ``position`` on."""
    batch = stream.next_batch(position, global_batch_size)
    while batch is not None:
        start, stop = batch
        yield plan_step(start, stop, rank, world_size, micro_batch_size)
        batch = stream.next_batch(stop, global_batch_size)
