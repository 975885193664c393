"""Where a tensor's bytes begin in what ``torch.save`` wrote of it. Nothing in it is executed.

A stored item is a zip archive without compression: ``NAME/data.pkl`` (dtype, shape and strides), a few tiny
entries, ``NAME/data/0`` (the bytes of the storage), a few more, and a directory at the end. The sizes stand
only behind each entry and in that directory, so the local headers are looked for from the front: the item's
end may lie in another block, which another rank reads.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_LOCAL = b"PK\x03\x04"
_LOCAL_BYTES = 30  # before the name
_NO_COMPRESSION = 0
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,  # its elements are bytes, and the dtype stands elsewhere
}
_ORDER = ("byteorder", sys.byteorder.encode())


class NotPlain(ValueError):
    """Not the archive of one ordinary tensor; the text says why."""


@dataclass(frozen=True)
class Head:
    """``at``: the storage's first byte, from the item's begin; ``start`` and ``strides`` in elements."""

    at: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    elements: int  # of the storage

    @property
    def in_rows(self) -> bool:
        """Whether the tensor's elements lie one after another, row by row, from ``at`` on."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return self.start == 0

    def require_room(self, length: int) -> None:
        """Raises NotPlain unless all of the tensor lies in an item of so many bytes."""
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        fits = 0 <= self.start <= self.start + reach < self.elements and min(self.strides, default=0) >= 0
        if 0 not in self.shape and (not fits or self.at + self.elements * self.dtype.itemsize > length):
            raise NotPlain("it is shorter than it says")


def parse_head(data: bytes | bytearray | memoryview) -> Head:
    """Parse the begin of an item, at least up to its storage's first byte.

    Raises:
        NotPlain: it is something else, or cut off.
    """
    data = bytes(data)
    name, at = _entry(data, 0)
    prefix, _, last = name.rpartition("/")
    if last != "data.pkl":
        raise NotPlain(f"it begins with {name!r}")
    dtype, key, elements, start, shape, strides = _described(data[at:])
    while name != f"{prefix}/data/{key}":
        begin = data.find(_LOCAL, at)
        if begin < 0:
            raise NotPlain("its bytes are not where they should be")
        name, at = _entry(data, begin)
        if name == f"{prefix}/{_ORDER[0]}" and not data.startswith(_ORDER[1], at):
            raise NotPlain("it was written on a machine with the other byte order")
    return Head(at, dtype, shape, strides, start, elements)


def _entry(data: bytes, begin: int) -> tuple[str, int]:
    """Name of the zip entry whose local header is there, and where its content begins."""
    header = data[begin : begin + _LOCAL_BYTES]
    if len(header) < _LOCAL_BYTES or header[:4] != _LOCAL:
        raise NotPlain("it is no archive of torch.save, or cut off")
    method, name_bytes, extra_bytes = struct.unpack("<8xH16xHH", header)
    at = begin + _LOCAL_BYTES + name_bytes
    if method != _NO_COMPRESSION:
        raise NotPlain("it is compressed")
    return data[begin + _LOCAL_BYTES : at].decode("utf-8", "replace"), at + extra_bytes


class _Rebuild:
    """Stands for torch's functions that make a tensor of a storage: keeps what they are given."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


class _Rebuild3(_Rebuild):
    """The same for types that have no storage class of their own; the seventh argument is the dtype."""


_REBUILD = {"_rebuild_tensor_v2": _Rebuild, "_rebuild_tensor_v3": _Rebuild3}


class _Unpickler(pickle.Unpickler):
    """Lets through what the description of a tensor needs, and calls none of torch."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILD:
            return _REBUILD[name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        found = getattr(torch, name, None) if module == "torch" else None
        if isinstance(found, torch.dtype):
            return found
        raise NotPlain(f"it is made by {module}.{name}")

    def persistent_load(self, key: Any) -> Any:
        return key


def _described(data: bytes) -> tuple[torch.dtype, str, int, int, tuple[int, ...], tuple[int, ...]]:
    """dtype, name and elements of the storage, first element, shape, strides."""
    try:
        found = _Unpickler(io.BytesIO(data)).load()
        storage, start, shape, strides = found.arguments[:4]
        _, kind, key, _, count = storage
        more = found.arguments[6:]
        dtype, *more = more if isinstance(found, _Rebuild3) else (kind, *more)
        if any(more):
            raise NotPlain("it is conjugated or negated")
        elements = count * kind.itemsize // dtype.itemsize
        return dtype, str(key), int(elements), int(start), _numbers(shape), _numbers(strides)
    except NotPlain:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise NotPlain(f"its description can't be parsed: {type(error).__name__}: {error}") from error


def _numbers(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def tensor_of(item: bytearray) -> torch.Tensor:
    """The tensor of a whole item, on the item's own memory.

    Raises:
        NotPlain: as ``parse_head``, or it is shorter than it says.
    """
    head = parse_head(item)
    head.require_room(len(item))
    if 0 in head.shape:
        return torch.empty(head.shape, dtype=head.dtype)
    storage = torch.frombuffer(item, dtype=head.dtype, count=head.elements, offset=head.at)
    return storage.as_strided(head.shape, head.strides, head.start)
