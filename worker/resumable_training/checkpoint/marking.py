"""PURE: DCP's ``.metadata`` written without torch; ``contract.marker`` reads it.

Each rank says what it has written (``Written``); the marker is all of that together, as DCP's own classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resumable_training.checkpoint import opcodes
from resumable_training.checkpoint.opcodes import Memo

VERSION = "1.0.0"  # of DCP's format
_MOST_NAMED = 4
_METADATA = "torch.distributed.checkpoint.metadata"
_OF_TENSOR = ("properties", "size", "chunks")
_FILES = "torch.distributed.checkpoint.filesystem"
Path = tuple[str | int, ...]  # of a value in the nested state dict


@dataclass(frozen=True)
class Piece:
    """A stored box of a tensor, and where its archive lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    at: int
    length: int


@dataclass(frozen=True)
class Tensor:
    """What is known of a tensor, and the pieces that one rank has stored, or all."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Blob:
    """A pickled value, and where it lies."""

    path: Path
    file: str
    at: int
    length: int


@dataclass
class Written:
    """Everything that one rank, or all ranks together, have stored, by key."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)


class Unlike(ValueError):
    """What ranks have stored does not make a whole: they do not hold what each took the others to hold."""


def join(parts: Iterable[Written]) -> Written:
    """Of all ranks, together. A piece that several have stored alike counts once.

    That is so with a tensor on a part of the job's mesh: each of the other part's groups has all of it.

    Raises:
        Unlike: two of them do not mean the same tensor, or a part of one is missing.
    """
    all_ = Written()
    for part in parts:
        all_.blobs.update(part.blobs)
        for key, tensor in part.tensors.items():
            known = all_.tensors.get(key, tensor)
            if (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                raise Unlike(
                    f"{key} is {known.dtype} {list(known.shape)} on one rank and {tensor.dtype}"
                    f" {list(tensor.shape)} on another"
                )
            pieces = tensor.pieces if known is tensor else known.pieces + tensor.pieces
            all_.tensors[key] = Tensor(known.dtype, known.shape, known.path, pieces)
    for key, tensor in all_.tensors.items():
        all_.tensors[key] = replace(tensor, pieces=_distinct(tensor.pieces))
        _require_whole(key, all_.tensors[key])
    return all_


def _distinct(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], Piece] = {}
    for piece in pieces:
        first.setdefault((piece.offsets, piece.sizes), piece)
    return tuple(first.values())


def _require_whole(key: str, tensor: Tensor) -> None:
    stored, whole = sum(math.prod(piece.sizes) for piece in tensor.pieces), math.prod(tensor.shape)
    if stored != whole:
        files = sorted({piece.file for piece in tensor.pieces})
        ranks = ", ".join(file.strip("_").partition("_")[0] for file in files[:_MOST_NAMED])
        more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
        raise Unlike(f"{key}: {stored} of its {whole} elements were stored, by rank {ranks}{more}")


def to_plain(written: Written) -> list[list[Any]]:
    """Lists and numbers, for JSON."""
    tensors = [
        [
            key,
            one.dtype,
            one.shape,
            one.path,
            [[p.offsets, p.sizes, p.file, p.at, p.length] for p in one.pieces],
        ]
        for key, one in written.tensors.items()
    ]
    return [tensors, [[key, one.path, one.file, one.at, one.length] for key, one in written.blobs.items()]]


def from_plain(plain: Sequence[Sequence[Any]]) -> Written:
    """Reverse of ``to_plain``."""
    tensors, blobs = plain
    return Written(
        {
            key: Tensor(
                dtype,
                tuple(shape),
                tuple(path),
                tuple(
                    Piece(tuple(offsets), tuple(sizes), file, at, size)
                    for offsets, sizes, file, at, size in pieces
                ),
            )
            for key, dtype, shape, path, pieces in tensors
        },
        {key: Blob(tuple(path), file, at, size) for key, path, file, at, size in blobs},
    )


def marker(written: Written) -> bytes:
    """The content of ``.metadata``: DCP's ``Metadata``, attribute by attribute, in the order of a pickle."""
    memo = Memo()
    parts = [opcodes.PROTOCOL, _name(memo, "Metadata"), b")\x81}("]
    parts += [opcodes.text("state_dict_metadata"), opcodes.mapping(_described(memo, written))]
    parts += [opcodes.text("planner_data"), opcodes.mapping(_paths(memo, written))]
    parts += [opcodes.text("storage_data"), opcodes.mapping(_places(memo, written))]
    parts += [opcodes.text("storage_meta"), opcodes.NONE]
    parts += [opcodes.text("version"), opcodes.text(VERSION), b"ub", opcodes.STOP]
    return b"".join(parts)


def _described(memo: Memo, written: Written) -> Iterator[tuple[bytes, bytes]]:
    for key, tensor in written.tensors.items():
        yield memo(opcodes.text(key)), _tensor(memo, tensor)
    for key in written.blobs:
        yield memo(opcodes.text(key)), _name(memo, "BytesStorageMetadata") + b")\x81"


def _tensor(memo: Memo, tensor: Tensor) -> bytes:
    kind = _name(memo, "TensorStorageMetadata")
    attributes = ((memo(opcodes.text(name)), _attribute(memo, tensor, name)) for name in _OF_TENSOR)
    return opcodes.instance(kind, opcodes.mapping(attributes))


def _attribute(memo: Memo, tensor: Tensor, name: str) -> bytes:
    if name == "size":
        return _size(memo, tensor.shape)
    if name == "chunks":
        return opcodes.listing(_chunk(memo, piece) for piece in tensor.pieces)
    kind = _name(memo, "TensorProperties")
    state = [memo(opcodes.name("torch", tensor.dtype)), _layout(memo), opcodes.FALSE]
    state += [opcodes.call(_name(memo, "_MEM_FORMAT_ENCODING"), [opcodes.integer(0)]), opcodes.FALSE]
    return opcodes.instance(kind, opcodes.sequence(state))


def _layout(memo: Memo) -> bytes:
    return opcodes.call(
        memo(opcodes.name("torch.serialization", "_get_layout")), [opcodes.text("torch.strided")]
    )


def _chunk(memo: Memo, piece: Piece) -> bytes:
    kind = _name(memo, "ChunkStorageMetadata")
    offsets = (memo(opcodes.text("offsets")), _size(memo, piece.offsets))
    return opcodes.instance(
        kind, opcodes.mapping([offsets, (memo(opcodes.text("sizes")), _size(memo, piece.sizes))])
    )


def _paths(memo: Memo, written: Written) -> Iterator[tuple[bytes, bytes]]:
    both: dict[str, Tensor | Blob] = {**written.tensors, **written.blobs}
    for key, value in both.items():
        path = (opcodes.text(part) if isinstance(part, str) else opcodes.integer(part) for part in value.path)
        yield memo(opcodes.text(key)), opcodes.sequence(path)


def _places(memo: Memo, written: Written) -> Iterator[tuple[bytes, bytes]]:
    for key, tensor in written.tensors.items():
        for number, piece in enumerate(tensor.pieces):
            yield _index(memo, key, piece.offsets, number), _info(memo, piece)
    for key, blob in written.blobs.items():
        yield _index(memo, key, None, None), _info(memo, blob)


def _index(memo: Memo, key: str, offsets: Sequence[int] | None, number: int | None) -> bytes:
    kind = _name(memo, "MetadataIndex")
    state = [(memo(opcodes.text("fqn")), memo(opcodes.text(key)))]
    hint = opcodes.NONE if number is None else opcodes.integer(number)
    state.append((memo(opcodes.text("index")), hint))
    if offsets is not None:
        state.append((memo(opcodes.text("offset")), _size(memo, offsets)))
    return opcodes.instance(kind, opcodes.mapping(state))


def _info(memo: Memo, stored: Piece | Blob) -> bytes:
    kind = memo(opcodes.name(_FILES, "_StorageInfo"))
    file = (memo(opcodes.text("relative_path")), memo(opcodes.text(stored.file)))
    at = (memo(opcodes.text("offset")), opcodes.integer(stored.at))
    length = (memo(opcodes.text("length")), opcodes.integer(stored.length))
    return opcodes.instance(kind, opcodes.mapping([file, at, length]))


def _size(memo: Memo, numbers: Sequence[int]) -> bytes:
    return opcodes.call(memo(opcodes.name("torch", "Size")), [opcodes.integers(numbers)])


def _name(memo: Memo, name: str) -> bytes:
    return memo(opcodes.name(_METADATA, name))
