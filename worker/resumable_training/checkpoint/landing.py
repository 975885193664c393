"""Where the bytes of a stored item go on this rank: straight into a tensor, or through a copy of the item."""

from __future__ import annotations

import io
from typing import Any

import torch

from resumable_training.checkpoint import boxes
from resumable_training.checkpoint.boxes import Box
from resumable_training.checkpoint.catalog import Catalog, Item
from resumable_training.checkpoint.errors import NotPlain
from resumable_training.checkpoint.heads import tensor_of
from resumable_training.checkpoint.plain import load_plain

WHOLE = -1  # instead of a place: the values do not lie row by row


class Landing:
    """One item's way into this rank. Its bytes may come in any order, and be cut anywhere."""

    def __init__(
        self,
        number: int,
        item: Item,
        part: Box | None = None,
        region: torch.Tensor | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        """``part``: what is wanted of the item's box, ``region``: the place for it; None for a pickled value.

        ``trusted``: such a value may be an object of any class.
        """
        self.number = number
        self.item = item
        self.value: Any = None
        self._part, self._region, self._trusted = part, region, trusted
        self._run = self._straight_run()
        self._bytes: torch.Tensor | None = None
        self._collected: bytearray | None = None
        self.start, self.stop = item.offset, item.offset + item.length  # in the file
        self._missing = item.length

    def _straight_run(self) -> tuple[int, int] | None:
        """The wanted values as bytes of the item's values, if these can be copied as they are."""
        item, region = self.item, self._region
        if self._part is None or region is None or item.box is None:
            return None
        run = boxes.run(self._part, item.box)
        if run is None or region.dtype != item.dtype or not region.is_contiguous():
            return None
        if region.is_conj() or region.is_neg() or region.is_quantized:
            return None
        return run[0] * region.itemsize, run[1] * region.itemsize

    @property
    def rough(self) -> tuple[int, int]:
        """A stretch of the file that surely holds what is wanted, while nobody knows where values begin."""
        if self._run is None:
            return self.start, self.stop
        at = self.item.offset
        return at + self._run[0], at + self.item.around_bytes + self._run[1]

    def settle(self, at: int) -> None:
        """The item's values begin ``at`` bytes into it, or WHOLE. Sets ``start`` and ``stop``."""
        if self._run is None or at == WHOLE or self._region is None:
            return
        begin = self.item.offset + at
        self.start, self.stop = begin + self._run[0], begin + self._run[1]
        self._bytes = self._region.reshape(-1).view(torch.uint8)

    def put(self, at: int, data: torch.Tensor) -> None:
        """Take what is wanted of these bytes of the file, which begin ``at`` there.

        Raises:
            NotPlain: an item that was not looked into before is not what it should be.
        """
        low, high = max(at, self.start), min(at + len(data), self.stop)
        if low >= high:
            return
        piece = data[low - at : high - at]
        if self._bytes is not None:
            self._bytes[low - self.start : high - self.start].copy_(piece)
            return
        if self._collected is None:
            self._collected = bytearray(self.item.length)
        memoryview(self._collected)[low - self.start : high - self.start] = piece.numpy().data
        self._missing -= high - low
        if self._missing == 0:
            self._finish(self._collected)
            self._collected = None

    def _finish(self, whole: bytearray) -> None:
        if self._region is None:
            self.value = self._unpickled(whole)
        else:
            assert self._part is not None
            assert self.item.box is not None
            self._region.copy_(tensor_of(whole)[boxes.inside(self._part, self.item.box)])

    def _unpickled(self, whole: bytearray) -> Any:
        try:
            return load_plain(whole)
        except Exception as error:  # torch raises nearly anything
            if self._trusted:
                return torch.load(io.BytesIO(whole), map_location="cpu", weights_only=False)
            why = str(error).strip().splitlines() or [repr(error)]
            refused = next((line for line in why if "GLOBAL" in line), why[0])
            raise NotPlain(f"{self.item.describe()} is no plain value: {refused}") from error


def landings(catalog: Catalog, key: str, place: torch.Tensor | None, *, trusted: bool) -> list[Landing]:
    """Everything that fills ``place`` (this rank's part of it, if it is sharded); None: a pickled value."""
    items = [(number, catalog.items[number]) for number in catalog.of(key)]
    if not isinstance(place, torch.Tensor):
        return [Landing(number, item, trusted=trusted) for number, item in items]
    found = []
    for box, local in _local(place):
        for number, item in items:
            part = boxes.overlap(box, item.box) if item.box is not None else None
            if part is not None:
                found.append(Landing(number, item, part, local[boxes.inside(part, box)]))
    return found


def _local(place: torch.Tensor) -> list[tuple[Box, torch.Tensor]]:
    """The boxes of a tensor that this rank holds, as DCP counts them, and its memory for each."""
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.tensor import DTensor

    from resumable_training.checkpoint.shards import held_in_one_piece

    place = place.detach()
    if not isinstance(place, DTensor):
        return [(boxes.box([0] * place.dim(), place.shape), place)]
    held = held_in_one_piece(place)
    if held is not None:
        return [(held, place.to_local())]
    found = []
    sharded: Any = place  # these two are not annotated
    for chunk in sharded.__create_chunk_list__():
        shard = sharded.__get_tensor_shard__(MetadataIndex("", chunk.offsets))
        found.append((boxes.box(chunk.offsets, chunk.sizes), shard))
    return found
