"""The benchmark of the operator itself works, at a size where its numbers mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_operator
import pytest

BENCH = Path(__file__).with_name("bench_operator.py")
TESTS = BENCH.parents[1]


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    """Jobs train, recover in both ways at each rate and are found again; rows of the table have numbers."""
    output = tmp_path / "results.json"
    command = [sys.executable, str(BENCH), "--sizes", "8x3", "--strikes", "2", "--settle", "0.5"]
    command += ["--idle", "1", "--starts", "1", "--no-peers", "--rate", "2", "8", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'fakes'}"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(output.read_text())["sizes"]["8x3"]
    assert list(found["rates"]) == ["2", "8"]
    for modes in found["rates"].values():
        recovered(modes["replace"], smaller=0)
        recovered(modes["shrink"], smaller=2)
    (start,) = found["starts"]
    assert 0 < start["synced"] <= start["all_agents_followed"] + 5
    assert found["memory_mb"]["rss"] > found["memory_mb"]["pss"] > 10
    assert "start -> synced" in result.stdout
    assert "2 failures a second:" in result.stdout
    assert result.stdout.count("CPU meanwhile: operator, cores") == 2


def recovered(series: dict[str, Any], smaller: int) -> None:
    """Two strikes, and of how many the job went on smaller."""
    assert (series["recoveries"], series["never"]) == (2, 0)
    assert series["shrunk"] == smaller
    assert series["seconds"]["p50"] > 0
    assert series["requests_per_recovery"]["create pods"] >= 1
    assert set(series["stages"]) >= {"stopped", "assigned", "all assigned"}
    assert series["waits"]["API request, a recovery"] > 1
    assert series["loop_seconds"]["p99"] > 0
    assert set(series["cpu"]) == set(series["cpu_ms_per_recovery"]) >= {"operator", "kube-apiserver"}


@pytest.mark.parametrize(
    ("given", "rates"), [([], [1.0, 4.0]), (["--rate", "2"], [2.0]), (["--rate", "0.5", "8"], [0.5, 8.0])]
)
def test_one_rate_or_several(given: list[str], rates: list[float]) -> None:
    """In the order in which they are named."""
    assert bench_operator.parse(given).rate == rates


@pytest.mark.parametrize("given", [["0"], ["-1"], ["inf"], ["nan"], ["often"], ["4", "1", "4.0"]])
def test_what_is_no_rate_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would ever fail, all at once, or results of one rate would hide those of another."""
    with pytest.raises(SystemExit):
        bench_operator.parse(["--rate", *given])
    assert "--rate" in capsys.readouterr().err


def test_later_strikes_go_on_where_earlier_ones_ended() -> None:
    """A job is struck again only when all others have been."""
    assert bench_operator.in_turn(["a", "b", "c"], 2, skipped=0) == ["a", "b"]
    assert bench_operator.in_turn(["a", "b", "c"], 4, skipped=2) == ["c", "a", "b", "c"]


def test_what_a_recovery_leaves_for_later_is_counted() -> None:
    """A job that goes on smaller trains before its pod is made, and before the failed one is deleted."""
    counts = [(25, 23), (24, 23), (25, 24), (24, 24), (0, 0)]
    seen = iter([{"agents": agents, "followed": followed} for agents, followed in counts])
    simulator = SimpleNamespace(do=lambda _command: next(seen))
    plan = bench_operator.Plan(8, 3, 2, (1.0,), 0.0, 0.0, 0, peers=False)
    bench_operator.Bench(plan, plane=None, simulator=simulator, operator=None).await_whole()
    assert next(seen)["agents"] == 0
