"""From a checkpoint to files that other programs load: Hugging Face safetensors, or one ``torch.save`` file.

Each tensor is put together from its stored pieces, whose bytes are compared with the manifest on the way.
At most one output file's tensors are in memory. Needs torch and safetensors, and imports them late.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint._traverse import set_element

from resumable_training.checkpoint import verify
from resumable_training.checkpoint.blocks import BlockDiffers, verified_stream
from resumable_training.checkpoint.catalog import Catalog
from resumable_training.checkpoint.errors import DamagedCheckpoint, NotPlain, StorageUnavailable
from resumable_training.checkpoint.export_plan import Exported, Kept, Shard
from resumable_training.checkpoint.marker import load_real
from resumable_training.checkpoint.plain import load_plain
from resumable_training.checkpoint.store import Store
from resumable_training.contract.manifest import MARKER_FILE
from resumable_training.contract.marker import DamagedMarker, Marker, parse_marker

INDEX_FILE = "model.safetensors.index.json"
_TWIN_BYTES = 1 << 20  # smaller tensors are often alike by chance: zeros, ones

Advance = Callable[[int], None]


class Tensors:
    """Reads the tensors of one checkpoint, one at a time."""

    def __init__(self, store: Store, name: str, *, foreign: bool) -> None:
        """Raises DamagedCheckpoint, or StorageUnavailable when that can't be told."""
        looked = verify.inspect(store, name, foreign=foreign)
        if looked.verdict.outcome == verify.CANNOT_TELL:
            raise StorageUnavailable(f"{name}: {looked.verdict.reason}")
        if looked.verdict.outcome == verify.DAMAGED:
            raise DamagedCheckpoint(name, looked.verdict.reason)
        self._store, self._name, self._manifest = store, name, looked.manifest
        self.marker, metadata = _understood(name, looked)
        described, paths = metadata.state_dict_metadata, metadata.planner_data or {}
        self.paths = {key: tuple(paths.get(key, tuple(key.split(".")))) for key in self.marker.shapes}
        self._dtypes: dict[str, torch.dtype] = {
            key: described[key].properties.dtype
            for key, shape in self.marker.shapes.items()
            if shape is not None
        }

    def read(self, key: str) -> torch.Tensor:
        """One tensor, on the CPU."""
        shape = self.marker.shapes[key]
        assert shape is not None
        try:
            whole = torch.empty(shape, dtype=self._dtypes[key])
        except RuntimeError as error:  # what torch makes of too little memory
            raise StorageUnavailable(f"{self._name}: no memory for {key} of shape {list(shape)}") from error
        if whole.is_quantized:
            raise NotPlain(f"{key} of {self._name} is {whole.dtype}: it can't be put together from pieces")
        for offsets, sizes in self.marker.chunks[key]:
            if not math.prod(sizes):
                continue
            place = whole
            for axis, (start, length) in enumerate(zip(offsets, sizes, strict=True)):
                place = place.narrow(axis, start, length)
            piece = self._load(key, offsets)
            if piece.shape != place.shape:
                raise DamagedCheckpoint(self._name, f"a piece of {key} has shape {tuple(piece.shape)}")
            place.copy_(piece)
        return whole

    def value(self, key: str) -> Any:
        """One value that is no tensor. Only plain ones: nothing that a pickle says is run."""
        return self._load(key, None)

    def _load(self, key: str, offsets: tuple[int, ...] | None) -> Any:
        item = self.marker.items[key, offsets]
        data = self._bytes(item.file, item.offset, item.length)
        try:
            return load_plain(data)
        except pickle.UnpicklingError as error:
            if offsets is not None and self._manifest is None:  # nobody vouches for these bytes
                raise DamagedCheckpoint(self._name, f"{item.file}: {key} is no tensor") from error
            raise NotPlain(f"{key} of {self._name} can't be read without running what is in it") from error
        except (RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:  # of rubbish
            raise DamagedCheckpoint(self._name, f"{item.file}: {key} can't be read: {error}") from error

    def _bytes(self, file: str, offset: int, length: int) -> bytes:
        path = f"{self._name}/{file}"
        if self._manifest is None:
            return self._store.read(path, offset, length)
        entry = self._manifest.files[file]
        stream = verified_stream(self._store, path, entry, self._manifest.block_bytes)
        stream.seek(offset)
        try:
            return stream.read(length) or b""
        except BlockDiffers as error:
            raise DamagedCheckpoint(
                self._name, f"{file}: {verify.not_written(error.length, error.at)}"
            ) from error


def _understood(name: str, looked: verify.Inspection) -> tuple[Marker, Any]:
    """The marker, plain and as DCP's own object.

    Raises:
        DamagedCheckpoint: it contradicts itself, or the manifest.
    """
    try:
        marker, metadata = parse_marker(looked.marker), load_real(looked.marker)
        catalog = Catalog(metadata)
    except DamagedMarker as error:
        raise DamagedCheckpoint(name, f"{MARKER_FILE}: {error}") from error
    problem = verify.structure_problem(marker)
    told = problem.reason if problem else catalog.unvouched(looked.manifest) if looked.manifest else ""
    if told:
        raise DamagedCheckpoint(name, told)
    return marker, metadata


class _Twins:
    """Notices large tensors with the same bytes."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], str] = {}
        self.pairs: list[tuple[str, str]] = []

    def look(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if size < _TWIN_BYTES:
            return
        data = tensor.contiguous().view(torch.uint8).numpy()
        print_ = (tuple(tensor.shape), tensor.dtype, xxhash.xxh3_128_digest(data.data))
        first = self._seen.setdefault(print_, name)
        if first != name:
            self.pairs.append((first, name))


def write_safetensors(
    tensors: Tensors, shards: tuple[Shard, ...], directory: Path, dtype: str | None, advance: Advance
) -> Exported:
    """Files as ``transformers`` writes them, with an index when there are several."""
    twins, total = _Twins(), 0
    weight_map: dict[str, str] = {}
    for shard in shards:
        total += _write_shard(tensors, shard, directory, dtype, twins, advance)
        weight_map.update((one.name, shard.file) for one in shard.kept)
    files = [shard.file for shard in shards]
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (directory / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
        files.append(INDEX_FILE)
    return _exported(directory, files, len(weight_map), twins)


def _write_shard(
    tensors: Tensors, shard: Shard, directory: Path, dtype: str | None, twins: _Twins, advance: Advance
) -> int:
    """Bytes of its tensors. None of them is alive when it returns."""
    content = dict(_content(tensors, shard.kept, dtype, twins, advance))
    _save_shard(content, directory / shard.file)
    return sum(tensor.numel() * tensor.element_size() for tensor in content.values())


def _save_shard(content: dict[str, torch.Tensor], file: Path) -> None:
    try:
        save_file(content, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{file.name}: {error}") from error
    file.chmod(file.parent.stat().st_mode & 0o666)  # safetensors makes it for its owner alone


def _content(
    tensors: Tensors, kept: tuple[Kept, ...], dtype: str | None, twins: _Twins, advance: Advance
) -> Iterator[tuple[str, torch.Tensor]]:
    for one in kept:
        tensor = tensors.read(one.key)
        advance(tensor.numel() * tensor.element_size())
        tensor = cast(tensor, dtype)
        twins.look(one.name, tensor)
        yield one.name, tensor


def cast(tensor: torch.Tensor, dtype: str | None) -> torch.Tensor:
    """Floating-point tensors in another type; all others, and all for None, as they are."""
    if dtype is None or not tensor.is_floating_point():
        return tensor
    wanted: torch.dtype = getattr(torch, dtype)
    return tensor.to(wanted)


def write_torch(
    tensors: Tensors,
    kept: tuple[Kept, ...],
    others: tuple[str, ...],
    file: Path,
    dtype: str | None,
    advance: Advance,
) -> Exported:
    """One file for ``torch.load(..., weights_only=True)``; all of it is in memory once.

    Args:
        others: keys of whole groups (optimizers), tensors or not, nested as they were saved. With them the
            weights are nested, too.
    """
    twins = _Twins()
    state: dict[str, Any] = dict(_content(tensors, kept, dtype, twins, advance))
    if others:
        state = {"model": state, **_nested(tensors, others, advance)}
    try:
        torch.save(state, file)
    except RuntimeError as error:  # what torch makes of a full disk
        raise OSError(f"{file.name}: {error}") from error
    return _exported(file.parent, [file.name], len(kept), twins)


def _exported(directory: Path, files: list[str], tensors: int, twins: _Twins) -> Exported:
    size = sum((directory / file).stat().st_size for file in files)
    return Exported(tuple(files), tensors, size, tuple(twins.pairs))


def _nested(tensors: Tensors, keys: tuple[str, ...], advance: Advance) -> dict[str, Any]:
    """Dicts and lists, as they were when they were saved."""
    root: dict[str, Any] = {}
    for key in keys:
        is_tensor = tensors.marker.shapes[key] is not None
        value = tensors.read(key) if is_tensor else tensors.value(key)
        if is_tensor:
            advance(value.numel() * value.element_size())
        set_element(root, tensors.paths[key], value)
    return root
