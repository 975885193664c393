"""The demo holds what it claims, and its checks can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_operator.cli.demo import STEPS, judge

pytestmark = pytest.mark.timeout(900)


def _losses(output: str) -> dict[str, set[str]]:
    """By step, the losses that attempts printed for it."""
    found: dict[str, set[str]] = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) > 4 and words[1] == "step" and words[3] == "loss":
            found.setdefault(words[2], set()).add(words[4])
    return found


def test_the_demo_holds_and_its_audit_can_fail(tmp_path: Path) -> None:
    """All checks hold, steps done again give the same loss at any size; a lost sample is then noticed."""
    directory = tmp_path / "demo"
    command = [sys.executable, "-m", "resumable_operator.cli.main", "demo", "--dir", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("held") == 7
    assert "FAILED" not in done.stdout
    losses = _losses(done.stdout)
    assert len(losses) == STEPS // 10
    for seen in losses.values():
        assert max(map(float, seen)) - min(map(float, seen)) < 0.002
    trace = next(iter(sorted((directory / "traces").glob("attempt-00001-*"))))
    lines = trace.read_text().splitlines()
    assert json.loads(lines[3])["ids"]
    trace.write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    failed = [what for what, held, _ in judge(directory, 0, STEPS) if not held]
    assert failed == ["the final weights saw samples 0..N-1 in order, each once"]
