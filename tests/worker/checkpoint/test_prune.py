"""Making room by hand: what retention would delete, and what failed saves have left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from checkpoint_store import Store

from resumable_training.checkpoint.documents import Pin, pin
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.prune import LEFTOVER_SECONDS, carry_out, earlier_clock, plan
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def later() -> float:
    """When what was left over in ``made`` is old, however late this test runs."""
    return time.time() + 2 * LEFTOVER_SECONDS


@pytest.fixture
def made(tmp_path: Path) -> Store:
    """Six good ones, a branch that was left (30), a failed save (35), and one in progress (60)."""
    made = Store(tmp_path / "store")
    made.record(1)
    for step in (10, 20, 30):
        made.save(step, 1)
    made.record(2, parent=name(20, 1))
    for step in (25, 32, 40, 50):
        made.save(step, 2)
    made.save(35, 2, complete=False)
    made.save(60, 2, complete=False)
    (made.root / "pins").mkdir()
    return made


@pytest.fixture
def store(made: Store) -> LocalStore:
    return LocalStore(made.root, visibility_seconds=0.0)


def test_what_goes_and_why(store: LocalStore, later: float) -> None:
    """Oldest first: beyond those to keep, off the chain, left over. The save in progress stays."""
    planned = plan(store, later, keep_last=2)
    assert {one.name: one.why.split()[0] for one in planned.doomed} == {
        name(10, 1): "older",
        name(20, 1): "older",
        name(30, 1): "off",
        name(25, 2): "older",
        name(32, 2): "older",
        name(35, 2): "left",
    }
    assert planned.kept == (name(50, 2), name(40, 2))
    assert planned.bytes > 5 * 7000


def test_leftovers_go_also_while_good_ones_are_few(store: LocalStore, later: float) -> None:
    """A full disk is when there are few; branches that were left stay, so that going back can be undone."""
    planned = plan(store, later, keep_last=9)
    assert [one.name for one in planned.doomed] == [name(35, 2)]


def test_a_young_leftover_stays(store: LocalStore) -> None:
    """Its marker may just be seen late here."""
    planned = plan(store, time.time(), keep_last=9)
    assert (planned.doomed, planned.young) == ((), (name(35, 2),))


def test_pinned_and_wanted_ones_stay(store: LocalStore, later: float) -> None:
    """By name or by step."""
    pin(store, "eval", Pin(name(10, 1), "eval", later + 5))
    pin(store, "old", Pin(name(25, 2), "old", later - 5))
    planned = plan(store, later, keep_last=2, protected=["20", name(30, 1)])
    assert planned.pinned == (name(10, 1), name(20, 1), name(30, 1))
    assert [one.name for one in planned.doomed] == [name(25, 2), name(32, 2), name(35, 2)]


def test_it_is_done_and_then_there_is_nothing_to_do(made: Store, store: LocalStore, later: float) -> None:
    """What was pinned since the decision is left alone."""
    planned = plan(store, later, keep_last=2)
    pin(store, "late", Pin(name(32, 2), "late", later + 5))
    gone = carry_out(store, planned, later, lambda one, why: pytest.fail(str(why)))
    assert [one.name for one in gone] == [one.name for one in planned.doomed if one.name != name(32, 2)]
    assert sorted(path.name for path in made.root.glob("step-*")) == [
        *(name(32, 2), name(40, 2), name(50, 2), name(60, 2))
    ]
    assert plan(store, later, keep_last=2).doomed == ()


def test_a_pin_that_can_not_be_read_holds_everything(made: Store, store: LocalStore, later: float) -> None:
    """And the way out is named."""
    (made.root / "pins" / "x.json").write_bytes(b"{}")
    with pytest.raises(StorageUnavailable, match="unpin --damaged"):
        plan(store, later, keep_last=2)


def test_the_marker_goes_first(made: Store, store: LocalStore, later: float, monkeypatch) -> None:
    """Cut off in between, half a checkpoint does not look whole, and goes the next time."""
    monkeypatch.setattr(store, "delete_tree", lambda name: (_ for _ in ()).throw(StorageUnavailable("gone")))
    planned = plan(store, later, keep_last=2)
    failed: list[str] = []
    assert carry_out(store, planned, later, lambda one, why: failed.append(one.name)) == []
    assert failed == [one.name for one in planned.doomed]
    assert not os.path.exists(made.root / name(10, 1) / ".metadata")
    monkeypatch.undo()
    assert name(10, 1) in [one.name for one in plan(store, later, keep_last=2).doomed]


def test_one_that_can_not_be_deleted_keeps_no_others(store: LocalStore, later: float, monkeypatch) -> None:
    """A disk that is full gets what room there is, and the reason is told."""
    real = store.delete_tree

    def delete_tree(path: str) -> None:
        if path == name(20, 1):
            raise StorageUnavailable("Permission denied")
        real(path)

    monkeypatch.setattr(store, "delete_tree", delete_tree)
    failed: dict[str, str] = {}
    planned = plan(store, later, keep_last=2)
    gone = carry_out(store, planned, later, lambda one, why: failed.update({one.name: str(why)}))
    assert failed == {name(20, 1): "Permission denied"}
    assert len(gone) == len(planned.doomed) - 1


def test_a_clock_that_is_ahead_ends_no_pin(made: Store, store: LocalStore, monkeypatch) -> None:
    """The store's is asked, by a file that goes again; where nobody may write, ours must do."""
    now, ahead = time.time(), time.time() + 30 * 86400
    assert earlier_clock(store, ahead) == ahead  # it has no place for probes
    (made.root / "probes").mkdir()
    assert abs(earlier_clock(store, ahead) - now) < 600
    assert earlier_clock(store, now - 86400) == now - 86400
    assert os.listdir(made.root / "probes") == []


def test_only_what_may_go_is_looked_into(store: LocalStore, later: float, monkeypatch) -> None:
    """Each costs a listing, and of ten thousand in a bucket most stay."""
    looked: list[str] = []
    real = store.entries
    monkeypatch.setattr(store, "entries", lambda where="": looked.append(where) or real(where))
    planned = plan(store, later, keep_last=2)
    assert sorted(where for where in looked if where.startswith("step-")) == sorted(
        one.name for one in planned.doomed
    )


def test_the_last_save_of_a_killed_attempt_goes(made: Store, store: LocalStore, later: float) -> None:
    """It is newer than all good ones, and nobody can commit it once a newer attempt has its record."""
    assert name(60, 2) not in {one.name for one in plan(store, later, keep_last=9).doomed}
    made.record(3, parent=name(50, 2))
    assert name(60, 2) in {one.name for one in plan(store, later, keep_last=9).doomed}
