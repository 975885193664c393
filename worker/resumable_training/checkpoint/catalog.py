"""What a checkpoint's marker says, item by item, in the order in which the bytes lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from resumable_training.checkpoint.boxes import Box, box
from resumable_training.contract.manifest import MARKER_FILE, Manifest
from resumable_training.contract.marker import DamagedMarker


@dataclass(frozen=True)
class Item:
    """One stored piece: a box of a tensor, or a pickled value (``box`` and ``dtype`` None)."""

    key: str
    box: Box | None
    dtype: torch.dtype | None
    file: str
    offset: int  # in the file
    length: int

    @property
    def values_bytes(self) -> int:
        """Of the tensor's values alone."""
        return self.box.elements * self.dtype.itemsize if self.box is not None and self.dtype else 0

    @property
    def around_bytes(self) -> int:
        """What the archive has before and after the values, together."""
        return self.length - self.values_bytes

    def describe(self) -> str:
        return f"{self.key} (in {self.file} from {self.offset} on)"


class Catalog:
    """All items of a checkpoint. ``items`` is the same on all ranks: places in it are names for items."""

    def __init__(self, metadata: Metadata) -> None:
        """Raises DamagedMarker when it contradicts itself, or needs a decoder that we do not have."""
        try:
            found = [item for key in metadata.state_dict_metadata for item in _items(metadata, key)]
        except DamagedMarker:
            raise
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise DamagedMarker(f"it lacks what a marker must say: {error!r}") from error
        found.sort(key=lambda item: (item.file, item.offset))
        self.items = found
        self._by_key: dict[str, list[int]] = {}
        for number, item in enumerate(found):
            self._by_key.setdefault(item.key, []).append(number)

    def of(self, key: str) -> list[int]:
        """Places in ``items`` of one key's pieces."""
        return self._by_key.get(key, [])

    def needed_bytes(self) -> dict[str, int]:
        """File -> bytes that it must have at least."""
        needed: dict[str, int] = {}
        for item in self.items:
            needed[item.file] = max(needed.get(item.file, 0), item.offset + item.length)
        return needed

    def unvouched(self, manifest: Manifest) -> str:
        """The first file that the marker needs and the manifest does not vouch for, as a sentence; or ""."""
        for file, needed in sorted(self.needed_bytes().items()):
            entry = manifest.files.get(file)
            if entry is None or entry.bytes < needed:
                has = "no such file" if entry is None else f"only {entry.bytes} bytes of it"
                return f"{MARKER_FILE} needs {needed} bytes of {file}, and the manifest has {has}"
        return ""


def _items(metadata: Metadata, key: str) -> Iterator[Item]:
    described = metadata.state_dict_metadata[key]
    if not isinstance(described, TensorStorageMetadata):
        yield _item(metadata, MetadataIndex(key), None, None)
        return
    for chunk in described.chunks:
        index = MetadataIndex(key, chunk.offsets)
        yield _item(metadata, index, box(chunk.offsets, chunk.sizes), described.properties.dtype)


def _item(metadata: Metadata, index: MetadataIndex, part: Box | None, dtype: torch.dtype | None) -> Item:
    info: Any = metadata.storage_data.get(index)
    if info is None:
        raise DamagedMarker(f"{index.fqn}: a piece of it was never stored")
    if info.transform_descriptors:
        how = ", ".join(info.transform_descriptors)
        raise DamagedMarker(f"{index.fqn} was written through the extension {how}: save it again without")
    item = Item(index.fqn, part, dtype, str(info.relative_path), int(info.offset), int(info.length))
    if item.offset < 0 or item.around_bytes < 0:
        raise DamagedMarker(f"{index.fqn}: {item.length} bytes are stored for {item.values_bytes} of values")
    return item
