"""The benchmark of recovery itself works, with so few runs that its numbers mean nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import recovery_file
from recovery_cases import SAVE_EVERY, Outcome
from recovery_file import Measured, machine
from stages import STAGES

from resumable_training.contract.metrics import RECOVERY_STAGES

CODE = "c0de"  # whatever is edited meanwhile
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import bench_recovery, recovery_file
recovery_file.digest = lambda _: {CODE!r}
bench_recovery.main()
"""


@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.timeout(240)
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    """One rank is killed, once: its time, steps redone and both splits are in results and table, and beside
    them what was measured of the same code before."""
    before = Measured(CODE, machine(), {}, {4: {"lost": {"rtj run": [Outcome(2.5, 2.5, 3, 0.25)]}}})
    (tmp_path / "recovery.json").write_text(recovery_file.text(before))
    command = [sys.executable, "-c", PROGRAM, "--runs", "1", "--ranks", "2", "--scenario", "rank", "--add"]
    command += ["--only", "rtj run", "--output", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    found = json.loads((tmp_path / "recovery.json").read_text())
    assert found["runs"]["4"]["lost"]["rtj run"][0]["seconds"] == 2.5
    (outcome,) = found["runs"]["2"]["rank"]["rtj run"]
    assert 0 < outcome["seconds"] < 120
    assert 0 <= outcome["redone"] <= SAVE_EVERY
    assert math.isclose(
        sum(outcome["split"][stage] for stage in STAGES), outcome["after_strike"], abs_tol=0.01
    )
    assert set(outcome["ledger"]) == set(RECOVERY_STAGES)
    assert "rtj run, by the ledger: detect" in result.stdout
    assert "<circle" in (tmp_path / "recovery.svg").read_text()
