"""Rank 0's output on the screen: every line once, with attempt and rank in front."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable_operator.cli import rank_output
from resumable_operator.cli.rank_output import RankOutput


@pytest.fixture
def output(tmp_path: Path) -> RankOutput:
    return RankOutput(lambda attempt: tmp_path / f"{attempt}.log")


def write(tmp_path: Path, attempt: int, text: str) -> None:
    with (tmp_path / f"{attempt}.log").open("a") as file:
        file.write(text)


def test_lines_as_they_come(tmp_path: Path, output: RankOutput) -> None:
    """Only whole lines are shown, each once; before the file is there, nothing."""
    assert output.poll(1) == []
    write(tmp_path, 1, "one\ntw")
    assert output.poll(1) == ["[1:0] one"]
    write(tmp_path, 1, "o\n")
    assert output.poll(1) == ["[1:0] two"]
    assert output.poll(1) == []


def test_last_line_without_end(tmp_path: Path, output: RankOutput) -> None:
    """What a killed rank had begun to write is shown when its attempt is over."""
    write(tmp_path, 1, "one\nhalf")
    assert output.poll(1) == ["[1:0] one"]
    write(tmp_path, 2, "next\n")
    assert output.poll(2) == ["[1:0] half", "[2:0] next"]
    write(tmp_path, 2, "rest")
    assert output.end() == ["[2:0] rest"]


def test_repeated_output_is_shown_once(tmp_path: Path, output: RankOutput) -> None:
    """The same traceback in every attempt is printed once, and counted after that."""
    for attempt in (1, 2, 3):
        write(tmp_path, attempt, "Traceback\nImportError\n")
    assert output.poll(3) == [
        "[1:0] Traceback",
        "[1:0] ImportError",
        "[2:0] (2 lines, the same as before)",
    ]
    assert output.end() == ["[3:0] (2 lines, the same as before)"]


def test_output_that_differs_later(tmp_path: Path, output: RankOutput) -> None:
    """From the first line that differs on all is shown, also lines that were seen before."""
    write(tmp_path, 1, "hello\nstep 1\nstep 2\n")
    write(tmp_path, 2, "hello\nresumed\nstep 2\n")
    output.poll(1)
    assert output.poll(2) == ["[2:0] (1 line as before)", "[2:0] resumed", "[2:0] step 2"]


def test_attempt_that_was_cut_short(tmp_path: Path, output: RankOutput) -> None:
    """An attempt that printed less than the one before does not make the next one's output new."""
    for attempt, text in ((1, "a\nb\n"), (2, ""), (3, "a\nb\n")):
        write(tmp_path, attempt, text)
    output.poll(1)
    assert output.poll(3) == []
    assert output.end() == ["[3:0] (2 lines, the same as before)"]


def test_continued_run_shows_only_new_output(tmp_path: Path, output: RankOutput) -> None:
    """What earlier runs printed is left out."""
    write(tmp_path, 3, "old\n")
    output.start_at(3)
    assert output.poll(3) == []
    write(tmp_path, 4, "new\n")
    assert output.poll(4) == ["[4:0] new"]


def test_flood_is_cut(tmp_path: Path, output: RankOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that prints more than can be shown is shown in part, and it is said how much is missing."""
    monkeypatch.setattr(rank_output, "BYTES_AT_ONCE", 1000)
    monkeypatch.setattr(rank_output, "KEPT_AFTER_SKIP", 100)
    write(tmp_path, 1, "123456789\n" * 500)
    shown = output.poll(1)
    assert "4900 bytes left out" in shown[0]
    assert len(shown) == 11
