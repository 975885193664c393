"""The order of samples: a keyed permutation that never changes, and the stream made of it."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.data.order import MAX_LENGTH, ORDER_VERSION, Stream, permute


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**40), st.integers(0, 1000))
def test_it_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    """Every index comes exactly once, for any length, seed and epoch."""
    assert sorted(permute(np.arange(length), length, seed, epoch)) == list(range(length))


@settings(deadline=None)
@given(st.integers(1, MAX_LENGTH), st.integers(0, 2**32), st.data())
def test_any_length_needs_no_memory(length: int, seed: int, data: st.DataObject) -> None:
    """Up to 2**62 samples, single indices map into the range, and different ones to different ones."""
    indices = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20, unique=True))
    found = permute(indices, length, seed, 0)
    assert all(0 <= index < length for index in found.tolist())
    assert len(set(found.tolist())) == len(indices)


GOLDEN = [
    (range(10), 10, 0, 0, [0, 5, 1, 4, 9, 2, 3, 8, 6, 7]),
    (range(10), 10, 0, 1, [9, 1, 5, 3, 6, 8, 2, 4, 7, 0]),
    (range(5), 1_000_003, 42, 7, [283030, 180323, 510342, 260578, 995529]),
    ([0, 1, 2**40], 2**41 + 9, 1, 0, [1102759710588, 734610726452, 864481874162]),
]


@pytest.mark.parametrize(("indices", "length", "seed", "epoch", "expected"), GOLDEN)
def test_the_order_never_changes(
    indices: list[int], length: int, seed: int, epoch: int, expected: list[int]
) -> None:
    """Golden values: another result means that checkpoints go on with other samples (ORDER_VERSION 1)."""
    assert ORDER_VERSION == 1
    assert permute(list(indices), length, seed, epoch).tolist() == expected


def test_a_whole_epoch_never_changes() -> None:
    """Golden hash of 100,000 indices."""
    order = permute(np.arange(100_000), 100_000, 1, 2).astype("<i8").tobytes()
    assert (
        hashlib.sha256(order).hexdigest()
        == "7d0b459f257c639a4d6b0a32135b591d1ee918fa98796db6dd132eb75e4c0410"
    )


@pytest.mark.parametrize("length", [10, 16, 17, 33])
def test_every_sample_is_as_likely_at_every_place(length: int) -> None:
    """Over 2,000 seeds the counts of (place, sample) look uniform: chi-square per degree near 1."""
    counts = np.zeros((length, length))
    for seed in range(2000):
        counts[np.arange(length), permute(np.arange(length), length, seed, 0)] += 1
    expected = 2000 / length
    assert ((counts - expected) ** 2 / expected).sum() / (length**2 - 1) < 1.3


def test_epochs_and_seeds_differ() -> None:
    """Another epoch or another seed is another order."""
    orders = {tuple(permute(np.arange(100), 100, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@settings(deadline=None)
@given(st.integers(1, 9000), st.integers(0, 20000), st.integers(0, 9000), st.booleans())
def test_ids_do_not_depend_on_how_they_are_asked_for(
    length: int, start: int, count: int, shuffle: bool
) -> None:
    """A slice across blocks and epochs equals its samples one by one."""
    stream = Stream(length, 5, shuffle)
    found = stream.ids(start, start + count).tolist()
    assert len(found) == count
    for offset in range(0, count, max(1, count // 7)):
        epoch, index = divmod(start + offset, length)
        expected = int(permute(index, length, 5, epoch)[0]) if shuffle else index
        assert found[offset] == expected


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 70), st.data())
def test_batches_cover_the_epochs_exactly(length: int, epochs: int, size: int, data: st.DataObject) -> None:
    """Without drop_last the batches are the whole stream, also when the size changes at any resume."""
    stream = Stream(length, 0, epochs=epochs)
    position, covered = 0, []
    while (batch := stream.next_batch(position, size)) is not None:
        assert batch[0] == position
        covered += range(*batch)
        position = batch[1]
        size = data.draw(st.integers(1, 70)) if data.draw(st.booleans()) else size
    assert covered == list(range(length * epochs))


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 60))
def test_drop_last_never_joins_epochs(length: int, epochs: int, size: int) -> None:
    """With drop_last all batches are full, lie within one epoch, and leave out less than one each epoch."""
    stream = Stream(length, 0, drop_last=True, epochs=epochs)
    if size > length:
        with pytest.raises(ValueError, match="drops all"):
            stream.next_batch(0, size)
        return
    batches, position = [], 0
    while (batch := stream.next_batch(position, size)) is not None:
        batches.append(batch)
        position = batch[1]
    assert len(batches) == epochs * (length // size)
    assert all(stop - start == size and start // length == (stop - 1) // length for start, stop in batches)


def test_resume_exactly_at_an_epochs_end() -> None:
    """The position after the last sample of an epoch is the first of the next, in its order."""
    stream = Stream(20, 1)
    assert stream.next_batch(20, 10) == (20, 30)
    assert stream.epoch(20) == 1
    assert stream.ids(20, 40).tolist() == permute(np.arange(20), 20, 1, 1).tolist()


@pytest.mark.parametrize(("length", "epochs"), [(0, None), (MAX_LENGTH + 1, None), (5, 0)])
def test_impossible_streams_are_refused(length: int, epochs: int | None) -> None:
    """An empty or too long dataset, or no epoch, is an error."""
    with pytest.raises(ValueError, match="must"):
        Stream(length, 0, epochs=epochs)


def test_it_loads_no_torch() -> None:
    """The order is for tools too: it needs numpy alone."""
    code = "import sys, resumable_training.data.split; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
