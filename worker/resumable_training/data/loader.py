"""Fetches this rank's micro-batches: in this process, or with a DataLoader's worker processes.

Nothing here draws from the global random number generators: a sample's augmentation sees them seeded by
(seed, epoch, index) and they are put back afterwards, so that a resume in mid-epoch changes nothing.
"""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, default_collate

from resumable_training import rng
from resumable_training.data.order import Stream
from resumable_training.data.split import StepPlan

_BEFORE_PROCESSES_ARE_AWAITED = 10  # finalizers of priority 0 and more run before that

Key = tuple[int, int]  # epoch, dataset index
Collate = Callable[[list[Any]], Any]


class MapDataset(Protocol):
    """What ``run.data`` takes: samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class LoaderOptions:
    """How samples are fetched; the names are those of ``torch.utils.data.DataLoader``.

    ``sample_rng`` False says that samples draw no random numbers: saves about 0.1 ms a micro-batch when
    ``num_workers`` is 0.
    """

    num_workers: int = 0
    collate_fn: Collate | None = None
    pin_memory: bool = False
    prefetch_factor: int | None = None
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    sample_rng: bool = True


class SeededSamples(torch.utils.data.Dataset[Any]):
    """Dataset of ``(epoch, index)`` keys: seeds the global generators before each sample is read."""

    def __init__(self, dataset: MapDataset, seed: int) -> None:
        self._dataset = dataset
        self._key = rng.derive("sample", seed)

    def __getitem__(self, key: Key) -> Any:
        epoch, index = key
        rng.seed_cpu(rng.sample_seed(self._key, epoch, index))
        return self._dataset[index]


class _PlainSamples(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: MapDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Key) -> Any:
        return self._dataset[key[1]]


class _Keys:
    """The DataLoader's batch sampler: the keys of one micro-batch after the other."""

    def __init__(self, stream: Stream, plans: Callable[[], Iterator[StepPlan]]) -> None:
        self._stream = stream
        self._plans = plans

    def __iter__(self) -> Iterator[list[Key]]:
        for plan in self._plans():
            for piece in plan.pieces:
                yield keys_of(self._stream, plan.start + piece.start, plan.start + piece.stop)


def keys_of(stream: Stream, start: int, stop: int) -> list[Key]:
    """The (epoch, dataset index) pairs of positions ``start .. stop - 1``."""
    ids = stream.ids(start, stop).tolist()
    first = stream.epoch(start)
    if stream.epoch(stop - 1) == first:
        return [(first, index) for index in ids]
    return [(stream.epoch(start + offset), index) for offset, index in enumerate(ids)]


class _IgnoreSignals:
    """Worker start hook: a signal meant for the rank must not break the batch in the making."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._then is not None:
            self._then(worker_id)


def micro_batches(
    dataset: MapDataset,
    stream: Stream,
    plans: Callable[[], Iterator[StepPlan]],
    options: LoaderOptions,
) -> Iterator[Any]:
    """Collated micro-batches in the order of ``plans()``, without end if that has none."""
    samples = SeededSamples(dataset, stream.seed) if options.sample_rng else _PlainSamples(dataset)
    keys = _Keys(stream, plans)
    if options.num_workers == 0:
        return _in_process(samples, keys, options)
    generator = torch.Generator()
    generator.manual_seed(rng.derive("loader", stream.seed))
    loader: DataLoader[Any] = DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=options.num_workers,
        collate_fn=options.collate_fn,
        pin_memory=options.pin_memory,
        prefetch_factor=options.prefetch_factor,
        worker_init_fn=_IgnoreSignals(options.worker_init_fn),
        multiprocessing_context=options.multiprocessing_context,
        generator=generator,
    )
    batches = iter(loader)
    Finalize(None, _end_workers, args=(weakref.ref(batches),), exitpriority=_BEFORE_PROCESSES_ARE_AWAITED)
    return batches


def _end_workers(loader: Callable[[], Any]) -> None:
    """Let the workers go when this process exits and the script still holds their batches.

    ``multiprocessing`` would send them the SIGTERM that they ignore, and wait for them for ever.
    """
    batches = loader()
    if batches is not None:
        batches._shutdown_workers()


def _in_process(
    samples: torch.utils.data.Dataset[Any], keys: Iterable[list[Key]], options: LoaderOptions
) -> Iterator[Any]:
    collate = options.collate_fn or default_collate
    pins = options.pin_memory and torch.accelerator.is_available()  # without one, as in DataLoader, ignored
    for batch in keys:
        if options.sample_rng:
            with rng.isolated():
                result = collate([samples[key] for key in batch])
        else:
            result = collate([samples[key] for key in batch])
        yield _pinned(result) if pins else result


def _pinned(batch: Any) -> Any:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)  # type: ignore[no-untyped-call]
