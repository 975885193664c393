"""Small documents: nothing that was changed by a single byte is believed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.documents import (
    DamagedDocument,
    Pin,
    pin,
    read_pins,
    read_records,
    seal,
    unpin,
    unseal,
)
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.manifest import Record, checkpoint_name

RECORD = Record(7, "uid-1", 3, "step-00000010.6", 10, 640, "n0", True, "x", 1764400000.10)


def test_round_trip() -> None:
    """What is sealed is read back equal."""
    assert unseal(Record, seal(RECORD)) == RECORD


@given(position=st.integers(0, len(seal(RECORD)) - 1), byte=st.integers(0, 255))
def test_any_changed_byte_is_seen(position: int, byte: int) -> None:
    """One changed byte anywhere, even a blank for a last zero, makes it damaged."""
    data = bytearray(seal(RECORD))
    if data[position] == byte:
        return
    data[position] = byte
    with pytest.raises(DamagedDocument):
        unseal(Record, bytes(data))


@given(length=st.integers(0, len(seal(RECORD)) - 1))
def test_any_truncation_is_seen(length: int) -> None:
    """A document that was cut short is damaged, also an empty one."""
    with pytest.raises(DamagedDocument):
        unseal(Record, seal(RECORD)[:length])


@given(st.binary(max_size=200) | st.sampled_from([b"[]", b"null", b'{"checksum":1}', b"[" * 100_000]))
def test_rubbish_is_damage_not_a_crash(data: bytes) -> None:
    """Whatever bytes are there, the answer is "damaged"."""
    with pytest.raises(DamagedDocument):
        unseal(Record, data)


def test_records_are_read_by_full_name_only(tmp_path: Path) -> None:
    """Copies and leftovers beside the records are not records; a damaged one is None."""
    store = LocalStore(tmp_path)
    store.make_directory("records")
    store.create("records/00000001.json", seal(Record(1, "u", 1, None)))
    store.create("records/00000002.json", b"")
    store.create("records/00000003.json", seal(Record(1, "u", 1, None)))  # a copy under another number
    for name in ("00000009.json.bak", "1.json", "x00000009.json"):
        store.create(f"records/{name}", seal(Record(9, "u", 1, None)))
    records = read_records(store)
    assert sorted(records) == [1, 2, 3]
    assert records[1] == Record(1, "u", 1, None)
    assert records[2] is None
    assert records[3] is None


def test_pins_hold_until_given_back_or_expired(tmp_path: Path) -> None:
    """A pin counts from its writing to its end, whichever kind of end comes first."""
    store = LocalStore(tmp_path)
    store.make_directory("pins")
    name = checkpoint_name(10, 1)
    pin(store, "reader", Pin(name, "eval job", until=100.0))
    assert read_pins(store, now=99.0) == {name}
    assert read_pins(store, now=100.0) == set()
    unpin(store, "reader")
    assert read_pins(store, now=0.0) == set()


def test_a_damaged_pin_is_not_overlooked(tmp_path: Path) -> None:
    """Nobody knows what it holds, so the caller must not delete anything."""
    store = LocalStore(tmp_path)
    store.make_directory("pins")
    store.create("pins/reader.json", b"{}")
    with pytest.raises(DamagedDocument):
        read_pins(store, now=0.0)
