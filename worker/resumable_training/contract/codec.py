"""JSON encoding of the contract's dataclasses: unknown fields are ignored, wrong ones are named."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, Callable, Tuple, Type, TypeVar, Union

T = TypeVar("T")
_LARGEST = 2**63
_PLAIN = (str, int, float, bool)
_UNIONS = (Union, getattr(types, "UnionType", Union))  # the second is of ``X | None``; Python 3.9 has none


class ContractError(ValueError):
    """A message that is not what the contract says; the text names the field."""


def to_json(value: Any) -> bytes:
    """Canonical JSON (sorted keys, no spaces) of a dataclass or plain value."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def to_plain(value: Any) -> Any:
    """Dataclasses and tuples to dicts and lists."""
    if value is None or type(value) in _PLAIN:  # most are, and the loop waits for this at each save
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_json(kind: Type[T], data: bytes) -> T:
    """Parse ``data`` into dataclass ``kind``.

    Raises:
        ContractError: not JSON, a field is missing or has the wrong type (the message names it).
    """
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ContractError("not valid JSON: %s" % error) from error
    return from_plain(kind, plain)


def plain_from_json(data: Union[bytes, str]) -> Any:
    """Decoded JSON that others bear: numbers are finite, integers have 64 bits, texts can be written again.

    Raises:
        ContractError: it is none; or it is nested so deeply that nobody meant it.
    """
    try:
        plain = json.loads(data, parse_float=_finite, parse_int=_bearable, parse_constant=_finite)
        text = data.encode() if isinstance(data, str) else data
        if b"\\ud" in text.lower():
            json.dumps(plain, ensure_ascii=False).encode()  # half of a character outside of 16 bits
    except (ValueError, RecursionError) as error:
        raise ContractError("not valid JSON: %s" % error) from error
    return plain


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < float("inf"):
        raise ContractError("%s is no finite number" % text[:20])
    return value


def _bearable(text: str) -> int:
    value = int(text)
    if abs(value) >= _LARGEST:
        raise ContractError("%s is too large a number" % text[:20])
    return value


def from_plain(kind: Type[T], plain: Any, where: str = "") -> T:
    """Build dataclass ``kind`` from decoded JSON; fields that it does not know are ignored."""
    any_kind: Any = kind
    result: T = _converter(any_kind)(plain, where or kind.__name__)
    return result


# A message costs microseconds, and thousands come in a second: how to read a type is found out once, and
# the name of a field is put together only when it is needed.
Where = Union[str, Tuple[Any, Union[str, int]]]  # the name of the whole; or (where its parent is, which part)
Convert = Callable[[Any, Where], Any]


@functools.lru_cache(maxsize=None)
def _converter(kind: Any) -> Convert:
    """What makes a value of that type of decoded JSON."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _of_dataclass(kind)
    if origin in _UNIONS:
        return _of_optional(kind)
    if origin is tuple:
        return _of_list(typing.get_args(kind)[0])
    if origin is dict:
        return _of_object(typing.get_args(kind)[1])
    if kind is Any:
        return lambda plain, _where: plain
    if kind is float:
        return _float
    if kind is int:
        return _int
    return _of_class(kind)


def _float(plain: Any, where: Where) -> float:
    _expect(isinstance(plain, (int, float)) and not isinstance(plain, bool), where, "a number", plain)
    try:
        return float(plain)
    except OverflowError as error:  # an integer beyond all floats
        raise ContractError("%s is too large a number" % _name(where)) from error


def _int(plain: Any, where: Where) -> Any:
    _expect(isinstance(plain, int) and not isinstance(plain, bool), where, "an integer", plain)
    return plain


def _of_class(kind: Any) -> Convert:
    def convert(plain: Any, where: Where) -> Any:
        _expect(isinstance(plain, kind), where, kind.__name__, plain)
        return plain

    return convert


def _of_optional(kind: Any) -> Convert:
    (inner,) = [_converter(arg) for arg in typing.get_args(kind) if arg is not type(None)]
    return lambda plain, where: None if plain is None else inner(plain, where)


def _of_list(item: Any) -> Convert:
    inner = _converter(item)

    def convert(plain: Any, where: Where) -> Any:
        _expect(isinstance(plain, list), where, "a list", plain)
        return tuple(inner(value, (where, index)) for index, value in enumerate(plain))

    return convert


def _of_object(item: Any) -> Convert:
    inner = _converter(item)

    def convert(plain: Any, where: Where) -> Any:
        _expect(isinstance(plain, dict), where, "an object", plain)
        if item is Any:
            return dict(plain)
        return {key: inner(value, (where, key)) for key, value in plain.items()}

    return convert


def _of_dataclass(kind: Any) -> Convert:
    hints = typing.get_type_hints(kind)
    known = {field.name: _converter(hints[field.name]) for field in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    needed = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is missing and field.default_factory is missing
    ]

    def convert(plain: Any, where: Where) -> Any:
        _expect(isinstance(plain, dict), where, "an object", plain)
        for name in needed:
            if name not in plain:
                raise ContractError("%s.%s is missing" % (_name(where), name))
        return kind(
            **{name: known[name](value, (where, name)) for name, value in plain.items() if name in known}
        )

    return convert


def _name(where: Where) -> str:
    if isinstance(where, str):
        return where
    parent, part = where
    return ("%s[%d]" if isinstance(part, int) else "%s.%s") % (_name(parent), part)


def _expect(condition: bool, where: Where, wanted: str, got: Any) -> None:
    if not condition:
        shown = json.dumps(got, default=str)[:80]
        raise ContractError("%s must be %s, not %s" % (_name(where), wanted, shown))
