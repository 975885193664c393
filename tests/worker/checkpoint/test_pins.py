"""Holding checkpoints for readers: while a block runs, for people, and never for ever."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from checkpoint_store import Store

from resumable_training.checkpoint import pins
from resumable_training.checkpoint.documents import Pin, read_pins
from resumable_training.checkpoint.errors import NoResumePoint, StorageUnavailable
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.prune import remove
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = Store(tmp_path / "store")
    made.record(1)
    for step in (10, 20):
        made.save(step, 1)
    (made.root / "pins").mkdir()
    return LocalStore(made.root, visibility_seconds=0.0)


def held(store: LocalStore) -> set[str]:
    return read_pins(store, time.time())


def test_held_for_the_length_of_a_block(store: LocalStore) -> None:
    """The newest, or a step; the path of it is given, and nothing is left."""
    with pins.held(store.location, holder="eval") as path:
        assert path == f"{store.location}/{name(20, 1)}"
        with pins.held(store.location, holder="eval", step=10):
            assert held(store) == {name(10, 1), name(20, 1)}
    with pytest.raises(ZeroDivisionError), pins.held(store.location, holder="eval"):
        raise ZeroDivisionError
    assert pins.read_pin_files(store) == []


def test_two_readers_of_one_name_hold_it_twice(store: LocalStore) -> None:
    """The first to finish does not let go for the other."""
    with pins.held(store.location, holder="eval"):
        with pins.held(store.location, holder="eval"):
            assert len(pins.read_pin_files(store)) == 2
        assert held(store) == {name(20, 1)}


def test_renewed_while_the_block_runs(store: LocalStore, monkeypatch) -> None:
    """Also beyond the time that it was pinned for."""
    renewed: list[float] = []
    monkeypatch.setattr(pins, "pin", lambda store, file, pin: renewed.append(pin.until))
    with pins.holding(store, name(10, 1), "eval", 0.05):
        deadline = time.monotonic() + 30
        while len(renewed) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert len(renewed) >= 4
    assert renewed == sorted(renewed)


def test_a_pin_that_can_not_be_renewed_is_told(store: LocalStore, monkeypatch) -> None:
    """The reader goes on; it knows that the checkpoint may go."""
    told: list[str] = []
    with pins.holding(store, name(10, 1), "eval", 0.05, told.append):

        def fail(*_: object) -> None:
            raise StorageUnavailable("read-only")

        monkeypatch.setattr(pins, "pin", fail)
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.005)
    assert told[0] == f"{name(10, 1)} could not be pinned for longer: read-only"


def test_what_is_gone_can_not_be_held(store: LocalStore, monkeypatch) -> None:
    """Retention was first: no pin is left, and the next one is chosen."""
    with pytest.raises(NoResumePoint, match="can't be held"):
        pins.give(store, Pin(name(30, 1), "eval", 9e9))
    assert pins.read_pin_files(store) == []
    choose = pins._choose

    def late(store: LocalStore, step: int | None) -> str:
        chosen = choose(store, step)
        if chosen == name(20, 1):
            remove(store, chosen)
        return chosen

    monkeypatch.setattr(pins, "_choose", late)
    with pins.held(store.location, holder="eval") as path:
        assert path.endswith(name(10, 1))


def test_a_step_that_is_not_there_names_those_that_are(store: LocalStore) -> None:
    """So that an evaluation job's error says what to do."""
    held = pins.held(store.location, holder="eval", step=15)
    with pytest.raises(NoResumePoint, match="On the chain are steps 20, 10"), held:
        raise AssertionError("held")


def test_a_copied_store_can_be_held_before_its_job_begins_there(store: LocalStore) -> None:
    """The directory of pins is made by who needs it."""
    (store.root / "pins").rmdir()
    with pins.held(store.location, holder="eval"):
        assert held(store) == {name(20, 1)}


def test_it_ends_by_itself(store: LocalStore) -> None:
    """A holder that died holds nothing once its time is over."""
    pins.give(store, Pin(name(10, 1), "dead", time.time() - 1))
    assert held(store) == set()
    assert [one.counts(time.time()) for one in pins.read_pin_files(store)] == [False]


def test_what_is_no_pin_holds_nothing(store: LocalStore) -> None:
    """Leftovers of a file server or an editor, a directory: they hold nothing and are not given back."""
    for stranger in (".nfs0000a1", "README", "a.json~", ".DS_Store"):
        (store.root / "pins" / stranger).write_bytes(b"x")
    (store.root / "pins" / "old.json").mkdir()
    pins.give(store, Pin(name(10, 1), "eval", 9e9))
    assert held(store) == {name(10, 1)}
    assert [one.pin.holder if one.pin else None for one in pins.read_pin_files(store)] == ["eval"]
