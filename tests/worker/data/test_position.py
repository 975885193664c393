"""What is saved of a training set, what is checked when it comes back, and how it is fetched."""

import random

import numpy as np
import pytest
import torch

from resumable_training.checkpoint.errors import NotPlain
from resumable_training.data.loader import LoaderOptions, keys_of, micro_batches
from resumable_training.data.order import Stream
from resumable_training.data.position import BatchSizes, IterableData, MapData, Place, check_fingerprint
from resumable_training.data.split import plan_steps
from resumable_training.errors import DataChanged, UserError


class Squares:
    """Map-style; records nothing, draws nothing."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


class Drawing(Squares):
    """Each sample draws from the three global generators."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), float(np.random.rand()), float(torch.rand(()))])


class Counter:
    """An iterable with its own state; ends after ``length`` and can be begun anew."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.next = 0

    def __iter__(self):
        while self.next < self.length:
            self.next += 1
            yield torch.tensor(self.next - 1)
        self.next = 0

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


def make(dataset=None, *, rank=0, world_size=1, batch=4, micro=2, options=None, **extra) -> MapData:
    dataset = dataset or Squares()
    stream = Stream(len(dataset), extra.pop("seed", 0))
    return MapData(
        "train",
        dataset,
        stream,
        BatchSizes(batch, micro),
        Place(rank, world_size),
        options or LoaderOptions(),
        **extra,
    )


def take(data, count: int) -> list:
    batches = data.micro_batches()
    return [next(batches) for _ in range(count)]


def test_batches_follow_the_order_from_any_position() -> None:
    """A second reader that starts where the first is gets what the first gets next."""
    first = take(make(), 12)
    later = make()
    later.position = 8
    assert [batch.tolist() for batch in take(later, 8)] == [batch.tolist() for batch in first[4:12]]


def test_augmentation_depends_on_epoch_and_index_alone() -> None:
    """The same sample in the same epoch draws the same, on any rank and in any batch; epochs differ."""
    alone = torch.cat(take(make(Drawing(), batch=4, micro=4), 5))
    shared = [
        torch.cat(take(make(Drawing(), rank=rank, world_size=2, batch=4, micro=1), 10)) for rank in (0, 1)
    ]
    interleaved = torch.stack([shared[0].view(5, 2, 3), shared[1].view(5, 2, 3)], dim=1).reshape(-1, 3)
    assert torch.equal(alone, interleaved)
    assert not set(map(tuple, alone[:10].tolist())) & set(map(tuple, alone[10:].tolist()))


def test_global_generators_are_left_alone() -> None:
    """Fetching, with or without loader processes, draws nothing from the script's generators."""
    for workers in (0, 1):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        expected = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        take(make(Drawing(), options=LoaderOptions(num_workers=workers)), 3)
        assert (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        ) == expected


def test_keys_know_their_epoch() -> None:
    """A micro-batch across an epoch's end has keys of both epochs."""
    assert [epoch for epoch, _ in keys_of(Stream(10, 0), 8, 13)] == [0, 0, 1, 1, 1]
    assert sorted(index for epoch, index in keys_of(Stream(10, 0), 0, 20) if epoch == 1) == list(range(10))


def test_an_iterator_ends_with_its_plans() -> None:
    """With a number of epochs, the micro-batches are finite, in this process and from loader processes."""
    stream = Stream(10, 0, epochs=1)
    for workers in (0, 1):
        options = LoaderOptions(num_workers=workers, sample_rng=False)
        batches = list(micro_batches(Squares(), stream, lambda: plan_steps(stream, 4, 4, 0, 1, 2), options))
        assert torch.cat(batches).tolist() == [index**2 for index in stream.ids(4, 10)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 1}, "seed of the order was 0 and is now 1"),
        ({"version": "b"}, "version string was '' and is now 'b'"),
    ],
)
def test_a_change_is_named(change: dict, text: str) -> None:
    """Another seed or version is refused, unless the user accepts it."""
    saved = make().fingerprint()
    check_fingerprint(make(), saved)
    with pytest.raises(DataChanged, match=text):
        check_fingerprint(make(**change), saved)
    check_fingerprint(make(**change, accept_changes=True), saved)


def test_all_changes_are_named_at_once() -> None:
    """A map-style set in place of an iterable one: every difference in one text."""
    saved = make().fingerprint() | {"length": 11, "shuffle": False}
    with pytest.raises(DataChanged, match=r"number of samples was 11.*shuffle was False"):
        check_fingerprint(make(), saved)


def iterable(rank: int = 0, world_size: int = 1, length: int = 100, **extra) -> IterableData:
    return IterableData("stream", Counter(length), BatchSizes(4, 2), Place(rank, world_size), None, **extra)


def test_an_iterable_goes_on_where_its_state_says() -> None:
    """Saved after two micro-batches and loaded into another, the next sample is the next one."""
    first = iterable()
    assert [batch.tolist() for batch in take(first, 2)] == [[0, 1], [2, 3]]
    second = iterable()
    second.load_rank_state(first.rank_state(), 1)
    assert take(second, 1)[0].tolist() == [4, 5]


def test_an_iterable_at_another_world_size_is_refused() -> None:
    """Its state can't be divided; the text says what can be done, and accept_changes starts afresh."""
    state = iterable().rank_state()
    with pytest.raises(DataChanged, match=r"saved by 1 ranks.*map-style"):
        iterable(world_size=2).load_rank_state(state, 1)
    lenient = iterable(world_size=2, accept_changes=True)
    lenient.load_rank_state(state, 1)
    assert take(lenient, 1)[0].tolist() == [0, 1]


def test_an_iterable_that_ends_is_begun_anew() -> None:
    """It is as endless as a map-style set; one without samples is an error."""
    assert [batch.tolist() for batch in take(iterable(length=3), 3)] == [[0, 1], [2, 0], [1, 2]]
    with pytest.raises(UserError, match="yields no samples"):
        take(iterable(length=0), 1)


def test_an_iterables_padding_repeats_a_sample() -> None:
    """A rank with fewer samples than micro-batches repeats its last one instead of taking another."""
    data = IterableData("stream", Counter(100), BatchSizes(3, 1), Place(0, 2), None)
    assert [batch.tolist() for batch in take(data, 4)] == [[0], [0], [1], [1]]


def test_an_iterables_state_may_hold_arrays_and_tensors() -> None:
    """NumPy's numbers and tensors come back as they were; what only pickle could keep is refused."""
    state = {"at": np.int64(3), "seen": np.arange(3), "carry": torch.ones(2), "key": (1, "a")}
    dataset, fresh = Counter(9), Counter(9)
    dataset.state_dict = lambda: state  # type: ignore[method-assign]
    back: list[dict] = []
    fresh.load_state_dict = back.append  # type: ignore[method-assign]
    place, sizes = Place(0, 1), BatchSizes(4, 4)
    saved = IterableData("train", dataset, sizes, place, None).rank_state()
    IterableData("train", fresh, sizes, place, None).load_rank_state(saved, 1)
    (found,) = back
    assert (found["at"], found["key"]) == (3, (1, "a"))
    assert found["seen"].tolist() == [0, 1, 2]
    assert torch.equal(found["carry"], torch.ones(2))
    state["open"] = object()
    with pytest.raises(NotPlain, match=r"the state of the data 'train'\.open is a builtins\.object"):
        IterableData("train", dataset, sizes, place, None).rank_state()


def test_pinning_without_an_accelerator_is_ignored() -> None:
    """As in a DataLoader, so that one script runs on machines with and without."""
    batches = make(options=LoaderOptions(pin_memory=True)).micro_batches()
    assert next(batches).shape == (2,)
