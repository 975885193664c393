"""Retention at work: what can't be deleted is told, and keeps nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_store import Store

from resumable_training.checkpoint import sweep
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.sweep import Sweeper
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """Nine good ones."""
    made = Store(tmp_path / "store")
    made.record(1)
    for step in range(10, 100, 10):
        made.save(step, 1)
    return LocalStore(made.root, visibility_seconds=0.0)


def refuse(store: LocalStore, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Deleting these fails; what was tried."""
    real, tried = store.delete_tree, []

    def delete_tree(path: str) -> None:
        tried.append(path)
        if path in names:
            raise StorageUnavailable(f"{path}: Operation not permitted")
        real(path)

    monkeypatch.setattr(store, "delete_tree", delete_tree)
    return tried


def test_the_others_go(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one directory of another user would fill the disk."""
    refuse(store, monkeypatch, name(10, 1))
    told = Sweeper(store).sweep(3, None)
    assert told == f"old checkpoints could not be deleted: {name(10, 1)}: Operation not permitted"
    assert len(list(store.root.glob("step-*"))) == 4


def test_many_that_are_another_users_do_not_fill_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal takes no time, so all others go; a few of the reasons are enough to tell."""
    refuse(store, monkeypatch, *(name(step, 1) for step in (10, 20, 30, 40)))
    assert Sweeper(store).sweep(2, None).count("Operation not permitted") == 3
    left = sorted(path.name for path in store.root.glob("step-*"))
    assert left == [name(step, 1) for step in (10, 20, 30, 40, 80, 90)]


def test_what_is_urgent_does_not_wait_for_all_of_them(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one at which it is asked to stop is finished, and the next sweep goes on."""
    tried = refuse(store, monkeypatch)
    sweeper = Sweeper(store)
    assert sweeper.sweep(3, None, stop=lambda: len(tried) == 2) == ""
    assert (len(tried), len(list(store.root.glob("step-*")))) == (2, 7)
    assert sweeper.sweep(3, None) == ""
    assert len(list(store.root.glob("step-*"))) == 3


def test_a_store_in_trouble_is_left_alone(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save does not wait for one time-out after the other."""
    tried = refuse(store, monkeypatch, *(name(step, 1) for step in range(10, 100, 10)))
    monkeypatch.setattr(sweep.time, "monotonic", lambda: 20.0 * len(tried))
    assert Sweeper(store).sweep(3, None).count("Operation not permitted") == 2
    assert tried == [name(10, 1), name(20, 1)]


def test_what_was_cut_off_makes_room_when_saves_fail(tmp_path: Path) -> None:
    """A killed attempt leaves its last save, newer than all good ones: it goes when two in a row failed."""
    made = Store(tmp_path / "store")
    made.record(1)
    made.save(10, 1)
    made.save(20, 1, complete=False)
    made.record(2, parent=name(10, 1))
    made.save(20, 2, complete=False)  # of the attempt that sweeps
    store = LocalStore(made.root, visibility_seconds=0.0)
    found = []
    for shorts in ((False, False), (True,), (False, True), (True, False, True), (True, True)):
        sweeper = Sweeper(store)
        for short in shorts:
            assert sweeper.sweep(3, None, short=short) == ""
        found.append(sorted(path.name for path in made.root.glob("step-*")))
    everything = [name(10, 1), name(20, 1), name(20, 2)]
    assert found == [everything] * 4 + [[name(10, 1), name(20, 2)]]
