"""The benchmark of the operator itself works, at a size where its numbers mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).with_name("bench_operator.py")
TESTS = BENCH.parents[1]


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    """Jobs train, recover in both ways and are found again; each row of the table has its number."""
    output = tmp_path / "results.json"
    command = [sys.executable, str(BENCH), "--sizes", "5x3", "--strikes", "2", "--settle", "0.5"]
    command += ["--idle", "1", "--starts", "1", "--no-peers", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'fakes'}"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(output.read_text())["sizes"]["5x3"]
    for mode, smaller in (("replace", 0), ("shrink", 2)):
        assert (found[mode]["recoveries"], found[mode]["never"]) == (2, 0)
        assert found[mode]["shrunk"] == smaller
        assert found[mode]["seconds"]["p50"] > 0
        assert found[mode]["requests_per_recovery"]["create pods"] >= 1
        assert set(found[mode]["stages"]) >= {"stopped", "assigned", "all assigned"}
        assert found[mode]["waits"]["API request, a recovery"] > 1
        assert found[mode]["loop_seconds"]["p99"] > 0
    (start,) = found["starts"]
    assert 0 < start["synced"] <= start["all_agents_followed"] + 5
    assert found["memory_mb"]["rss"] > found["memory_mb"]["pss"] > 10
    assert "start -> synced" in result.stdout
