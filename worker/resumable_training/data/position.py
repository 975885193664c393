"""A training set with a position: what ``run.data`` returns, and what is saved and checked of it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate

from resumable_training.checkpoint.values import from_text, to_text
from resumable_training.data import loader, split
from resumable_training.data.order import ORDER_VERSION, Stream
from resumable_training.errors import DataChanged, UserError

_MEANING = {
    "length": "number of samples",
    "seed": "seed of the order",
    "version": "version string",
    "order": "version of the order's algorithm",
    "shuffle": "shuffle",
    "drop_last": "drop_last",
    "kind": "kind of dataset",
}


@dataclass(frozen=True)
class Place:
    """A rank's place among those that share the data (the data-parallel dimension)."""

    rank: int
    world_size: int


@dataclass(frozen=True)
class BatchSizes:
    """Samples per global batch (all ranks together) and at most per micro-batch (one rank)."""

    global_batch: int
    micro_batch: int


class Data(Protocol):
    """What the step loop needs of a training set."""

    name: str
    sizes: BatchSizes
    position: int  # samples of the stream that are trained on
    accept_changes: bool

    @property
    def epoch(self) -> int: ...

    @property
    def place(self) -> Place: ...

    def plans(self) -> Iterator[split.StepPlan]: ...

    def micro_batches(self) -> Iterator[Any]: ...

    def ids(self, start: int, stop: int) -> list[int] | None: ...

    def fingerprint(self) -> dict[str, Any]: ...

    def rank_state(self) -> bytes | None: ...

    def load_rank_state(self, data: bytes | None, saved_world_size: int) -> None: ...


class MapData:
    """Samples by index in a keyed order: exact at any world size. See :class:`data.order.Stream`."""

    def __init__(
        self,
        name: str,
        dataset: loader.MapDataset,
        stream: Stream,
        sizes: BatchSizes,
        place: Place,
        options: loader.LoaderOptions,
        version: str = "",
        accept_changes: bool = False,
    ) -> None:
        self.name = name
        self.sizes = sizes
        self.position = 0
        self.accept_changes = accept_changes
        self._dataset = dataset
        self._stream = stream
        self._place = place
        self._options = options
        self._version = version

    @property
    def epoch(self) -> int:
        """Epoch of the next sample."""
        return self._stream.epoch(self.position)

    @property
    def place(self) -> Place:
        return self._place

    def plans(self) -> Iterator[split.StepPlan]:
        """This rank's share of every global batch from the position on."""
        return split.plan_steps(
            self._stream,
            self.position,
            self.sizes.global_batch,
            self._place.rank,
            self._place.world_size,
            self.sizes.micro_batch,
        )

    def micro_batches(self) -> Iterator[Any]:
        """The micro-batches of :meth:`plans`, one after the other."""
        return loader.micro_batches(self._dataset, self._stream, self.plans, self._options)

    def ids(self, start: int, stop: int) -> list[int] | None:
        """Dataset indices at positions ``start .. stop - 1``."""
        return [int(index) for index in self._stream.ids(start, stop)]

    def fingerprint(self) -> dict[str, Any]:
        """What must stay the same for the position to mean the same samples."""
        return {
            "kind": "map",
            "length": self._stream.length,
            "seed": self._stream.seed,
            "version": self._version,
            "order": ORDER_VERSION,
            "shuffle": self._stream.shuffle,
            "drop_last": self._stream.drop_last,
        }

    def rank_state(self) -> bytes | None:
        return None

    def load_rank_state(self, data: bytes | None, saved_world_size: int) -> None:
        """Nothing is kept per rank."""


class IterableData:
    """A dataset that yields samples and has its own ``state_dict``: each rank has its own stream of it.

    Promised: with the same number of ranks, each continues where its dataset's own state says, and the
    weights of uneven shares are right. Not promised: other numbers of ranks (an error, unless
    ``accept_changes``: then the datasets start afresh), nor that ranks see different samples, which is the
    dataset's business (``run.rank``, ``run.world_size``).
    """

    def __init__(
        self,
        name: str,
        dataset: Any,
        sizes: BatchSizes,
        place: Place,
        collate_fn: loader.Collate | None,
        version: str = "",
        accept_changes: bool = False,
    ) -> None:
        self.name = name
        self.sizes = sizes
        self.position = 0
        self.accept_changes = accept_changes
        self._dataset = dataset
        self._place = place
        self._collate = collate_fn or default_collate
        self._version = version

    @property
    def epoch(self) -> int:
        """Always 0: an iterable dataset counts its epochs itself."""
        return 0

    @property
    def place(self) -> Place:
        return self._place

    def plans(self) -> Iterator[split.StepPlan]:
        start = self.position
        place, sizes = self._place, self.sizes
        while True:
            stop = start + sizes.global_batch
            yield split.plan_step(start, stop, place.rank, place.world_size, sizes.micro_batch)
            start = stop

    def micro_batches(self) -> Iterator[Any]:
        """Collates as many samples as each piece needs; padding repeats the rank's last sample."""
        samples = self._samples()
        last: Any = None
        for plan in self.plans():
            for piece in plan.pieces:
                if piece.real == 0 and last is not None:
                    yield self._collate([last])
                    continue
                batch = [next(samples) for _ in range(max(1, piece.real))]
                last = batch[-1]
                yield self._collate(batch)

    def _samples(self) -> Iterator[Any]:
        """The dataset's samples, begun anew whenever they end."""
        while True:
            empty = True
            for sample in self._dataset:
                empty = False
                yield sample
            if empty:
                raise UserError(
                    f"the iterable dataset {self.name!r} yields no samples on rank {self._place.rank}"
                )

    def ids(self, start: int, stop: int) -> list[int] | None:
        """None: an iterable's samples have no numbers."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        return {"kind": "iterable", "version": self._version}

    def rank_state(self) -> bytes | None:
        """The dataset's own state: its text and the tensors in it, as ``torch.save`` writes them.

        Raises:
            NotPlain: something in it could only be kept with pickle.
        """
        tensors: list[Any] = []
        text = to_text(self._dataset.state_dict(), tensors, where=f"the state of the data {self.name!r}")
        buffer = io.BytesIO()
        torch.save({"text": text, "tensors": tensors}, buffer)
        return buffer.getvalue()

    def load_rank_state(self, data: bytes | None, saved_world_size: int) -> None:
        """Raises:
        DataChanged: the state was saved by another number of ranks, or for none of this rank's number.
        """
        if data is not None and saved_world_size == self._place.world_size:
            saved = torch.load(io.BytesIO(data), weights_only=True)
            self._dataset.load_state_dict(from_text(saved["text"], saved["tensors"]))
        elif not self.accept_changes:
            raise DataChanged(
                f"the iterable dataset {self.name!r} was saved by {saved_world_size} ranks and there are "
                f"{self._place.world_size} now; its own state can't be divided anew. Run as many as then, "
                "use a map-style dataset (exact at any number of ranks), or pass accept_changes=True to "
                "run.data to start the dataset afresh"
            )


def check_fingerprint(data: Data, saved: dict[str, Any]) -> None:
    """Compare a saved fingerprint with that of ``data``.

    Raises:
        DataChanged: they differ and ``accept_changes`` is not set; the text names each difference.
    """
    current = data.fingerprint()
    differences = [
        f"{_MEANING.get(key, key)} was {saved.get(key)!r} and is now {current.get(key)!r}"
        for key in sorted(set(saved) | set(current))
        if saved.get(key) != current.get(key)
    ]
    if differences and not data.accept_changes:
        raise DataChanged(
            f"the data {data.name!r} is not what the checkpoint was trained on: {'; '.join(differences)}. "
            "Put it back, or pass accept_changes=True to run.data to go on at that position of the new data"
        )
