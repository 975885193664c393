"""Writes bytes that have come, or lie where all can see them, to where this rank wants them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch

from resumable_training.checkpoint.blocks import Place
from resumable_training.checkpoint.landing import Landing
from resumable_training.checkpoint.memory import Memory


def tensor_over(data: memoryview) -> torch.Tensor:
    """Only to be read from."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(data, dtype=torch.uint8)


class Taker:
    """Writes what comes; its error waits until the exchange is over, as others wait for this rank in it."""

    def __init__(self, places: Sequence[Place], by_block: Mapping[int, list[Landing]]) -> None:
        self._places = places
        self._by_block = by_block
        self._error: Exception | None = None

    def take(self, block: int, start: int, data: torch.Tensor) -> None:
        at = self._places[block].at + start
        try:
            for one in self._by_block.get(block, ()) if self._error is None else ():
                one.put(at, data)
        except Exception as error:  # noqa: BLE001  raised in ``check``, on all ranks
            self._error = error

    def take_parts(self, block: int, memory: Memory) -> None:
        """For each landing what it wants of the block, which is mostly one part of it."""
        place = self._places[block]
        try:
            for one in self._by_block.get(block, ()) if self._error is None else ():
                start, stop = max(one.start, place.at), min(one.stop, place.at + place.length)
                for at, part in memory.parts(place.file, start, stop):
                    one.put(at, tensor_over(part))
        except Exception as error:  # noqa: BLE001  raised in ``check``, on all ranks
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error
