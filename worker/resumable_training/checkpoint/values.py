"""Plain Python values to JSON and back without pickle: what schedulers and users' objects keep.

JSON knows no tuples, no integer keys and no infinity, and a schedule restored with a changed type is
another schedule. Such values are written with a tag. Tensors are handed over to be stored beside the text.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from resumable_training.checkpoint.errors import NotPlain

_TAG = "$"


def to_text(value: Any, tensors: list[Any] | None = None, *, where: str = "") -> bytes:
    """JSON of ``value``. Tensors in it are appended to ``tensors``; without that list they are refused.

    Raises:
        NotPlain: an object of a type that only pickle could keep.
    """
    return json.dumps(_encode(value, tensors, where), separators=(",", ":"), allow_nan=False).encode()


def from_text(data: bytes, tensors: list[Any] | None = None) -> Any:
    """Reverse of ``to_text``."""
    return _decode(json.loads(data), tensors or [])


def _encode(value: Any, tensors: list[Any] | None, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if kind is list:
        return _encode_items(value, tensors, where)
    if kind is dict and all(type(key) is str for key in value) and _TAG not in value:
        return {key: _encode(item, tensors, f"{where}.{key}") for key, item in value.items()}
    tagged = _TAGGED.get(kind)
    if tagged is not None:
        name, to_plain, _ = tagged
        if isinstance(value, dict):
            return {_TAG: name, "v": _encode_pairs(value, tensors, where)}
        return {_TAG: name, "v": _encode(to_plain(value), tensors, where)}
    return _encode_array(value, tensors, where)


def _encode_items(items: Any, tensors: list[Any] | None, where: str) -> list[Any]:
    return [_encode(item, tensors, f"{where}[{index}]") for index, item in enumerate(items)]


def _encode_pairs(value: dict[Any, Any], tensors: list[Any] | None, where: str) -> list[Any]:
    return [
        [_encode(key, tensors, f"{where}: the key"), _encode(item, tensors, f"{where}[{key!r}]")]
        for key, item in value.items()
    ]


def _encode_array(value: Any, tensors: list[Any] | None, where: str) -> Any:
    module = type(value).__module__.split(".")[0]
    if module == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        shape, data = list(value.shape), base64.b85encode(value.tobytes()).decode()
        return {
            _TAG: "numpy",
            "dtype": value.dtype.str,
            "shape": shape,
            "v": data,
            "scalar": type(value).__name__ != "ndarray",
        }
    if tensors is not None and hasattr(value, "untyped_storage"):
        tensors.append(value)
        return {_TAG: "tensor", "v": len(tensors) - 1}
    if type(value).__name__ == "dtype" and module == "torch":
        return {_TAG: "dtype", "v": str(value).removeprefix("torch.")}
    raise NotPlain(
        f"{where.lstrip('.') or 'the value'} is a {type(value).__module__}.{type(value).__qualname__};"
        " only plain values, tensors and NumPy arrays can be saved (nothing is pickled)"
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
    if tag == "tensor":
        return tensors[value["v"]]
    if tag == "numpy":
        return _decode_numpy(value)
    if tag == "dtype":
        import torch

        return getattr(torch, value["v"])
    return _BUILDERS[tag](_decode(value["v"], tensors))


def _decode_numpy(value: dict[str, Any]) -> Any:
    import numpy

    array = numpy.frombuffer(base64.b85decode(value["v"]), dtype=numpy.dtype(value["dtype"]))
    array = array.reshape(value["shape"]).copy()
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
