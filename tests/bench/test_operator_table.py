"""What the operator's benchmark tells of its numbers, and where it writes them."""

from __future__ import annotations

from pathlib import Path

import operator_table
import pytest
from measured_page import replace_measured

MODE = {
    "seconds": {"p50": 0.5, "p99": 1.25},
    "requests_per_recovery": {"create pods": 1.0, "get secrets": 0.5},
}
SMALL = {
    "replace": MODE,
    "shrink": MODE,
    "starts": [{"synced": 4.0, "all_jobs_seen": 9.0}, {"synced": 2.0, "all_jobs_seen": 10.0}],
    "cold_start": {"seconds": 3.0},
}
LARGE = {**SMALL, "cold_start": {"seconds": 12.0}}


def test_each_size_has_a_column_and_the_growth_is_from_the_first_to_the_last() -> None:
    """Sums are made, the best start is told as one, and nobody asked for peers: no row of theirs."""
    told = [" ".join(line.split()) for line in operator_table.lines({"2x2": SMALL, "9x9": LARGE})]
    assert told[0] == "2x2 9x9 growth"
    assert "requests a recovery, replaced 1.50 1.50 1.0x" in told
    assert "start -> synced, s 2.00 2.00 1.0x" in told
    assert "all jobs from nothing, s 3.00 12.00 4.0x" in told
    assert not any("naive kopf" in line for line in told)


def test_one_size_has_no_growth() -> None:
    """A single column is not compared with itself."""
    assert operator_table.lines({"2x2": SMALL})[0].split() == ["2x2"]


def test_each_table_has_its_own_part_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own table and the one beside a peer stand side by side; text around them stays."""
    page = tmp_path / "page.md"
    page.write_text(operator_table.PAGE.read_text())
    monkeypatch.setattr(operator_table, "PAGE", page)
    heading = page.read_text().splitlines()[0]
    operator_table.write(["own 1"], 50, 4.0)
    operator_table.write(["beside 2"], 50, 2.0, "jobset")
    operator_table.write(["own 3"], 50, 4.0)
    text = page.read_text()
    assert ("own 1" in text, "beside 2" in text, "own 3" in text) == (False, True, True)
    assert text.splitlines()[0] == heading


def test_a_page_without_the_part_is_left_alone(tmp_path: Path) -> None:
    """It is said which marks are missing, instead of a page cut off in the middle."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n")
    with pytest.raises(ValueError, match="/measured"):
        replace_measured(page, "new")
    assert page.read_text().endswith("old\n")
