"""JSON encoding of the contract's dataclasses: unknown fields are ignored, wrong ones are named."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from typing import Any, Dict, Type, TypeVar

T = TypeVar("T")


class ContractError(ValueError):
    """A message that is not what the contract says; the text names the field."""


def to_json(value: Any) -> bytes:
    """Canonical JSON (sorted keys, no spaces) of a dataclass or plain value."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def to_plain(value: Any) -> Any:
    """Dataclasses and tuples to dicts and lists."""
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
    except ValueError as error:
        raise ContractError("not valid JSON: %s" % error) from error
    return from_plain(kind, plain)


def from_plain(kind: Type[T], plain: Any, where: str = "") -> T:
    """Build dataclass ``kind`` from decoded JSON; fields that it does not know are ignored."""
    result: T = _convert(kind, plain, where or kind.__name__)
    return result


def _convert(kind: Any, plain: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _convert_dataclass(kind, plain, where)
    if origin is typing.Union:
        return _convert_optional(kind, plain, where)
    if origin is tuple:
        _expect(isinstance(plain, list), where, "a list", plain)
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, value, "%s[%d]" % (where, index)) for index, value in enumerate(plain))
    if origin is dict:
        _expect(isinstance(plain, dict), where, "an object", plain)
        item = typing.get_args(kind)[1]
        return {key: _convert(item, value, "%s.%s" % (where, key)) for key, value in plain.items()}
    if kind is Any:
        return plain
    if kind is float:
        _expect(isinstance(plain, (int, float)) and not isinstance(plain, bool), where, "a number", plain)
        try:
            return float(plain)
        except OverflowError as error:  # an integer beyond all floats
            raise ContractError("%s is too large a number" % where) from error
    if kind is int:
        _expect(isinstance(plain, int) and not isinstance(plain, bool), where, "an integer", plain)
        return plain
    _expect(isinstance(plain, kind), where, kind.__name__, plain)
    return plain


def _convert_optional(kind: Any, plain: Any, where: str) -> Any:
    if plain is None:
        return None
    (inner,) = [arg for arg in typing.get_args(kind) if arg is not type(None)]
    return _convert(inner, plain, where)


def _convert_dataclass(kind: Any, plain: Any, where: str) -> Any:
    _expect(isinstance(plain, dict), where, "an object", plain)
    hints = _hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in plain:
            values[field.name] = _convert(hints[field.name], plain[field.name], "%s.%s" % (where, field.name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ContractError("%s.%s is missing" % (where, field.name))
    return kind(**values)


@functools.lru_cache(maxsize=None)
def _hints(kind: Any) -> Dict[str, Any]:
    return typing.get_type_hints(kind)  # evaluates strings: far too slow for every message


def _expect(condition: bool, where: str, wanted: str, got: Any) -> None:
    if not condition:
        raise ContractError("%s must be %s, not %s" % (where, wanted, json.dumps(got, default=str)[:80]))
