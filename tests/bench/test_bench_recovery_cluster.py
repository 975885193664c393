"""The benchmark of recovery on a cluster works, with a single run whose numbers mean nothing."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import bench_recovery_cluster
import pytest
from stages import STAGES

BENCH = Path(__file__).with_name("bench_recovery_cluster.py")
TESTS = BENCH.parents[1]


@pytest.mark.cluster
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    """A rank is killed, once: its time, its split and the writes to the API server are in the results."""
    command = [sys.executable, str(BENCH), "--runs", "1", "--scenario", "rank", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'fakes'}"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (run,) = json.loads((tmp_path / "recovery_cluster.json").read_text())["runs"]["rank"]
    outcome = run["outcome"]
    assert 0 < outcome["seconds"] < 120
    assert math.isclose(sum(outcome["split"][stage] for stage in STAGES), outcome["seconds"], abs_tol=0.01)
    assert run["api_writes"] >= 1
    assert 0 < run["api_seconds"] < outcome["seconds"]
    assert "Aims:" in result.stdout


@pytest.mark.parametrize(
    ("runs", "said"), [("0", "nothing would be measured"), ("1", "nothing was measured")]
)
def test_nothing_is_written_where_nothing_was_measured(
    runs: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No runs are asked for, or all are broken: what had been measured before stays."""
    command = ["bench_recovery_cluster.py", "--runs", runs, "--scenario", "rank", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr(bench_recovery_cluster, "run_all", lambda *_: {"rank": []})
    with pytest.raises(SystemExit) as ended:
        bench_recovery_cluster.main()
    assert said in f"{ended.value} {capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())
