"""A recovery benchmark that is taken in pieces: what is kept, what is replaced, and what is never mixed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import bench_recovery
import bench_recovery_cluster
import pytest
import recovery_file
from cluster_cases import Found
from recovery_cases import Outcome
from recovery_file import Measured, Mixed
from recovery_table import Results

MACHINE = {"cpus": 2, "cpu": "Z80", "python": "3.11.7", "torch": "2.14.1"}
OLD, NEW = Outcome(2.0, 2.0, 3, 0.25), Outcome(1.0, 1.0, 3, 0.25, split={"detect": 1.0})


def measured(
    results: Results, code: str = "c0de", notes: Mapping[str, str] | None = None, **absent: str
) -> Measured:
    return Measured(code, MACHINE, notes or {}, results, absent)


def test_what_is_written_is_read_again() -> None:
    """All runs with all that is known of each; a run that never recovered, too."""
    before = measured(
        {2: {"rank": {"rtj run": [NEW, Outcome(None)], "torchrun": [OLD]}}},
        notes={"a": "b"},
        dlrover="no pip",
    )
    assert recovery_file.parsed(recovery_file.text(before)) == before
    on_cluster = measured({2: {"dead": {"operator": [Found(4.5, 4.5, 3, 0.25, api_writes=2, known=2.5)]}}})
    assert recovery_file.parsed(recovery_file.text(on_cluster), Found) == on_cluster


def test_a_run_is_a_line() -> None:
    """Of two versions of a file it can be seen what is new; what says nothing is left out, and times are to
    the millisecond."""
    exact = Outcome(1.23456789, 1.23456789, step_seconds=0.25, split={"stop": 0.1 + 0.2})
    before = measured({2: {"rank": {"rtj run": [OLD, exact, Outcome(None)]}}})
    lines = recovery_file.text(before).splitlines()
    assert [line.strip(" ,") for line in lines if '"seconds"' in line] == [
        '{"seconds": 2.0, "after_strike": 2.0, "redone": 3, "step_seconds": 0.25}',
        '{"seconds": 1.235, "after_strike": 1.235, "step_seconds": 0.25, "split": {"stop": 0.3}}',
        '{"seconds": null}',
    ]
    other = measured({2: {"rank": {"rtj run": [OLD, NEW, Outcome(None)]}}})
    assert len(set(lines) - set(recovery_file.text(other).splitlines())) == 1
    assert recovery_file.text(recovery_file.parsed("\n".join(lines))).splitlines() == lines


def test_pieces_come_together() -> None:
    """Other scenarios and numbers of ranks stay, in the order of one run; a table is one run's as a whole."""
    before = measured({2: {"lost": {"rtj run": [OLD]}, "rank": {"rtj run": [OLD], "torchrun": [OLD]}}})
    piece = measured({4: {"rank": {"rtj run": [NEW]}}, 2: {"rank": {"rtj run": [NEW]}}})
    both = before.with_added(piece)
    assert both.results == {
        2: {"rank": {"rtj run": [NEW]}, "lost": {"rtj run": [OLD]}},
        4: {"rank": {"rtj run": [NEW]}},
    }
    assert list(both.results) == [2, 4]
    assert list(both.results[2]) == ["rank", "lost"]
    assert both.with_added(piece).results == both.results


def test_the_newer_note_of_a_contender_holds() -> None:
    """And none of those that no table has: it trained in none, or its table is another one's now."""
    notes = {"rtj run": "old", "torchrun": "of the table that goes", "nvrx": "of both"}
    before = measured(
        {2: {"rank": {"rtj run": [OLD], "torchrun": [OLD]}, "lost": {"nvrx": [OLD]}}}, notes=notes
    )
    found = {"rtj run": [NEW], "never": []}
    piece = measured({2: {"rank": found}}, notes={"rtj run": "new", "never": "trained", "other": "not asked"})
    both = before.with_added(piece)
    assert both.notes == {"rtj run": "new", "nvrx": "of both"}
    assert both.told() == ["rtj run: new", "nvrx: of both"]


def test_who_was_absent_may_take_part_later() -> None:
    """Then nobody reads that it could not; who still could not is told with the newest reason."""
    before = measured({2: {"rank": {"rtj run": [OLD]}}}, dlrover="pip failed", nvrx="pip failed", ft="old")
    piece = measured(
        {2: {"lost": {"dlrover": [NEW]}}}, notes={"dlrover": "by hand", "ft": ""}, nvrx="no wheel"
    )
    both = before.with_added(piece)
    assert both.told() == ["dlrover: by hand", "nvrx did not take part: no wheel"]
    assert both.with_added(measured({}, dlrover="pip failed")).told() == both.told()


@pytest.mark.parametrize(
    ("new", "lost"),
    [
        pytest.param({2: {"rank": ["rtj run"]}}, ["torchrun (rank, 2 ranks)"], id="one"),
        pytest.param({2: {"rank": ["torchrun", "new", "rtj run"]}}, [], id="none"),
        pytest.param({2: {"rank": []}}, [], id="nothing is measured, nothing replaced"),
        pytest.param({4: {"rank": ["new"]}, 2: {"hang": ["new"]}}, [], id="other tables"),
        pytest.param(
            {2: {"lost": ["new"]}}, ["rtj run (lost, 2 ranks)"], id="without one that never trained"
        ),
    ],
)
def test_who_is_lost_with_a_table_is_known(new: dict[int, dict[str, list[str]]], lost: list[str]) -> None:
    """Before it is measured, by those who are to be in the new one."""
    sides = {"rtj run": [OLD], "torchrun": [OLD]}
    before = measured({2: {"rank": sides, "lost": {"rtj run": [OLD], "nvrx": []}}})
    assert before.lost_to(new) == lost


def test_a_piece_without_runs_replaces_nothing() -> None:
    """A contender that did not train leaves what had been measured."""
    before = measured({2: {"rank": {"rtj run": [OLD]}}})
    broken = measured({2: {"rank": {"rtj run": [], "torchrun": []}, "lost": {"rtj run": []}}, 4: {}})
    assert before.with_added(broken).results == before.results


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param({"code": "0ther"}, r"other code .*c0de, now 0ther.*without --add", id="code"),
        pytest.param(
            {"machine": {**MACHINE, "cpus": 8}}, r"another machine: cpus 2, .*now cpus 8", id="machine"
        ),
        pytest.param({"machine": {**MACHINE, "cpu": "6502"}}, r"cpu Z80, .*now .*cpu 6502", id="cpu"),
    ],
)
def test_nothing_is_mixed(other: dict[str, object], words: str) -> None:
    """Numbers of other code or of another machine never stand in one file."""
    before = measured({})
    with pytest.raises(Mixed, match=words):
        before.with_added(replace(before, **other))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"machine": {"cpus": 2}, "aims": [], "runs": {"rank": [{"outcome": {}}]}}', id="none"),
        pytest.param('{"code": "c0de", "machine": {"cpus": 2}, "notes": ["a: b"], "runs": {}}', id="notes"),
    ],
)
def test_results_of_unknown_code_are_not_added_to(text: str) -> None:
    """A file from before the code was noted, or notes by contender."""
    with pytest.raises(Mixed, match="unknown"):
        recovery_file.parsed(text).with_added(measured({}))


def test_code_that_was_edited_is_not_added_to() -> None:
    """Not even what is of no one version either."""
    edited = measured({2: {"rank": {"rtj run": [OLD]}}}, code="")
    with pytest.raises(Mixed, match="unknown"):
        edited.with_added(edited)


def test_every_file_of_the_code_counts(tmp_path: Path) -> None:
    """A change, a new file and a new name are other code; what Python compiles or an editor hides is not."""
    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "a.py").write_text("a")
    found = [recovery_file.digest([package])]
    (package / "__pycache__" / "a.pyc").write_text("compiled")
    (package / ".a.py.swp").write_text("edited")
    (package / ".cache").mkdir()
    (package / ".cache" / "b.py").write_text("kept")
    assert recovery_file.digest([package]) == found[0]
    (package / "a.py").write_text("b")
    found.append(recovery_file.digest([package]))
    (package / "data.json").write_text("{}")
    found.append(recovery_file.digest([package]))
    (package / "a.py").rename(package / "b.py")
    found.append(recovery_file.digest([package]))
    assert len(set(found)) == 4
    alone = tmp_path / "body.py"
    found.append(recovery_file.digest([package, alone]))  # it is not there
    for text in ("SAVE_EVERY = 5", "SAVE_EVERY = 50"):
        alone.write_text(text)
        found.append(recovery_file.digest([package, alone]))
    assert len(set(found)) == 6


HERE = Path(recovery_file.__file__).parent
BED, FAKES = HERE.parent / "bed", HERE.parent / "fakes"
TELLING = {f"recovery_{name}" for name in ("docs", "file", "main", "plot", "table")} | {"cluster_table"}


@pytest.mark.parametrize(
    ("begin", "method"),
    [
        pytest.param(
            ["bench_recovery", *(path.stem for path in HERE.glob("train_*.py"))],
            bench_recovery.METHOD,
            id="one machine",
        ),
        pytest.param(
            ["bench_recovery_cluster", "train_with_library"], bench_recovery_cluster.METHOD, id="cluster"
        ),
    ],
)
def test_how_it_is_measured_is_part_of_the_code(begin: list[str], method: list[Path]) -> None:
    """All of ours that the benchmark and its scripts import, but for what only tells of results."""
    found: set[Path] = set()
    due = {HERE / f"{name}.py" for name in begin}
    while due:
        path = due.pop()
        found.add(path)
        if path.is_file():
            due |= {one for name in imports(path) - TELLING if (one := ours(name)) is not None} - found
    assert found == set(method)


def ours(module: str) -> Path | None:
    """Where a module of the benchmarks, of the fakes or of the bed is; of the bed as a whole."""
    if module == BED.name:
        return BED
    return next((path for folder in (HERE, FAKES) if (path := folder / f"{module}.py").exists()), None)


def imports(path: Path) -> set[str]:
    """Names of modules, of the first part."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in parts}
