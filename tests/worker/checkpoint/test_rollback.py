"""Going back on purpose: a record says so, the next attempt follows, and it can be undone."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_store import Store, branched
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.checkpoint.documents import read_records
from resumable_training.checkpoint.errors import NoResumePoint, StoreMisconfigured, Superseded
from resumable_training.checkpoint.listing import Survey, list_checkpoints, survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.resume import DELIBERATE, NEWEST, choose
from resumable_training.checkpoint.rollback import roll_back
from resumable_training.checkpoint.wanted import find, made_again, without_serial
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import checkpoint_name as name


@pytest.fixture
def made(tmp_path: Path) -> Store:
    """Attempt 2 went on from 20, saved 25 and 35, and was cut off at 40."""
    made = branched(tmp_path / "store")
    made.save(35, 2)
    made.save(40, 2, complete=False)
    return made


@pytest.fixture
def store(made: Store) -> LocalStore:
    return LocalStore(made.root, visibility_seconds=0.0)


def test_the_next_attempt_resumes_there(store: LocalStore) -> None:
    """By a record in the newest attempt's name, that its successor may follow; what was left is told."""
    done = roll_back(store, "20", now=5.0, nonce="n")
    assert (done.checkpoint, done.step, done.samples, done.record) == (name(20, 1), 20, 320, 3)
    assert done.left == (name(35, 2), name(25, 2))
    record = read_records(store)[3]
    assert record is not None
    assert (record.deliberate, record.by_hand, record.attempt, record.job_uid) == (True, True, 2, "u-1")
    choice = choose(survey(store), CheckpointConfig(), "u-1", 3)
    assert (choice.kind, choice.name) == (NEWEST, name(20, 1))


def test_nothing_is_deleted_and_it_can_be_undone(made: Store, store: LocalStore) -> None:
    """The branch that was left is complete; its newest checkpoint by name brings all of it back."""
    before = sorted(path.name for path in made.root.iterdir())
    roll_back(store, "10", now=5.0, nonce="a")
    assert survey(store).resume_points == [name(10, 1)]
    roll_back(store, name(35, 2), now=6.0, nonce="b")
    assert survey(store).resume_points == [name(35, 2), name(25, 2), name(20, 1), name(10, 1)]
    assert sorted(path.name for path in made.root.iterdir()) == before


def test_the_same_wish_changes_nothing(store: LocalStore) -> None:
    """It is the next resume point already: no record."""
    assert roll_back(store, "35", now=5.0, nonce="a").record is None
    assert roll_back(store, "20", now=5.0, nonce="a").record == 3
    assert roll_back(store, "20", now=5.0, nonce="b").record is None


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("40", "no complete checkpoint of step 40"),
        (name(40, 2), "incomplete"),
        ("30", f"step 30 is off the chain.*{name(30, 1)}"),
        (name(50, 2), "is not there"),
        ("newest", "neither a step nor"),
    ],
)
def test_only_to_a_complete_checkpoint(store: LocalStore, wanted: str, why: str) -> None:
    """Of the chain, unless it is named in full; the steps that there are, are named."""
    with pytest.raises(NoResumePoint, match=f"{why}.*On the chain are steps 35, 25, 20, 10"):
        roll_back(store, wanted, now=5.0, nonce="n")
    assert sorted(read_records(store)) == [1, 2]


def test_a_damaged_one_is_refused(made: Store, store: LocalStore) -> None:
    """As far as sizes tell."""
    (made.root / name(20, 1) / "__0_0.distcp").write_bytes(b"short")
    with pytest.raises(NoResumePoint, match=r"damaged: __0_0\.distcp has 5 bytes"):
        roll_back(store, "20", now=5.0, nonce="n")


def test_an_attempt_that_begins_meanwhile_wins(made: Store, store: LocalStore, monkeypatch) -> None:
    """Its record is there first; nothing is overwritten."""
    from resumable_training.checkpoint import rollback

    def look(store: LocalStore, name: str) -> object:
        made.record(3, parent="step-00000035.2")
        return manifest_of(store, name)

    manifest_of = rollback._manifest_of
    monkeypatch.setattr(rollback, "_manifest_of", look)
    with pytest.raises(Superseded, match="record 3"):
        roll_back(store, "20", now=5.0, nonce="n")


def test_another_programs_directory_has_nothing_to_roll_back(tmp_path: Path) -> None:
    """Without records nobody would follow."""
    with pytest.raises(StoreMisconfigured, match="no store of checkpoints with records"):
        roll_back(LocalStore(tmp_path), "20", now=5.0, nonce="n")


def test_the_list_says_who_went_back(store: LocalStore) -> None:
    """Of each checkpoint that is no longer used: by whom, to where."""
    roll_back(store, "20", now=5.0, nonce="n")
    told = {info.name: info.why_not for info in list_checkpoints(store, now=9.0)}
    assert told[name(35, 2)] == "off the chain: newer attempts went on from another branch"
    assert told[name(30, 1)] == "off the chain: a roll-back went on from step 20 (record 3)"
    assert told[name(20, 1)] == ""


# ---- a wish in the spec -----------------------------------------------------------------------------------


def test_a_wish_may_be_a_step(store: LocalStore) -> None:
    """Of the chain; a step that is not on it ends the attempt with the ones that are."""
    seen = survey(store)
    choice = choose(seen, CheckpointConfig(resume_from="10"), "u-1", 3)
    assert (choice.kind, choice.name) == (DELIBERATE, name(10, 1))
    with pytest.raises(NoResumePoint, match="resumeFrom: step 30 is off the chain"):
        choose(seen, CheckpointConfig(resume_from="30"), "u-1", 3)


def test_a_roll_back_is_not_undone_by_an_older_wish(made: Store, store: LocalStore) -> None:
    """What the spec asked for was granted before; it stays granted."""
    made.record(3, parent=name(35, 2), requested="35")
    roll_back(store, "10", now=5.0, nonce="n")
    choice = choose(survey(store), CheckpointConfig(resume_from="35"), "u-1", 4)
    assert (choice.kind, choice.name) == (NEWEST, name(10, 1))


def test_a_wish_can_be_made_again() -> None:
    """With a serial number, which is no part of the name; paths keep their `#`."""
    assert made_again("step-00000010.1", [None, "30"]) == "step-00000010.1"
    assert made_again("step-00000010.1", ["step-00000010.1", None]) == "step-00000010.1#2"
    assert made_again("step-00000010.1", ["step-00000010.1#7", "step-00000010.1"]) == "step-00000010.1#8"
    assert without_serial("1200#3") == "1200"
    assert without_serial("/data/run#3") == "/data/run#3"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), unique=True), st.integers(0, 9))
def test_a_step_is_found_exactly_when_it_is_on_the_chain(those: list[tuple[int, int]], step: int) -> None:
    """And then it is the checkpoint of that step there."""
    from resumable_training.checkpoint.chain import build_chain
    from resumable_training.contract.manifest import Record

    records = {1: Record(1, "u", 1, None), 2: Record(2, "u", 2, name(4, 1)), 3: Record(3, "u", 3, name(6, 2))}
    complete = tuple(name(*one) for one in those)
    seen = Survey(dict(records), complete, (), build_chain(records, complete))
    expected = [n for n in seen.resume_points if n.startswith(f"step-{step:08d}.")]
    try:
        assert find(seen, str(step)) == expected[0]
    except NoResumePoint:
        assert expected == []
