"""PURE: pickles of torch's classes, written without torch and without the pickle machine.

What DCP stores beside the bytes are pickles of a few plain classes. The process that writes checkpoints does
not load torch (a second and 200 MB each time), so it says the same in the pickle's own language: protocol 2,
which every Python and torch reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

PROTOCOL = b"\x80\x02"
STOP = b"."
NONE = b"N"
TRUE = b"\x88"
FALSE = b"\x89"


def integer(value: int) -> bytes:
    """Any size, either sign."""
    if 0 <= value < 256:
        return b"K" + bytes((value,))
    if -(1 << 31) <= value < (1 << 31):
        return b"J" + struct.pack("<i", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes((size,)) + value.to_bytes(size, "little", signed=True)


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name(module: str, attribute: str) -> bytes:
    """A reference to a class or function."""
    return f"c{module}\n{attribute}\n".encode()


def sequence(items: Iterable[bytes]) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def integers(values: Sequence[int]) -> bytes:
    return sequence(map(integer, values))


def listing(items: Iterable[bytes]) -> bytes:
    """A list."""
    return b"](" + b"".join(items) + b"e"


def mapping(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A dict."""
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def call(function: bytes, arguments: Iterable[bytes]) -> bytes:
    """What ``function`` returns."""
    return function + sequence(arguments) + b"R"


def instance(kind: bytes, state: bytes) -> bytes:
    """An object of a class, made without ``__init__``, with its attributes or what ``__setstate__`` takes."""
    return kind + b")\x81" + state + b"b"


def persistent(key: bytes) -> bytes:
    """An object that the reader finds by this key."""
    return key + b"Q"


class Memo:
    """Says a thing once and refers to it after that: shorter, and the reader makes one object of it."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}

    def __call__(self, said: bytes) -> bytes:
        place = self._places.get(said)
        if place is not None:
            return b"j" + struct.pack("<I", place)
        self._places[said] = len(self._places)
        return said + b"r" + struct.pack("<I", len(self._places) - 1)
