"""The history that an attempt leaves beside its checkpoints: bounded, never torn, read leniently."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_training.checkpoint import history
from resumable_training.checkpoint.errors import StorageUnavailable
from resumable_training.checkpoint.history import (
    Begin,
    Committing,
    Journal,
    Restored,
    Save,
    Step,
    Stop,
    bounded_values,
    history_name,
    parse_history,
    read_histories,
    shortened,
    write_history,
)
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.stores import open_store

COMMIT = Committing(at=9000.0, ms=10**9, step=77)
BEGIN = Begin(at=1000.0, ms=5, attempt=2, world_size=4, job="team/gpt", job_uid="u-1")


def step(number: int, **changes: object) -> Step:
    line = Step(1000.0 + number, number * 1000, number, number * 8, 2.5, 0.25, 0, {"productive": number})
    return replace(line, **changes)


def save(number: int, **changes: object) -> Save:
    name = f"step-{number:08d}.2"
    return replace(Save(1000.5 + number, number * 1000 + 500, number, name, 100, 20, 30, 60.0), **changes)


def data_of(journal: Journal) -> bytes:
    return "".join(f"{line}\n" for line in journal.lines(COMMIT)).encode()


def test_what_was_noted_is_read_back() -> None:
    """Every kind of line, in order of time, with running totals in the saves."""
    journal = Journal(BEGIN)
    journal.restored(Restored(1000.0, 9, 40, 320, "step-00000040.1", 0.5, ({"checkpoint": "x", "why": "y"},)))
    journal.step(step(1, values={"lr": 0.1}))
    journal.save(save(1))
    journal.save(save(2, message="disk full"))
    journal.step(step(3, loss=None))
    journal.save(save(3))
    journal.stop(Stop(1004.0, 4000, 3, "spot notice"))
    read = parse_history(7, data_of(journal))
    assert read is not None
    assert (read.record, read.begin, read.damaged) == (7, BEGIN, 0)
    assert read.restored is not None
    assert read.restored.fallback == ({"checkpoint": "x", "why": "y"},)
    assert read.steps == (step(1, values={"lr": 0.1}), step(3, loss=None))
    assert [(item.made, item.failed, item.total_bytes, item.total_blocking_ms) for item in read.saves] == [
        (1, 0, 100, 20),
        (1, 1, 100, 20),
        (2, 1, 200, 40),
    ]
    assert (read.stop, read.committing) == (Stop(1004.0, 4000, 3, "spot notice"), COMMIT)
    times = [json.loads(line)["ms"] for line in journal.lines(COMMIT)]
    assert times == sorted(times)


@settings(max_examples=20)
@given(st.integers(1, 8000))
def test_an_attempt_of_any_length_has_a_bounded_history(steps: int) -> None:
    """Asked as often as its pace says, for however long, it keeps some hundred steps from first to last."""
    journal, due, noted = Journal(BEGIN), 0, []
    for number in range(steps):
        ms = number * 400
        if ms >= due:
            journal.step(step(number, ms=ms))
            due = ms + journal.pace_ms
            noted.append(number)
    read = parse_history(1, data_of(journal))
    assert read is not None
    kept = [item.step for item in read.steps]
    assert len(kept) <= history.MOST_STEPS
    assert (kept[0], kept[-1]) == (0, noted[-1])
    assert len(kept) >= min(len(noted), history.MOST_STEPS // 2)


def test_thinned_saves_keep_their_sums() -> None:
    """Counts and sums of a thousand saves are exact, though only some hundred are told one by one."""
    journal = Journal(BEGIN)
    for number in range(1000):
        journal.save(save(number))
    read = parse_history(1, data_of(journal))
    assert read is not None
    assert len(read.saves) <= history.MOST_SAVES
    assert (read.saves[-1].made, read.saves[-1].total_bytes) == (1000, 100_000)


def test_the_largest_history_is_small() -> None:
    """With all that a script may log in every line, a record's file stays under half a megabyte."""
    values = bounded_values([(f"{number}" * 99, -1.23456789e-300) for number in range(9)])
    assert len(values) == history.MOST_VALUES
    phases = dict.fromkeys(("setup", "rendezvous", "restoring", "warmup", "productive", "rework"), 10**9)
    journal = Journal(BEGIN)
    for number in range(5000):
        journal.step(step(number, values=values, phase_ms=phases))
        journal.save(save(number, message="x" * 9999))
    assert len(data_of(journal)) < 500_000


def test_values_that_json_can_not_carry_are_left_out() -> None:
    """A NaN does not make the file unreadable for others."""
    found = bounded_values([("a", float("nan")), ("b", float("inf")), ("c", 1 / 3)])
    assert found == {"c": 0.333333}


def test_damaged_lines_and_later_kinds_are_passed_over() -> None:
    """What can be read is read; how much could not be is told."""
    lines = [
        b'{"kind":"begin","at":1,"ms":0,"attempt":1,"world_size":1,"of_a_later_version":3}',
        b'{"kind":"weather","at":2}',
        b'{"kind":"step","at":3,"ms":1,"step":"many","samples":1}',
        b'{"kind":"step","at":3,"ms":1,"st',
        b"[]",
        b'{"kind":"step","at":4,"ms":2,"step":1,"samples":8}',
    ]
    read = parse_history(3, b"\n".join(lines))
    assert read is not None
    assert (len(read.steps), read.damaged) == (1, 3)


@pytest.mark.parametrize("data", [b"", b'{"kind":"step","at":4,"ms":2,"step":1,"samples":8}', b"\xff\xfe"])
def test_a_file_without_a_beginning_is_none(data: bytes) -> None:
    """Nobody knows whose steps they are."""
    assert parse_history(1, data) is None


def test_a_newer_format_is_left_alone() -> None:
    """Rather no history than one that is misunderstood."""
    assert parse_history(1, data_of(Journal(replace(BEGIN, version=history.VERSION + 1)))) is None


def test_each_commit_replaces_the_record_s_file(tmp_path: Path) -> None:
    """The directory is made with the first, and other records' files stay as they are."""
    store, journal = LocalStore(tmp_path), Journal(BEGIN)
    assert write_history(store, 1, journal.lines(COMMIT)) == ""
    journal.step(step(1))
    assert write_history(store, 2, journal.lines(COMMIT)) == ""
    journal.step(step(2))
    assert write_history(store, 2, journal.lines(COMMIT)) == ""
    assert [(item.record, len(item.steps)) for item in read_histories(store)] == [(1, 0), (2, 2)]
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == [
        "00000001.jsonl",
        "00000002.jsonl",
    ]


def test_without_lines_nothing_is_written(tmp_path: Path) -> None:
    """A rank other than 0, or a caller without a history, leaves no empty files."""
    assert write_history(LocalStore(tmp_path), 1, ()) == ""
    assert list(tmp_path.iterdir()) == []


def test_very_old_histories_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that thousands of attempts have used does not grow by their histories without end."""
    monkeypatch.setattr(history, "KEPT_RECORDS", 3)
    store, lines = LocalStore(tmp_path), Journal(BEGIN).lines(COMMIT)
    for record in range(1, 6):
        write_history(store, record, lines)
    assert [item.record for item in read_histories(store)] == [3, 4, 5]


def test_a_store_that_refuses_costs_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is committed already: a full disk must not undo that."""

    def full(self: LocalStore, name: str, data: bytes) -> None:
        raise StorageUnavailable(f"{name}: No space left on device")

    monkeypatch.setattr(LocalStore, "put", full)
    told = write_history(LocalStore(tmp_path), 1, Journal(BEGIN).lines(COMMIT))
    assert told.startswith(f"the history {history_name(1)} for reports could not be written: ")
    assert "No space left" in told


def test_a_store_without_histories_has_none(tmp_path: Path) -> None:
    """One that was written before histories were kept, for one."""
    assert read_histories(LocalStore(tmp_path)) == ()


def test_for_a_reader_far_away_it_is_shortened() -> None:
    """First and last stay, and the sums with them."""
    journal = Journal(BEGIN)
    for number in range(500):
        journal.step(step(number))
        journal.save(save(number))
    whole = parse_history(1, data_of(journal))
    assert whole is not None
    few = shortened(whole, 50)
    assert len(few.steps) <= 50
    assert (few.steps[0], few.steps[-1]) == (whole.steps[0], whole.steps[-1])
    assert few.saves[-1].made == 500


def test_object_storage_keeps_histories_as_a_directory_does(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real server: the object of a record is replaced whole, others stay, very old ones go."""
    monkeypatch.setattr(history, "KEPT_RECORDS", 2)
    store, journal = open_store(s3_url), Journal(BEGIN)
    for record in (1, 2, 3):
        assert write_history(store, record, journal.lines(COMMIT)) == ""
    journal.step(step(1))
    assert write_history(store, 3, journal.lines(COMMIT)) == ""
    assert [(item.record, len(item.steps)) for item in read_histories(store)] == [(2, 0), (3, 1)]
