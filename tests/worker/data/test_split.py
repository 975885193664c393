"""Who gets which part of a global batch, in how many micro-batches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.data.order import Stream
from resumable_training.data.split import check_sizes, cut, plan_step, plan_steps

sizes = st.tuples(st.integers(1, 200), st.integers(1, 20), st.integers(1, 50))


@given(sizes, st.integers(0, 1000))
def test_shares_are_the_whole_batch_in_order(size: tuple[int, int, int], start: int) -> None:
    """The real samples of all ranks, one after the other, are exactly the global batch."""
    count, world_size, micro = size
    plans = [plan_step(start, start + count, rank, world_size, micro) for rank in range(world_size)]
    real = [piece for plan in plans for piece in plan.pieces if piece.real]
    assert [sample for piece in real for sample in range(piece.start, piece.stop)] == list(range(count))
    assert {(plan.start, plan.size) for plan in plans} == {(start, count)}
    assert all(piece.real == piece.stop - piece.start <= micro for piece in real)


@given(sizes)
def test_all_ranks_make_the_same_number_of_micro_batches(size: tuple[int, int, int]) -> None:
    """Equal counts, as few as the largest share allows, and never an empty one."""
    count, world_size, micro = size
    plans = [plan_step(0, count, rank, world_size, micro) for rank in range(world_size)]
    (pieces,) = {len(plan.pieces) for plan in plans}
    assert pieces == math.ceil(math.ceil(count / world_size) / micro)
    assert all(piece.stop > piece.start for plan in plans for piece in plan.pieces)


@given(sizes)
def test_padding_only_where_a_micro_batch_would_be_empty(size: tuple[int, int, int]) -> None:
    """A rank with at least as many samples as micro-batches has no padding; padding repeats a real sample."""
    count, world_size, micro = size
    for rank in range(world_size):
        plan = plan_step(0, count, rank, world_size, micro)
        padding = [piece for piece in plan.pieces if piece.real == 0]
        share = sum(piece.real for piece in plan.pieces)
        assert len(padding) == max(0, len(plan.pieces) - share)
        assert all(0 <= piece.start < count and piece.stop == piece.start + 1 for piece in padding)


@given(st.integers(0, 100), st.integers(1, 20))
def test_parts_differ_by_at_most_one(count: int, parts: int) -> None:
    """Contiguous, complete and even."""
    bounds = [cut(count, parts, part) for part in range(parts)]
    assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
    assert (bounds[0][0], bounds[-1][1]) == (0, count)
    lengths = {stop - start for start, stop in bounds}
    assert max(lengths) - min(lengths) <= 1


def test_a_short_last_batch_still_has_a_micro_batch_on_every_rank() -> None:
    """Two samples left for three ranks: one rank has padding only."""
    plans = [list(plan_steps(Stream(8, 0, epochs=1), 0, 6, rank, 3, 2)) for rank in range(3)]
    last = [[piece.real for piece in plan[-1].pieces] for plan in plans]
    assert last == [[0], [1], [1]]


@pytest.mark.parametrize(
    ("batch", "micro", "world_size", "text"),
    [
        (2, 1, 3, "global_batch_size 2 is smaller than the 3 ranks"),
        (2, 0, 1, "micro_batch_size must be at least 1"),
    ],
)
def test_impossible_sizes_are_refused(batch: int, micro: int, world_size: int, text: str) -> None:
    """The error says what to change."""
    with pytest.raises(ValueError, match=text):
        check_sizes(batch, micro, world_size)
