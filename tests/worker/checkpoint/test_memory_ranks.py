"""Ranks of the next attempt resume from their worker's memory: at any size, bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from campaign_programs import Home, a_home
from memory_programs import broken_run, doubting_run, fallen_back_run, loading_run, saving_run, short_run
from rank_programs import run_ranks
from test_ranks import assert_same

from resumable_training.checkpoint.recall import short_of


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with a_home(monkeypatch) as home:
        yield home


def attempt(home: Home, number: int, world_size: int, program: Any, directory: Path, *more: Any) -> list[Any]:
    home.begin(number, world_size)
    try:
        arguments = (str(directory / "store"), home.path, number, *more)
        return run_ranks(world_size, program, directory, *arguments)
    finally:
        home.end(number)


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("fsdp", 2, 2), ("fsdp", 2, 3), ("ddp", 2, 1), ("plain", 1, 2)]
)
def test_shards_come_from_memory_at_any_size(
    kind: str, before: int, after: int, tmp_path: Path, home: Home
) -> None:
    """With not one byte of them from storage, and the same bits as from there."""
    expected = attempt(home, 1, before, saving_run, tmp_path, kind, 3)[0][0]
    kind = "ddp" if kind == "plain" else "plain" if after == 1 else kind
    for values, step, memory, storage in attempt(home, 2, after, loading_run, tmp_path, kind, ".distcp"):
        assert_same(values, expected)
        assert (step, storage) == (3, 0)
        assert memory > 0


@pytest.mark.parametrize("program", [doubting_run, broken_run])
def test_memory_that_one_rank_has_no_use_for(program: Any, tmp_path: Path, home: Home) -> None:
    """What is not right where it lies is handed on as a copy; what was lost while it was read, read again."""
    expected = attempt(home, 1, 2, saving_run, tmp_path, "ddp", 2)[0][0]
    for values, step, memory, storage in attempt(home, 2, 2, program, tmp_path):
        assert_same(values, expected)
        assert (step, storage) == (2, 0)
        assert memory > 0


def test_memory_alone_is_no_resume_point(tmp_path: Path, home: Home) -> None:
    """Where storage can't say which checkpoint is the newest on the chain, nobody can tell."""
    attempt(home, 1, 1, saving_run, tmp_path, "plain", 1)
    for blind in ("records/", "manifest.json", ".metadata"):
        (told,) = attempt(home, 2, 1, loading_run, tmp_path, "plain", blind)
        assert "it hangs" in told
    ((_, step, memory, storage),) = attempt(home, 2, 1, loading_run, tmp_path, "plain", "")
    assert (step, storage) == (1, 0)
    assert memory > 0


def test_the_next_attempt_copies_into_the_same_memory(tmp_path: Path, home: Home) -> None:
    """Each rank takes the arena of its place, and what is saved from it is resumed in turn."""
    first = attempt(home, 1, 2, saving_run, tmp_path, "ddp", 1)
    second = attempt(home, 2, 2, saving_run, tmp_path, "ddp", 1)
    assert [arena for _, arena in first] == [arena for _, arena in second]
    (values, step, memory, storage), *_ = attempt(home, 3, 2, loading_run, tmp_path, "ddp", ".distcp")
    assert_same(values, second[0][0])
    assert (step, storage) == (2, 0)
    assert memory > 0


def test_what_is_remembered_makes_room_for_a_restore(tmp_path: Path, home: Home) -> None:
    """Where both do not fit it is given up before anything is read, and said: all comes from storage."""
    expected = attempt(home, 1, 2, saving_run, tmp_path, "ddp", 2)[0][0]
    found = attempt(home, 2, 2, short_run, tmp_path)
    for values, memory, storage, held, said in found:
        assert_same(values, expected)
        assert (memory, held) == (0, 0)
        assert storage > 0
        assert [line for line in said if "that is given up, and all is read from storage" in line]
    ((_, step, memory, _), *_) = attempt(home, 3, 2, loading_run, tmp_path, "ddp", ".distcp")
    assert step == 3
    assert memory > 0


def test_no_memory_is_held_where_saves_are_synchronous(tmp_path: Path, home: Home) -> None:
    """Neither by the rank that has taken it over nor by the agent."""
    attempt(home, 1, 2, saving_run, tmp_path, "ddp", 1)
    assert attempt(home, 2, 2, fallen_back_run, tmp_path) == [(0, 0, 0)] * 2


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ([("a", 70 << 20)], 0),
        ([("a", 60 << 20)], (64 << 20) + 6000 - (60 << 20)),
        ([("a", None)], 0),  # nobody knows
        ([("a", None), ("a", 1000)], 2 * (64 << 20) + 6000 - 1000),
        ([("a", 100 << 20), ("b", 0)], 0),  # another machine's trouble
        ([("a", 200 << 20), ("a", 100 << 20), ("b", 0)], 2 * (64 << 20) + 4000 - (100 << 20)),
    ],
)
def test_room_for_the_shares_of_a_machine(told: list[tuple[str, int | None]], missing: int) -> None:
    """Of all ranks that are on it, by the least that one of them sees free."""
    assert short_of(6000, told, 0) == missing
