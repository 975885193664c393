"""What a resume can bring back exactly: every value is held against this before it is stored.

DCP pickles what is no tensor, and takes mappings and lists apart: keys become text, and what is empty leaves
no trace. A resume unpickles plain values only, and puts tensors into those that are there. So a value is
stored as the plain one that equals it, or refused, with its key and what to do. Nothing else is written.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from resumable_training.checkpoint.errors import NotPlain, Unstorable
from resumable_training.checkpoint.frames import DTYPES
from resumable_training.checkpoint.heads import tensor_of
from resumable_training.checkpoint.values import MOST_NESTED, NUMPY_KINDS, simple, too_deep

PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})  # hold what they look like
_PLAIN = (bool, float, str)
_MOST_BITS = 2000  # of an integer: torch reads no longer ones without running pickles


def plain_of(value: Any, where: str) -> Any:
    """``value`` if it comes back as it is, or the plain value that equals it. Tensors in it stay themselves.

    Numbers and texts of other classes (NumPy's scalars, members of an IntEnum) are stored as ``float(x)``,
    ``int(x)``, ``str(x)``.

    Raises:
        NotPlain: it would come back as something else, or not at all.
        Unstorable: a tensor of that kind.
    """
    return _plain(value, where, MOST_NESTED)


def _plain(value: Any, where: str, left: int) -> Any:
    """Of what DCP takes apart. ``left``: levels that may still be below."""
    if isinstance(value, torch.Tensor):
        require_tensor(value, where)
        return value
    if not left:
        raise too_deep(where)
    if isinstance(value, Mapping):
        if not value:
            raise NotPlain(
                f"{where} is empty, and leaves no trace in a checkpoint: leave it out, or use None"
            )
        return {_key(key, where): _plain(one, f"{where}.{key}", left - 1) for key, one in value.items()}
    if type(value) is list:
        return [_plain(one, f"{where}[{at}]", left - 1) for at, one in enumerate(value)]
    return _whole(value, where, left)


def _key(key: Any, where: str) -> str:
    plain = simple(key)
    if type(plain) is not str:
        raise NotPlain(f"{where} has the key {key!r}, which would come back as text: use str({key!r})")
    return plain


def _whole(value: Any, where: str, left: int) -> Any:
    """Of what is pickled in one piece."""
    if not left:
        raise too_deep(where)
    plain = simple(value)
    if type(plain) in _PLAIN or plain is None:
        return plain
    if type(plain) is int:
        if plain.bit_length() > _MOST_BITS:
            raise NotPlain(f"{where} is an integer of {plain.bit_length()} bits: store it as text")
        return plain
    if isinstance(plain, torch.Tensor):
        require_tensor(plain, where)
        if isinstance(plain, DTensor):
            raise Unstorable(f"{where} is a DTensor in a tuple: keep it in a list, or by itself")
        return plain
    kind = type(plain)
    if kind is list or kind is tuple:
        return kind(_whole(one, f"{where}[{at}]", left - 1) for at, one in enumerate(plain))
    if kind is dict:
        return {
            _whole(key, f"{where}: the key {key!r}", left - 1): _whole(one, f"{where}[{key!r}]", left - 1)
            for key, one in plain.items()
        }
    _require_readable(plain, where)
    return plain


def _require_readable(value: Any, where: str) -> None:
    kind = type(value)
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        back = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        if type(back) is not kind:
            raise TypeError(f"it comes back as a {type(back).__qualname__}")
    except Exception as error:  # pickle may raise anything, the user's own __reduce__ too
        raise NotPlain(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a resume can't read it without pickle:"
            " store numbers, texts, lists, dicts or tensors that it can be made of again"
        ) from error


# Tensors --------------------------------------------------------------------------------------------------


def require_tensor(tensor: torch.Tensor, where: str) -> None:
    """Raises Unstorable, unless a resume brings back a tensor of this kind."""
    problem = _problem_of(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)
    if problem:
        raise Unstorable(f"{where} {problem}")


def require_place(tensor: torch.Tensor, where: str) -> None:
    """Raises Unstorable, unless a resume can put values into this one, of a kind that can be saved."""
    part = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    if any(stride == 0 and size > 1 for stride, size in zip(part.stride(), part.shape, strict=True)):
        raise Unstorable(
            f"{where} is expanded: several of its elements are one in memory, so that nothing can be loaded"
            " into it: use .contiguous()"
        )


def _problem_of(part: torch.Tensor) -> str:
    """What it is, and what to do; or nothing."""
    kind = type(part)
    if torch.nn.parameter.is_lazy(part):
        return "has no shape yet: run one batch through its module before run.track"
    if kind not in PLAIN_TENSORS:
        return (
            f"is a {kind.__module__}.{kind.__qualname__}, a kind of tensor that only pickle could bring back:"
            " keep the plain tensors that it is made of"
        )
    if part.is_meta:
        return "is on the meta device, and has no values: give it some (to_empty) before it is saved"
    if part.is_quantized:
        return "is quantized: keep int_repr(), scale and zero point, each by itself"
    if part.layout is not torch.strided:
        return f"is sparse ({part.layout}): keep it dense, or its indices and values, each by itself"
    if not _is_readable(part.dtype):
        return f"is of type {part.dtype}, which can't be read back: keep it as bytes (torch.uint8)"
    return ""


@functools.cache
def _is_readable(dtype: torch.dtype) -> bool:
    """Whether it can be stored, by us or by DCP, and what was written can be read without running it."""
    if is_usual(dtype) or not dtype.is_floating_point:
        return is_usual(dtype)
    buffer = io.BytesIO()
    try:
        there = torch.empty(2, dtype=dtype)
        torch.save(there, buffer)
        there.copy_(tensor_of(bytearray(buffer.getvalue())))
    except (RuntimeError, ValueError, KeyError, TypeError):
        return False
    return True


def is_usual(dtype: torch.dtype) -> bool:
    """Others (float4) torch can store, and not do much else with: not even cast them."""
    return str(dtype).removeprefix("torch.") in DTYPES


def as_it_reads(value: Any) -> Any:
    """A state dict whose tensors' memory holds what they read as: of others, DCP stores what memory holds."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, DTensor) else value.resolve_conj().resolve_neg()
    if type(value) is dict:
        return {key: as_it_reads(one) for key, one in value.items()}
    if type(value) is list:
        return [as_it_reads(one) for one in value]
    return value


# What was stored before -----------------------------------------------------------------------------------


class _Kind:
    """Stands for ``numpy.dtype`` in a pickle."""

    def __init__(self, code: str, *_: Any) -> None:
        self._code, self._order = str(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = str(state[1])

    def numpy(self) -> np.dtype[Any]:
        if self._code[:1] not in NUMPY_KINDS or not self._code[1:].isdigit() or self._order not in "<>=|":
            raise ValueError(f"{self._code!r} is no number or text of NumPy's")
        return np.dtype(self._order + self._code)


def _scalar(kind: _Kind, data: Any) -> Any:
    """Stands for the function that makes a NumPy scalar of its bytes; makes the plain value instead."""
    if not isinstance(kind, _Kind) or not isinstance(data, bytes):
        raise TypeError("no scalar of NumPy's")
    dtype = kind.numpy()
    if len(data) != dtype.itemsize:
        raise ValueError("its bytes are not of its type")
    return simple(np.frombuffer(data, dtype)[0]) if data else dtype.type().item()


def load_plain(data: bytes | bytearray) -> Any:
    """What DCP has stored of a value that is no tensor. Scalars of NumPy's, which were stored as they are
    before this module was, come back as plain numbers and texts; nothing of NumPy is called by the pickle.

    Raises:
        Exception: nearly any, of torch: it is something else.
    """
    known: list[Any] = [
        (_scalar, "numpy.core.multiarray.scalar"),
        (_scalar, "numpy._core.multiarray.scalar"),
        (_Kind, "numpy.dtype"),
    ]
    with torch.serialization.safe_globals(known):
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if isinstance(found, _Kind):
        raise TypeError("it is a type of NumPy's, and no value")
    return found
