"""What a checkpoint holds, under the keys that this library gives it, whoever has written it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.blocks import Blocks, in_parallel
from resumable_training.checkpoint.catalog import Catalog
from resumable_training.checkpoint.errors import CheckpointError, NoResumePoint
from resumable_training.checkpoint.foreign import Layout, Saved, recognise
from resumable_training.checkpoint.inventory import Inventory
from resumable_training.checkpoint.landing import landings
from resumable_training.checkpoint.marker import load_real
from resumable_training.checkpoint.memory import Memory
from resumable_training.checkpoint.mismatch import Shape
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.read import NotWhole, Origins, Peek, Reader
from resumable_training.checkpoint.state import (
    SHARED_KEY,
    STATEFUL_PREFIX,
    shape_of,
)
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import DAMAGED, OK, Inspection
from resumable_training.contract import env
from resumable_training.contract.manifest import BLOCK_BYTES, MARKER_FILE
from resumable_training.contract.marker import DamagedMarker

_MOST_NAMED = 5


@dataclass(frozen=True)
class Source:
    """A checkpoint to load. ``foreign``: it may be another program's, without manifest and shared values."""

    store: Store
    name: str
    label: str
    foreign: bool = False


def inspect(source: Source) -> Inspection:
    """Marker, manifest and sizes. On a thread of its own, as its reads may hang.

    Raises:
        StorageUnavailable: they do.
    """
    ((_, seen),) = in_parallel(_inspect_now, [source], source.label)
    return seen


def require_whole(seen: Inspection, source: Source, ranks: Ranks) -> None:
    """What rank 0 has seen is right; where it is damage, all look.

    Raises:
        NotWhole: damaged, or nobody can tell.
    """
    if seen.verdict.outcome == DAMAGED:
        again = ranks.agree(lambda: inspect(source).verdict)
        if any(one.outcome != DAMAGED for one in again):
            raise NotWhole(verify.cannot_tell(f"not every look at it shows this: {seen.verdict.reason}"))
    if seen.verdict.outcome != OK:
        raise NotWhole(seen.verdict)


def _inspect_now(source: Source) -> Inspection:
    seen = verify.inspect(source.store, source.name, foreign=source.foreign)
    if seen.verdict.outcome != DAMAGED or seen.marker or not source.foreign:
        return seen
    inner = _checkpoints_in(source)
    if not inner:
        return seen
    return Inspection(
        verify.damaged(f"it is none, but a directory of checkpoints: name one, such as {', '.join(inner)}")
    )


def _checkpoints_in(source: Source) -> list[str]:
    """What other programs keep side by side (``step-1000``), newest first."""
    try:
        entries = [entry for entry in source.store.entries(source.name) if entry.is_directory]
        entries.sort(key=lambda entry: (len(entry.name), entry.name), reverse=True)
        return [
            f"{source.label}/{entry.name}"
            for entry in entries[:_MOST_NAMED]
            if source.store.size(f"{source.name}/{entry.name}/{MARKER_FILE}") is not None
        ]
    except CheckpointError:
        return []


def _understood(source: Source, seen: Inspection) -> tuple[Metadata, Catalog]:
    """What the marker says; the same on all ranks.

    Raises:
        NotWhole: it is damaged, or needs what the manifest does not vouch for.
        NoResumePoint: it is what was written, by a torch that this one does not understand.
    """
    try:
        metadata: Metadata = load_real(seen.marker)
        catalog = Catalog(metadata)
    except DamagedMarker as error:
        if seen.manifest is None:
            raise NotWhole(verify.damaged(f"{MARKER_FILE}: {error}")) from error
        raise NoResumePoint(
            f"{source.label}: torch {seen.manifest.torch_version} wrote its {MARKER_FILE}, and torch"
            f" {torch.__version__} can't read it: {error}"
        ) from error
    unvouched = catalog.unvouched(seen.manifest) if seen.manifest else ""
    if unvouched:
        raise NotWhole(verify.damaged(unvouched))
    return metadata, catalog


def _tied(live: Mapping[str, Any]) -> dict[str, str]:
    """Both ways: a key and another one of the same memory."""
    first: dict[tuple[int, Shape], str] = {}
    tied: dict[str, str] = {}
    for key, value in live.items():
        if not isinstance(value, torch.Tensor) or not value.numel():
            continue
        local = value.to_local() if isinstance(value, DTensor) else value
        other = first.setdefault((local.data_ptr(), shape_of(value)), key)
        if other != key:
            tied.update({key: other, other: key})
    return tied


class SavedState:
    """Keys, shapes and paths of one checkpoint, and reading it. All ranks make one, and read together."""

    def __init__(self, source: Source, seen: Inspection, ranks: Ranks, memory: Memory) -> None:
        """``memory``: what this rank's worker still has of it.

        Raises NotWhole or NoResumePoint for a marker that can't be followed.
        """
        metadata, catalog = _understood(source, seen)
        blocks = (
            verify.blocks_of(seen.manifest) if seen.manifest else Blocks(catalog.needed_bytes(), BLOCK_BYTES)
        )
        self._catalog = catalog
        self._reader = Reader(source.store, source.name, catalog, blocks, ranks, memory)
        self.label = source.label
        self.described: dict[str, Any] = dict(metadata.state_dict_metadata)
        paths = metadata.planner_data or {}
        self.paths = {key: tuple(paths.get(key, tuple(key.split(".")))) for key in self.described}
        self.stored = {key: key for key in self.described}  # our key -> key in the checkpoint
        self.foreign = source.foreign and SHARED_KEY not in self.described
        self.layout: Layout | None = None  # of another program's, once it is recognised
        self._trusted = self.foreign and os.environ.get(env.TRUST_PICKLES) == "1"

    def recognise(self, there: Inventory) -> None:
        """Give the keys of another program's checkpoint the names that they have in what is tracked."""
        saved = {key: Saved(self.paths[key], self.shape(key)) for key in self.described}
        modules: dict[str, dict[str, Shape]] = {name: {} for name in there.state.modules}
        for key, value in there.values.items():
            modules[there.paths[key][0]][key.partition(".")[2]] = shape_of(value)
        self.layout = recognise(saved, modules, there.groups)
        for twin, key in _tied(there.values).items():  # some programs save only one of two names
            if twin not in self.layout.stored and key in self.layout.stored:
                self.layout.add(there.paths[twin], self.layout.stored[key])
        self.stored, self.paths = self.layout.stored, self.layout.paths
        self.described = {key: self.described[stored] for key, stored in self.stored.items()}

    def peek(self, keys: Iterable[str]) -> Peek:
        """What is stored of some small values, read by this rank alone."""
        return self._reader.peek([number for key in keys for number in self._catalog.of(self.stored[key])])

    def told(self, peek: Peek) -> None:
        """All ranks: what rank 0 has read. Raises NotWhole when that was not right."""
        self._reader.told(peek)

    def values(self, keys: Iterable[str], peek: Peek) -> dict[str, Any]:
        """Values of what rank 0 has read. Raises NotPlain."""
        found: dict[str, Any] = {}
        for key in keys:
            place = self.place(key)
            pieces = landings(self._catalog, self.stored[key], place, trusted=self._trusted)
            for one in pieces:
                one.put(
                    one.item.offset, torch.frombuffer(bytearray(peek.items[one.number]), dtype=torch.uint8)
                )
            found[key] = place if place is not None else pieces[0].value
        return found

    def read(
        self, prepare: Callable[[], Mapping[str, Any]], finish: Callable[[dict[str, Any]], None]
    ) -> list[Origins]:
        """Fill the tensors of a template; see ``Reader.read``."""
        keys: list[str] = []

        def prepared() -> dict[str, Any]:
            template = prepare()
            keys.extend(template)
            return {self.stored[key]: place for key, place in template.items()}

        def finished(values: dict[str, Any]) -> None:
            finish({key: values[self.stored[key]] for key in keys})

        return self._reader.read(prepared, finished, trusted=self._trusted)

    def shape(self, key: str) -> Shape:
        """None for what is no tensor, or a text in one."""
        saved = self.described[key]
        is_text = key.startswith(STATEFUL_PREFIX)
        return tuple(saved.size) if isinstance(saved, TensorStorageMetadata) and not is_text else None

    def places(self, keys: Iterable[str]) -> dict[str, torch.Tensor | None]:
        """Places for saved values: a tensor on the CPU, or None for what is no tensor."""
        return {key: self.place(key) for key in keys}

    def place(self, key: str) -> torch.Tensor | None:
        saved = self.described[key]
        if isinstance(saved, TensorStorageMetadata):
            return torch.empty(saved.size, dtype=saved.properties.dtype)
        return None

    # Parts ------------------------------------------------------------------------------------------------

    def has_optimizer(self, name: str) -> bool:
        """Another program's checkpoint may have weights alone; in ours a missing one is a mismatch."""
        return self.layout is None or name in self.layout.places

    def of_optimizer(self, name: str, part: str) -> list[str]:
        """Keys of its "state" or of its "param_groups"."""
        return [key for key, path in self.paths.items() if path[:2] == (name, part) and len(path) > 2]

    def groups(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Parameter groups of an optimizer as saved; None when it was not. ``values``: as read."""
        nested: dict[str, Any] = {}
        for key in self.of_optimizer(name, "param_groups"):
            set_element(nested, self.paths[key][1:], values[key])
        groups: list[dict[str, Any]] | None = nested.get("param_groups")
        return groups if self.layout is None else self.layout.named(name, groups)

    def extras(self, name: str) -> list[str]:
        """Another program's values for a tracked object: pickles, so only at the user's word."""
        if not self._trusted:
            return []
        return [key for key, path in self.paths.items() if path[0] == name]
