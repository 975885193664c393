"""What one checkpoint holds: keys, shapes, types, sizes, files. Reads marker and manifest; needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.errors import DamagedCheckpoint, StorageUnavailable
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import MANIFEST_FILE, MARKER_FILE
from resumable_training.contract.marker import DamagedMarker, Marker, parse_marker

_BITS = re.compile(r"\d+")
OURS = "resumable/"
_PER_RANK = re.compile(r"rank-\d{5,}/")


@dataclass(frozen=True)
class Value:
    """One key. ``bytes``: of the values themselves; of one that is no tensor, as stored."""

    key: str
    shape: tuple[int, ...] | None  # None: no tensor
    dtype: str  # empty: no tensor
    bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """One file. ``hash`` is empty where no manifest vouches for it."""

    name: str
    bytes: int
    hash: str = ""


@dataclass(frozen=True)
class Group:
    """All keys with the same first part: a module, an optimizer, what the library keeps for itself."""

    name: str
    kind: str  # "module", "optimizer", "resumable", "other"
    values: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Content:
    """A checkpoint, described."""

    name: str
    values: tuple[Value, ...]
    groups: tuple[Group, ...]
    files: tuple[File, ...]
    bytes: int  # of all files
    step: int | None = None  # these are None for another program's
    samples: int | None = None
    attempt: int | None = None
    world_size: int | None = None
    created: float | None = None
    torch_version: str | None = None


def read_content(store: Store, name: str, *, foreign: bool) -> Content:
    """Look into a checkpoint.

    Raises:
        DamagedCheckpoint: says how.
        StorageUnavailable: cannot tell.
    """
    looked = verify.inspect(store, name, foreign=foreign)
    if looked.verdict.outcome == verify.CANNOT_TELL:
        raise StorageUnavailable(f"{name}: {looked.verdict.reason}")
    if looked.verdict.outcome == verify.DAMAGED:
        raise DamagedCheckpoint(name, looked.verdict.reason)
    try:
        marker = parse_marker(looked.marker)
    except DamagedMarker as error:
        raise DamagedCheckpoint(name, f"{MARKER_FILE}: {error}") from error
    manifest = looked.manifest
    values = tuple(sorted(_values(marker), key=lambda value: value.key))
    if manifest is None:
        sizes = {entry.name: entry.bytes for entry in store.entries(name) if not entry.is_directory}
        files = tuple(File(file, size) for file, size in sorted(sizes.items()))
        return Content(name, values, _groups(values), files, sum(file.bytes for file in files))
    listed = [File(file, entry.bytes, entry.hash) for file, entry in sorted(manifest.files.items())]
    own = store.size(f"{name}/{MANIFEST_FILE}") or 0
    files = (*listed, File(MANIFEST_FILE, own))
    return Content(
        name,
        values,
        _groups(values),
        files,
        sum(file.bytes for file in files),
        step=manifest.step,
        samples=manifest.samples,
        attempt=manifest.attempt,
        world_size=manifest.world_size,
        created=manifest.created or None,
        torch_version=manifest.torch_version or None,
    )


def _values(marker: Marker) -> Iterable[Value]:
    stored: dict[str, int] = {}
    files: dict[str, set[str]] = {}
    for (key, _), item in marker.items.items():
        stored[key] = stored.get(key, 0) + item.length
        files.setdefault(key, set()).add(item.file)
    for key, shape in marker.shapes.items():
        dtype = marker.dtypes.get(key, "")
        each = item_bytes(dtype)
        size = math.prod(shape) * each if shape is not None and each else stored.get(key, 0)
        yield Value(key, shape, dtype, size, tuple(sorted(files.get(key, ()))))


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a torch type, by its name; 0: not known. ``float8_e4m3fn`` has 1."""
    if dtype == "bool":
        return 1
    bits = _BITS.search(dtype)
    return -(-int(bits[0]) // 8) if bits else 0


def _groups(values: Iterable[Value]) -> tuple[Group, ...]:
    values = list(values)
    optimizers = optimizer_names(value.key for value in values)
    by_name: dict[str, list[Value]] = {}
    for value in values:
        by_name.setdefault(group_name(value.key), []).append(value)
    return tuple(_group(name, by_name[name], name in optimizers) for name in sorted(by_name))


def _group(name: str, values: list[Value], is_optimizer: bool) -> Group:
    if name in ("resumable", "rank-*"):
        kind = "resumable"
    elif is_optimizer:
        kind = "optimizer"
    else:
        kind = "module" if any(value.shape is not None for value in values) else "other"
    elements = sum(math.prod(value.shape) for value in values if value.shape is not None)
    return Group(name, kind, len(values), elements, sum(value.bytes for value in values))


def group_name(key: str) -> str:
    """First part of a key; per-rank values of all ranks are one group."""
    if key.startswith(OURS):
        return "resumable"
    return "rank-*" if _PER_RANK.match(key) else key.partition(".")[0]


def optimizer_names(keys: Iterable[str]) -> set[str]:
    """First parts under which there are an optimizer's parameter groups."""
    parts = (key.split(".") for key in keys)
    return {part[0] for part in parts if len(part) > 1 and part[1] == "param_groups"}
