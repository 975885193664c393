"""The small JSON files of a store: store identity, records, manifests, pins. Each carries its own checksum.

A document is canonical JSON with a ``checksum`` over the rest. A reader accepts it only if writing it again
gives the same bytes, so that no flipped byte, not even a blank for a digit, goes unseen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

import xxhash

from resumable_training.checkpoint.errors import StoreNotFound
from resumable_training.checkpoint.many import at_once
from resumable_training.checkpoint.store import Store
from resumable_training.contract.codec import ContractError, from_plain, to_json, to_plain
from resumable_training.contract.manifest import (
    PINS_DIRECTORY,
    RECORDS_DIRECTORY,
    Record,
    parse_record_name,
    record_name,
)

T = TypeVar("T")
_PIN = ".json"


class DamagedDocument(ValueError):
    """The bytes are not a document that was written whole; the text says how that shows."""


@dataclass(frozen=True)
class Pin:
    """A checkpoint that a reader holds. ``until`` (wall clock, seconds): a forgotten pin ends by itself."""

    checkpoint: str
    holder: str
    until: float


def seal(value: Any) -> bytes:
    """Bytes of a document."""
    return _seal_plain(to_plain(value))


def _seal_plain(plain: dict[str, Any]) -> bytes:
    return to_json({**plain, "checksum": xxhash.xxh3_128_hexdigest(to_json(plain))})


def unseal(kind: type[T], data: bytes) -> T:
    """Parse a document into dataclass ``kind``; fields that it does not know are ignored.

    Raises:
        DamagedDocument: not what a writer wrote.
    """
    try:
        plain = json.loads(data)
        if not isinstance(plain, dict) or plain.pop("checksum", None) is None:
            raise DamagedDocument("no checksum")
        if _seal_plain(plain) != data:
            raise DamagedDocument("checksum mismatch")
        return from_plain(kind, plain)
    except DamagedDocument:
        raise
    except (ValueError, RecursionError) as error:  # ContractError and JSON errors are ValueErrors
        what = "wrong fields" if isinstance(error, ContractError) else "not JSON"
        raise DamagedDocument(f"{what}: {error}") from error


def read_records(store: Store, known: dict[int, Record] | None = None) -> dict[int, Record | None]:
    """All records by number; None for one that is damaged (its writer died while writing, or worse).

    ``known`` saves reading again: records never change.
    """
    known = known or {}
    numbers = record_numbers(store)
    return dict(zip(numbers, at_once(lambda n: known.get(n) or read_record(store, n), numbers), strict=True))


def record_numbers(store: Store) -> list[int]:
    """Numbers of all records, ascending; one listing, nothing is read."""
    numbers = [parse_record_name(entry.name) for entry in store.entries(RECORDS_DIRECTORY)]
    return sorted(number for number in numbers if number is not None)


def read_record(store: Store, seq: int) -> Record | None:
    """One record; None when it is damaged or does not exist."""
    try:
        record = unseal(Record, store.read(f"{RECORDS_DIRECTORY}/{record_name(seq)}"))
    except (DamagedDocument, StoreNotFound):
        return None
    return record if record.seq == seq else None


def pin_names(store: Store) -> list[str]:
    """Names of all pins. What else lies there (a file server's or an editor's leftovers) holds nothing."""
    return [
        entry.name.removesuffix(_PIN)
        for entry in store.entries(PINS_DIRECTORY)
        if entry.name.endswith(_PIN) and not entry.is_directory
    ]


def read_pins(store: Store, now: float) -> set[str]:
    """Names of pinned checkpoints. Expired pins do not count.

    Raises:
        DamagedDocument: a pin can't be read, so nobody knows what it holds.
    """
    held = set()
    for name in pin_names(store):
        try:
            pin = unseal(Pin, store.read(f"{PINS_DIRECTORY}/{name}{_PIN}"))
        except StoreNotFound:
            continue  # given back since the listing
        if pin.until > now:
            held.add(pin.checkpoint)
    return held


def pin(store: Store, name: str, held: Pin) -> None:
    """Hold a checkpoint under the pin's name, so that retention leaves it alone until ``held.until``."""
    store.put(f"{PINS_DIRECTORY}/{name}{_PIN}", seal(held))


def unpin(store: Store, name: str) -> None:
    """Give a pin back."""
    store.delete(f"{PINS_DIRECTORY}/{name}{_PIN}")


def unpin_up_to(store: Store, prefix: str, last: int) -> None:
    """Give back all pins ``<prefix><number>`` whose number is at most ``last``."""
    for name in pin_names(store):
        number = name.removeprefix(prefix)
        if name == prefix + number and number.isdecimal() and int(number) <= last:
            unpin(store, name)
