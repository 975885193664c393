"""The benchmark of recovery on a cluster works, with a single run whose numbers mean nothing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import bench_recovery_cluster
import pytest
import recovery_file
from cluster_cases import WORKERS, Found
from cluster_table import SIDE
from stages import STAGES

HERE = Path(__file__).parent
TESTS = HERE.parent
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import bench_recovery_cluster, recovery_file
recovery_file.digest = lambda _: "c0de"  # whatever is edited meanwhile
bench_recovery_cluster.main()
"""
EMPTY_PAGE = "<!-- measured on a cluster -->\n<!-- /measured on a cluster -->\n"


@pytest.mark.cluster
@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_tiny_run_measures_everything(tmp_path: Path) -> None:
    """A rank is killed, once: its time, its split and the writes to the API server are in the results."""
    command = [sys.executable, "-c", PROGRAM, "--runs", "1", "--scenario", "rank", "--output", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'fakes'}"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    measured = recovery_file.parsed((tmp_path / "recovery_cluster.json").read_text(), Found)
    (run,) = measured.results[WORKERS]["rank"][SIDE]
    assert 0 < run.seconds < 120
    assert math.isclose(sum(run.split[stage] for stage in STAGES), run.seconds, abs_tol=0.01)
    assert run.api_writes >= 1
    assert 0 < run.api_seconds < run.seconds
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


class Bench:
    """``main`` with results that were made up."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.page, self.runs = directory / "page.md", directory / "page.json"
        self.page.write_text(EMPTY_PAGE)
        self.codes = ["c0de"]  # as it is asked for again and again; the last one stays
        self._output, self._patch = directory / "results", patch
        usual = bench_recovery_cluster.BENCHMARK
        published = replace(usual.published, page=self.page, runs=self.runs)
        patch.setattr(bench_recovery_cluster, "BENCHMARK", replace(usual, published=published))
        patch.setattr(recovery_file, "PACKAGES", [])
        patch.setattr(recovery_file, "digest", self._digest)

    def _digest(self, _: object) -> str:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def __call__(self, found: dict[str, list[Found]], *arguments: str) -> None:
        command = ["bench_recovery_cluster.py", "--output", str(self._output), *arguments, "--write-docs"]
        self._patch.setattr("sys.argv", command)
        self._patch.setattr(bench_recovery_cluster, "run_all", lambda *_: found)
        bench_recovery_cluster.main()

    def published(self) -> dict[str, Sequence[Found]]:
        """By scenario."""
        measured = recovery_file.parsed(self.runs.read_text(), Found)
        return {name: sides[SIDE] for name, sides in measured.results[WORKERS].items()}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


RANK, GROW = Found(1.25, 1.25, 3, 0.25), Found(0.75, 4.5, 0, 0.25, api_writes=3)


def test_what_was_measured_is_published(bench: Bench) -> None:
    """Page and runs; a scenario is added to those that are there, in their order."""
    bench({"grow": [GROW]}, "--runs", "1", "--scenario", "grow")
    assert bench.published() == {"grow": [GROW]}
    bench({"rank": [RANK]}, "--runs", "1", "--scenario", "rank", "--add")
    assert list(bench.published().items()) == [("rank", [RANK]), ("grow", [GROW])]
    assert all(told in bench.page.read_text() for told in ("1.25", "0.75"))


def test_code_that_was_edited_meanwhile_is_not_published(bench: Bench) -> None:
    """Neither page nor runs."""
    bench.codes = ["c0de", "0ther"]
    with pytest.raises(SystemExit, match="edited while it was measured"):
        bench({"rank": [RANK]}, "--runs", "1")
    assert bench.page.read_text() == EMPTY_PAGE
    assert not bench.runs.exists()


def test_nothing_is_added_to_runs_of_other_code(bench: Bench) -> None:
    """But the page can be written anew from them."""
    bench({"rank": [RANK]}, "--runs", "1")
    bench.page.write_text(EMPTY_PAGE)
    bench.codes = ["0ther"]
    with pytest.raises(SystemExit, match="other code"):
        bench({"grow": [GROW]}, "--runs", "1", "--add")
    assert bench.page.read_text() == EMPTY_PAGE
    bench({}, "--runs", "0", "--add")
    assert "1.25" in bench.page.read_text()
    assert bench.published() == {"rank": [RANK]}
