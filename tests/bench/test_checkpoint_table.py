"""The page of measured saves takes new numbers between its two marks; aims that are missed are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bench_checkpoint
import checkpoint_table
import pytest

MB = 1 << 20


def result(way: str, **changed: Any) -> dict[str, Any]:
    """A way that meets every aim, at two ranks."""
    met = {
        "way": way,
        "wrap": "ddp",
        "shape": "many",
        "world_size": 2,
        "megabytes": 96,
        "saves": 4,
        "stall_ms": 3.25,
        "stall": 1.1,
        "first_stall_ms": 90.0,
        "slow_down": 1.05,
        "lost_ms": 8.0,
        "durable_ms": 80.0,
        "written_most": 48 * MB,
        "read": 96 * MB,
        "load_ms": 70.0,
        "extra_bytes": 50 * MB,
        "load_peak": 20 * MB,
    }
    return {**met, **changed}


PLAIN = result("dcp.save", slow_down=None, durable_ms=85.0)


def test_new_numbers_replace_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice written it is as if once; each setting has one head; the rest of the page stays."""
    page = tmp_path / "page.md"
    page.write_text(checkpoint_table.PAGE.read_text())
    monkeypatch.setattr(checkpoint_table, "PAGE", page)
    results = [result(checkpoint_table.OURS), PLAIN]
    checkpoint_table.write(results)
    first = page.read_text()
    assert first.count("ddp, 2 ranks, 96 MB, many") == 1
    assert "3.2" in first
    assert "All aims are met." in first
    assert first.startswith("# What a save costs")
    assert "## Reading it" in first
    checkpoint_table.write(results)
    assert page.read_text() == first


def test_the_large_state_has_a_part_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured alone it leaves the other part as it was, and the other way round."""
    page = tmp_path / "page.md"
    page.write_text(checkpoint_table.PAGE.read_text())
    monkeypatch.setattr(checkpoint_table, "PAGE", page)
    small, large = [result(checkpoint_table.OURS)], [result(checkpoint_table.OURS, megabytes=768)]
    before = page.read_text().partition("<!-- large -->")[0]
    checkpoint_table.write([], large)
    both = page.read_text()
    assert both.startswith(before)
    assert "ddp, 2 ranks, 768 MB, many" in both[len(before) :]
    checkpoint_table.write(small)
    assert page.read_text().endswith(both[len(before) :])


@pytest.mark.parametrize(
    ("asked", "small", "large"),
    [
        ("", 12, [("ddp", 1), ("ddp", 2), ("fsdp", 1), ("fsdp", 2)]),
        ("--wraps ddp --ranks 4", 2, [("ddp", 1), ("ddp", 2)]),
        ("--wraps ddp --ranks", 0, [("ddp", 1), ("ddp", 2)]),
        ("--also-megabytes 0", 12, []),
        ("--megabytes 768 --shapes many", 6, []),
        ("--megabytes 768 --shapes many --ranks 1 4", 4, [("ddp", 2), ("fsdp", 2)]),
        ("--megabytes 768 --shapes fat --wraps ddp", 3, [("ddp", 1), ("ddp", 2)]),
        ("--megabytes 768 --ranks 4 --wraps fsdp", 2, [("fsdp", 1), ("fsdp", 2)]),
        ("--ways torch.save", 12, []),
    ],
)
def test_what_a_run_measures(asked: str, small: int, large: list[tuple[str, int]]) -> None:
    """What was asked for, and of a large state what is not in that, unless it can't be compared."""
    chosen = bench_checkpoint.parser().parse_args(asked.split())
    ways = ["torch.save", checkpoint_table.OURS, checkpoint_table.PLAIN]
    first, second = bench_checkpoint.settings(chosen, ways)
    assert len(first) == small
    assert [(one["wrap"], one["world_size"]) for one, _ in second] == large
    assert all(names == [checkpoint_table.OURS, checkpoint_table.PLAIN] for _, names in second)
    assert {one["megabytes"] for one, _ in second} <= {768}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--ways resumabel", "no resumabel; there are: torch.save, "),
        ("--ranks --also-megabytes 0", "nothing would be measured"),
        ("--ranks --ways torch.save", "nothing would be measured"),
        ("--saves 1", "at least 2"),
    ],
)
def test_what_measures_nothing_is_refused(asked: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would replace what was measured by nothing, and say that all aims are met."""
    with pytest.raises(SystemExit):
        bench_checkpoint.read(asked.split(), ["torch.save", checkpoint_table.OURS])
    assert said in capsys.readouterr().err


def test_a_way_is_compared_with_its_own_size() -> None:
    """Not with what the other of two states took."""
    large = {"megabytes": 768, "durable_ms": 600.0}
    results = [
        result(checkpoint_table.OURS),
        PLAIN,
        result(checkpoint_table.OURS, **large),
        result("dcp.save", **{**large, "durable_ms": 500.0}),
    ]
    assert checkpoint_table.judge(results) == ["ddp x 2, 768 MB, many: durable 1.20 x its aim"]


def test_times_of_two_saves_are_not_judged() -> None:
    """That is said, so that nobody takes them for good; sizes are the same at each save."""
    few = result(checkpoint_table.OURS, saves=2, stall=2.3, durable_ms=900.0, read=192 * MB)
    assert checkpoint_table.judge([few, PLAIN]) == [
        "ddp x 2, 96 MB, many: stall, slow-down, durable not judged, since 2 saves are too few",
        "ddp x 2, 96 MB, many: bytes read 1.82 x its aim",
    ]


@pytest.mark.parametrize(("asked", "saves"), [("", 4), ("--saves 9", 4), ("--saves 2", 2)])
def test_a_large_state_is_saved_just_often_enough(asked: str, saves: int) -> None:
    """To be judged: its first save is not; and no more often than was asked for."""
    chosen = bench_checkpoint.parser().parse_args(asked.split())
    _, large = bench_checkpoint.settings(chosen, [checkpoint_table.OURS])
    assert {one["saves"] for one, _ in large} == {min(saves, checkpoint_table.LEAST_SAVES + 1)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"stall": 1.38}, ["stall 1.20 x"]),
        ({"slow_down": 1.32}, ["slow-down 1.20 x"]),
        ({"slow_down": None}, []),
        ({"durable_ms": 170.0}, ["durable 2.00 x"]),
        ({"written_most": 96 * MB}, ["bytes written 1.82 x"]),
        ({"read": 192 * MB}, ["bytes read 1.82 x"]),
        ({"extra_bytes": 224 * MB, "load_peak": 224 * MB}, ["memory 2.00 x", "memory while loading 2.00 x"]),
    ],
)
def test_aims_that_are_missed_are_named(changed: dict[str, Any], said: list[str]) -> None:
    """With the setting, and by how much; another way's numbers are only compared with."""
    told = checkpoint_table.judge([result(checkpoint_table.OURS, **changed), PLAIN])
    assert told == [f"ddp x 2, 96 MB, many: {one} its aim" for one in said]
