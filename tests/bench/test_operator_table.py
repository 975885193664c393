"""What the operator's benchmark tells of its numbers, and where it writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import operator_table
import pytest
from measured_page import replace_measured

MODE = {
    "seconds": {"p50": 0.5, "p99": 1.25},
    "requests_per_recovery": {"create pods": 1.0, "get secrets": 0.5},
    "stages": {"stopped": {"p50": 0.1, "p99": 0.2}},
    "waits": {"queue, a recovery": 2.0},
    "loop_seconds": {"p50": 0.01, "p99": 0.02},
    "cpu": {"operator": 0.5, "kube-apiserver": 0.75, "etcd": 0.25},
    "cpu_ms_per_recovery": {"operator": 40.0, "kube-apiserver": 120.0},
}
BUSY = {**MODE, "seconds": {"p50": 1.0, "p99": 2.5}, "cpu": {**MODE["cpu"], "operator": 0.7}}
SMALL = {
    "rates": {"1": {"replace": MODE, "shrink": MODE}, "4": {"replace": BUSY, "shrink": MODE}},
    "starts": [{"synced": 4.0, "all_jobs_seen": 9.0}, {"synced": 2.0, "all_jobs_seen": 10.0}],
    "cold_start": {"seconds": 3.0},
}
LARGE = {
    **SMALL,
    "rates": {"1": {"replace": BUSY, "shrink": MODE}, "4": {"replace": BUSY, "shrink": BUSY}},
    "cold_start": {"seconds": 12.0},
}


def told(sizes: dict[str, Any]) -> list[str]:
    """Rows without the space between columns."""
    return [" ".join(line.split()) for line in operator_table.lines(sizes)]


def test_each_size_has_a_column_and_the_growth_is_from_the_first_to_the_last() -> None:
    """Sums are made, the best start is told as one, and nobody asked for peers: no row of theirs."""
    rows = told({"2x2": SMALL, "9x9": LARGE})
    assert rows[0] == "2x2 9x9 growth"
    assert "requests a recovery, replaced 1.50 1.50 1.0x" in rows
    assert "start -> synced, s 2.00 2.00 1.0x" in rows
    assert "all jobs from nothing, s 3.00 12.00 4.0x" in rows
    assert not any("naive kopf" in line for line in rows)


def test_each_rate_has_its_own_rows() -> None:
    """Recoveries and CPU under the name of the rate that they were measured at; what has none comes once."""
    rows = told({"2x2": SMALL, "9x9": LARGE})
    first, second = rows.index("1 failure a second:"), rows.index("4 failures a second:")
    at_one, at_four = rows[first:second], rows[second:]
    assert "pod failed -> all assigned, replaced: p50 s 0.50 1.00 2.0x" in at_one
    assert "pod failed -> all assigned, replaced: p50 s 1.00 1.00 1.0x" in at_four
    assert "CPU meanwhile: operator, cores 0.50 0.60 1.2x" in at_one
    assert "CPU meanwhile: operator, cores 0.60 0.70 1.2x" in at_four
    assert "with etcd and all else, cores 1.60 1.70 1.1x" in at_four
    assert sum("start -> synced" in row for row in rows) == 1


def test_columns_stand_below_each_other() -> None:
    """Rows of a rate are set in, their numbers are not."""
    table = operator_table.lines({"2x2": SMALL, "9x9": LARGE})
    assert {len(line) for line in table if not line.endswith(":")} == {len(table[0])}


def test_a_rate_that_one_size_lacks_is_told_of_the_other() -> None:
    """A dash stands where nothing was measured."""
    lacks = {**SMALL, "rates": {"1": SMALL["rates"]["1"]}}
    rows = told({"2x2": lacks, "9x9": LARGE})
    assert "pod failed -> all assigned, replaced: p50 s - 1.00 -" in rows


def test_where_time_and_cpu_went_is_told_of_each_series() -> None:
    """Of each size, rate and mode."""
    text = "\n".join(operator_table.ways({"2x2": SMALL}))
    for rate in ("1", "4"):
        for mode in operator_table.MODES:
            assert f"requests per recovery, 2x2, {rate} a second, {mode}: " in text
            assert f"\n2x2, {rate} a second, {mode}: from failure until" in text
    assert "kube-apiserver 120" in text


def test_one_size_has_no_growth() -> None:
    """A single column is not compared with itself."""
    assert operator_table.lines({"2x2": SMALL})[0].split() == ["2x2"]


def test_each_table_has_its_own_part_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own table and the one beside a peer stand side by side; text around them stays."""
    page = tmp_path / "page.md"
    page.write_text(operator_table.PAGE.read_text())
    monkeypatch.setattr(operator_table, "PAGE", page)
    heading = page.read_text().splitlines()[0]
    operator_table.write(["own 1"], 50, [4.0])
    operator_table.write(["beside 2"], 50, [2.0], "jobset")
    operator_table.write(["own 3"], 50, [0.5, 4.0])
    text = page.read_text()
    assert ("own 1" in text, "beside 2" in text, "own 3" in text) == (False, True, True)
    assert text.splitlines()[0] == heading
    assert "50 failures of each kind, 2 a second on average" in text
    assert "50 failures of each kind at each rate, 0.5 and 4 a second on average" in text


def test_a_page_without_the_part_is_left_alone(tmp_path: Path) -> None:
    """It is said which marks are missing, instead of a page cut off in the middle."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured -->\nold\n")
    with pytest.raises(ValueError, match="/measured"):
        replace_measured(page, "new")
    assert page.read_text().endswith("old\n")
