"""The page of measured recoveries takes new numbers between its marks, and keeps all else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bench_recovery
import bench_recovery_cluster
import pytest
import recovery_file
from cluster_cases import Found
from recovery_cases import Outcome
from recovery_file import Measured
from recovery_main import Benchmark

MACHINE = {"cpus": 3, "cpu": "Z80", "torch": "2.0", "python": "3.11.0"}
SPLIT = dict.fromkeys(("detect", "stop", "decide", "start", "rendezvous"), 0.1)
SPLIT |= {"restore": 0.2, "warmup": 0.3, "redo": 0.25, "other": 0.0}
ALONE = Measured("c0de", MACHINE, {"rtj run": "a note"}, {2: {"rank": {"rtj run": [Outcome(1.25, 1.25, 3)]}}})
DEAD = [
    Found(4.5, 4.5, 3, 0.25, split=SPLIT, api_seconds=0.125, api_writes=4, known=2.5, missed=4.75),
    Found(4.75, 4.75, 3, 0.25, split=SPLIT, api_seconds=0.125, api_writes=4, known=2.75, missed=5.25),
    Found(4.5, 4.5, 3, 0.25, split=SPLIT, api_seconds=0.125, api_writes=4, known=2.5),
]
ON_CLUSTER = Measured("c0de", MACHINE, {"operator": ""}, {2: {"dead": {"operator": DEAD}}})


@pytest.mark.parametrize(
    ("benchmark", "measured"),
    [
        pytest.param(bench_recovery.BENCHMARK, ALONE, id="one machine"),
        pytest.param(bench_recovery_cluster.BENCHMARK, ON_CLUSTER, id="cluster"),
    ],
)
def test_new_numbers_replace_old_ones(benchmark: Benchmark, measured: Measured, tmp_path: Path) -> None:
    """Twice written it is as if once; the other benchmark's part stays; the runs lie beside."""
    usual = benchmark.published
    page, runs = tmp_path / "page.md", tmp_path / usual.runs.name
    page.write_text(usual.page.read_text())
    published = replace(usual, page=page, runs=runs)
    published.write(measured)
    first = page.read_text()
    published.write(measured)
    assert page.read_text() == first
    assert first.count(usual.section(measured)) == 1
    before, after = (part_of(usual.page.read_text(), usual.part), part_of(first, usual.part))
    assert first.replace(after, before) == usual.page.read_text()
    assert recovery_file.parsed(runs.read_text(), benchmark.outcome) == measured
    assert runs.with_suffix(".svg").exists() == (usual.draw is not None)


def part_of(page: str, part: str) -> str:
    """The text between its marks."""
    return page.split(f"<!-- {part} -->\n")[1].split(f"\n<!-- /{part} -->")[0]


def test_what_is_told_beside_torchrun() -> None:
    """On what it was measured then, not on what it is written; numbers, notes and aims."""
    text = bench_recovery.BENCHMARK.published.section(ALONE)
    assert text.startswith("On 3 cores, CPU and gloo, torch 2.0, Python 3.11.0; 1 run each")
    assert "1.25" in text
    assert "- rtj run: a note" in text
    assert "Aims:" in text


def test_what_is_told_of_a_cluster() -> None:
    """The distribution, the stages with the API's part, who knew of the silent machine first, the aims."""
    text = bench_recovery_cluster.BENCHMARK.published.section(ON_CLUSTER)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert text.startswith("On 3 cores, CPU and gloo, torch 2.0, Python 3.11.0, shared by")
    assert "3 runs each" in text
    row = "a machine falls silent, its connections stay open 3 0 4.50 4.50 4.50 4.62 4.75 3"
    assert row in lines
    assert any(line.startswith("dead detect 0.10") and "redo 0.25" in line for line in lines)
    assert any(line.endswith("API writes 0.12 (4)") for line in lines)
    assert "ended 2.62 s (2.50 to 2.75) after the strike" in text
    assert "after 5.00 s (4.75 to 5.25), 2.38 s (2.25 to 2.50) later (1 more runs know only one" in text
    assert "is 4 s in this measurement; Kubernetes' default is 50 s" in text
    assert "met          a machine falls silent, its connections stay open <= 5 s: median 4.50" in text
    assert (
        "met          a dead machine is known by its agents before Kubernetes marks its node: 3 of 3" in text
    )


def test_nothing_is_told_of_who_was_first_where_it_is_unknown() -> None:
    """No machine fell silent, or nobody noticed."""
    unknown = replace(ON_CLUSTER, results={2: {"dead": {"operator": [Found(None)]}}})
    assert "grace" not in bench_recovery_cluster.BENCHMARK.published.section(unknown)


@pytest.mark.parametrize(
    "benchmark", [bench_recovery.BENCHMARK, bench_recovery_cluster.BENCHMARK], ids=lambda one: one.name
)
def test_the_page_is_what_the_published_runs_say(benchmark: Benchmark) -> None:
    """Where there are runs beside it. After a change of what is told of them, ``--runs 0 --add --write-docs``
    with an empty ``--output`` writes the page anew."""
    published = benchmark.published
    if published.runs.exists():
        measured = recovery_file.parsed(published.runs.read_text(), benchmark.outcome)
        assert part_of(published.page.read_text(), published.part) == published.section(measured)
