"""Plain Python values to JSON and back without pickle: what schedulers and users' objects keep.

JSON knows no tuples, no integer keys and no infinity, and a schedule restored with a changed type is
another schedule. Such values are written with a tag. Tensors are handed over to be stored beside the text.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from resumable_training.checkpoint.errors import NotPlain

MOST_NESTED = 100
_MOST_BITS = 10_000  # of an integer, as digits: Python reads no more than 4,300 of them
NUMPY_KINDS = "biufcSU"  # of its types: numbers and texts
_TAG = "$"


def to_text(value: Any, tensors: list[Any] | None = None, *, where: str = "") -> bytes:
    """JSON of ``value``. Tensors in it are appended to ``tensors``; without that list they are refused.

    Raises:
        NotPlain: an object of a type that only pickle could keep, or one that contains itself.
        Unstorable: a tensor of a kind that can't be saved.
    """
    encoded = _encode(value, tensors, where, MOST_NESTED)
    return json.dumps(encoded, separators=(",", ":"), allow_nan=False).encode()


def from_text(data: bytes, tensors: list[Any] | None = None) -> Any:
    """Reverse of ``to_text``."""
    return _decode(json.loads(data), tensors or [])


def simple(value: Any) -> Any:
    """The plain number or text that equals one of another class (NumPy's scalars, members of an IntEnum);
    anything else as it is."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if _is_numpy(value, "generic"):
        item = value.item() if value.dtype.kind in NUMPY_KINDS else value
        return item if type(item) in (bool, int, float, complex, str, bytes) else value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else value


def too_deep(where: str) -> NotPlain:
    """What is said of a value in which there is no end of values."""
    begin = where if len(where) <= 80 else f"{where[:80]}..."
    return NotPlain(f"{begin} contains itself, or is nested deeper than {MOST_NESTED} levels: flatten it")


def _encode(value: Any, tensors: list[Any] | None, where: str, left: int) -> Any:
    """``left``: levels that may still be below, so that whatever was written can be read."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value.bit_length() <= _MOST_BITS else {_TAG: "int", "v": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if not left:
        raise too_deep(where)
    if kind is list:
        return _encode_items(value, tensors, where, left - 1)
    if kind is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: _encode(item, tensors, f"{where}.{key}", left - 1) for key, item in value.items()}
    tagged = _TAGGED.get(kind)
    if tagged is not None:
        name, to_plain, _ = tagged
        if isinstance(value, dict):
            return {_TAG: name, "v": _encode_pairs(value, tensors, where, left - 1)}
        return {_TAG: name, "v": _encode(to_plain(value), tensors, where, left)}
    return _encode_other(value, tensors, where, left)


def _encode_items(items: Any, tensors: list[Any] | None, where: str, left: int) -> list[Any]:
    return [_encode(item, tensors, f"{where}[{index}]", left) for index, item in enumerate(items)]


def _encode_pairs(value: dict[Any, Any], tensors: list[Any] | None, where: str, left: int) -> list[Any]:
    return [
        [
            _encode(key, tensors, f"{where}: the key", left),
            _encode(item, tensors, f"{where}[{key!r}]", left),
        ]
        for key, item in value.items()
    ]


def _encode_other(value: Any, tensors: list[Any] | None, where: str, left: int) -> Any:
    if _is_numpy(value, "ndarray", "generic") and not _is_numpy(value, "str_", "bytes_"):
        return _encode_numpy(value, where)
    plain = simple(value)
    if plain is not value:
        return _encode(plain, tensors, where, left)
    if tensors is not None and hasattr(value, "untyped_storage"):
        from resumable_training.checkpoint.plain import require_tensor

        require_tensor(value, where.lstrip("."))
        tensors.append(value)
        return {_TAG: "tensor", "v": len(tensors) - 1}
    if type(value).__name__ == "dtype" and type(value).__module__ == "torch":
        return {_TAG: "dtype", "v": str(value).removeprefix("torch.")}
    raise _refused(value, where)


def _encode_numpy(value: Any, where: str) -> Any:
    dtype = value.dtype
    if dtype.hasobject or _is_numpy(value, "ma.MaskedArray") or not _is_told_by_name(dtype):
        raise _refused(value, where)
    return {
        _TAG: "numpy",
        "dtype": dtype.str,
        "shape": list(value.shape),
        "v": base64.b85encode(value.tobytes()).decode(),
        "scalar": _is_numpy(value, "generic"),
    }


def _is_numpy(value: Any, *names: str) -> bool:
    """Whether it is of one of NumPy's types. Where NumPy is not loaded nothing is, and it is not loaded."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, tuple(attrgetter(name)(numpy) for name in names))


def _is_told_by_name(dtype: Any) -> bool:
    """Not so of one with fields, or of another library's."""
    try:
        return bool(sys.modules["numpy"].dtype(dtype.str) == dtype)
    except TypeError:
        return False


def _refused(value: Any, where: str) -> NotPlain:
    return NotPlain(
        f"{where.lstrip('.') or 'the value'} is a {type(value).__module__}.{type(value).__qualname__};"
        " only plain values, tensors and NumPy arrays of plain types can be saved (nothing is pickled):"
        " store what it can be made of again"
    )


def _decode(value: Any, tensors: list[Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item, tensors) for key, item in value.items()}
    return _decode_tagged(value[_TAG], value, tensors)


def _decode_tagged(tag: str, value: dict[str, Any], tensors: list[Any]) -> Any:
    if tag == "float":
        return float(value["v"])
    if tag == "int":
        return int(value["v"], 16)
    if tag == "tensor":
        return tensors[value["v"]]
    if tag == "numpy":
        return _decode_numpy(value)
    if tag == "dtype":
        import torch

        return getattr(torch, value["v"])
    return _BUILDERS[tag](_decode(value["v"], tensors))


def _decode_numpy(value: dict[str, Any]) -> Any:
    import numpy as np

    dtype, data = np.dtype(value["dtype"]), base64.b85decode(value["v"])
    empty = np.zeros(value["shape"], dtype)
    array = np.frombuffer(data, dtype).reshape(empty.shape).copy() if data else empty
    return array[()] if value["scalar"] else array


# type -> (tag, to a plain value, back)
_TAGGED: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: ("tuple", list, tuple),
    set: ("set", lambda value: sorted(value, key=repr), set),
    frozenset: ("frozenset", lambda value: sorted(value, key=repr), frozenset),
    dict: ("dict", list, dict),
    Counter: ("counter", list, lambda pairs: Counter(dict(pairs))),
    OrderedDict: ("ordered", list, OrderedDict),
    deque: ("deque", lambda value: [value.maxlen, list(value)], lambda pair: deque(pair[1], pair[0])),
    bytes: ("bytes", lambda value: base64.b85encode(value).decode(), base64.b85decode),
    complex: ("complex", lambda value: [value.real, value.imag], lambda pair: complex(*pair)),
}
_BUILDERS = {name: build for name, _, build in _TAGGED.values()}
