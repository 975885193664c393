"""What the recovery benchmark writes, and when it rather writes nothing; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import bench_recovery
import pytest
import recovery_file
from recovery_cases import Outcome
from recovery_file import Measured

OLD, NEW = Outcome(2.5, 2.5, 3, 0.25), Outcome(1.5, 1.5, 3, 0.25)
EMPTY_PAGE = "before\n<!-- measured -->\n<!-- /measured -->\nafter\n"
Tables = dict[str, dict[str, list[Outcome]]]


class Bench:
    """``bench_recovery.main`` with results that were made up, in a directory of its own."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.output, self.page = directory / "results", directory / "docs" / "page.md"
        self.runs = self.page.with_name("page.json")
        self.page.parent.mkdir()
        self.page.write_text(EMPTY_PAGE)
        self.code = "c0de"
        self.during: Callable[[], None] = lambda: None
        self.found: Tables = {}
        self._patch = patch
        published = replace(bench_recovery.BENCHMARK.published, page=self.page, runs=self.runs)
        patch.setattr(bench_recovery, "BENCHMARK", replace(bench_recovery.BENCHMARK, published=published))
        patch.setattr(recovery_file, "PACKAGES", [])
        patch.setattr(recovery_file, "digest", lambda _: self.code)
        patch.setattr(bench_recovery, "run_all", self._run_all)

    def _run_all(self, *_: object) -> Tables:
        self.during()
        return self.found

    def __call__(self, arguments: str) -> None:
        """``@`` is a blank within one argument."""
        words = [
            *(word.replace("@", " ") for word in arguments.split()),
            "--ranks",
            "2",
            "--output",
            str(self.output),
        ]
        self._patch.setattr("sys.argv", ["bench_recovery.py", *words])
        bench_recovery.main()

    def has(self, results: dict[int, Tables], code: str = "c0de") -> None:
        """That was measured before."""
        self.output.mkdir(exist_ok=True)
        (self.output / "recovery.json").write_text(text(results, code))

    def written(self) -> Measured:
        return recovery_file.parsed((self.output / "recovery.json").read_text())

    def published(self) -> Measured:
        """Beside the page."""
        return recovery_file.parsed(self.runs.read_text())

    def is_published(self) -> bool:
        return self.page.read_text() != EMPTY_PAGE or self.runs.exists()


def text(results: dict[int, Tables], code: str = "c0de") -> str:
    return recovery_file.text(Measured(code, recovery_file.machine(), {}, results))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "arguments", ["--runs 0", "--runs 0 --write-docs", "--runs -1 --add", "--quick --runs 0"]
)
def test_no_runs_are_refused(bench: Bench, arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They would replace what was measured by nothing."""
    bench.has({2: {"rank": {"rtj run": [OLD]}}})
    with pytest.raises(SystemExit):
        bench(arguments)
    assert "--runs: nothing would be measured" in capsys.readouterr().err
    assert bench.written().results


@pytest.mark.parametrize("add", ["", "--add"])
def test_where_all_is_broken_nothing_is_written(bench: Bench, add: str) -> None:
    """No file is made, and none replaced; nor is the page."""
    bench.found = {"rank": {"rtj run": [], "torchrun": []}}
    with pytest.raises(SystemExit, match="nothing was measured"):
        bench(f"--runs 1 --write-docs {add}")
    assert not bench.output.exists()
    assert not bench.is_published()


def test_broken_runs_replace_nothing(bench: Bench) -> None:
    """Without --add, too."""
    bench.has({2: {"rank": {"rtj run": [OLD]}}})
    with pytest.raises(SystemExit, match="nothing was measured"):
        bench("--runs 1")
    assert bench.written().results == {2: {"rank": {"rtj run": [OLD]}}}


def test_what_is_there_can_be_written_into_the_page(bench: Bench) -> None:
    """``--runs 0 --add``. Runs are published as well, as they are kept."""
    bench.has({2: {"rank": {"rtj run": [OLD]}}})
    bench("--runs 0 --add --write-docs")
    assert bench.written().results == {2: {"rank": {"rtj run": [OLD]}}}
    assert "2.50" in bench.page.read_text()
    assert bench.published() == bench.written()


BOTH = {"rtj run": [OLD], "torchrun": [OLD]}


def test_no_table_loses_a_contender_unasked(bench: Bench) -> None:
    """It is refused before anything is measured; other tables can be added to what is there."""
    bench.has({2: {"rank": BOTH}})
    bench.found = {"rank": {"rtj run": [NEW]}}
    with pytest.raises(SystemExit, match=r"lost: torchrun \(rank, 2 ranks\)"):
        bench("--runs 1 --add --scenario rank --only rtj@run")
    assert bench.written().results == {2: {"rank": BOTH}}
    bench.found = {"lost": {"rtj run": [NEW]}}
    bench("--runs 1 --add --scenario lost --only rtj@run")
    assert bench.written().results == {2: {"rank": BOTH, "lost": {"rtj run": [NEW]}}}


def test_one_that_waits_too_long_is_not_forgotten(bench: Bench) -> None:
    """Of slow ones no runs were asked for."""
    bench.has({2: {"hang": BOTH}})
    with pytest.raises(SystemExit, match=r"lost: torchrun \(hang, 2 ranks\)"):
        bench("--runs 1 --slow-runs 0 --add --scenario hang")


def test_a_contender_that_did_not_train_is_named(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Its numbers are gone with the table before, in which it had others beside it."""
    bench.has({2: {"rank": BOTH}})
    bench.found = {"rank": {"rtj run": [NEW], "torchrun": []}}
    bench("--runs 1 --add --scenario rank")
    assert "did not train this time: torchrun (rank, 2 ranks)" in capsys.readouterr().out
    assert bench.written().results == {2: bench.found}


def test_code_that_was_edited_meanwhile_is_none(bench: Bench) -> None:
    """Numbers are kept, but as of unknown code: nothing can be added to them, and the page stays."""
    bench.found = {"rank": {"rtj run": [NEW]}}

    def edit() -> None:
        bench.code = "0ther"

    bench.during = edit
    with pytest.raises(SystemExit, match="edited while it was measured"):
        bench("--runs 1 --write-docs")
    assert bench.written().code == ""
    assert bench.written().results == {2: bench.found}
    assert not bench.is_published()
    with pytest.raises(SystemExit, match=r"other code .*unknown"):
        bench("--runs 1 --add")


def test_what_was_published_is_gone_on_from(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Where results have nothing: a table more, and the page has both."""
    bench.runs.write_text(text({2: {"rank": {"rtj run": [OLD]}}}))
    bench.found = {"lost": {"rtj run": [NEW]}}
    bench("--runs 1 --add --scenario lost --only rtj@run --write-docs")
    assert f"added to what is in {bench.runs}" in capsys.readouterr().out
    assert bench.published().results == {2: {"rank": {"rtj run": [OLD]}, "lost": {"rtj run": [NEW]}}}
    assert bench.published() == bench.written()
    assert all(told in bench.page.read_text() for told in ("2.50", "1.50"))


def test_results_come_before_what_was_published(bench: Bench) -> None:
    """They are newer, and it is theirs that is asked for."""
    bench.runs.write_text(text({2: {"hang": {"rtj run": [OLD]}}}, "0ther"))
    bench.has({2: {"rank": {"rtj run": [OLD]}}})
    bench.found = {"lost": {"rtj run": [NEW]}}
    bench("--runs 1 --add --scenario lost --only rtj@run")
    assert list(bench.written().results[2]) == ["rank", "lost"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param(
            "--scenario lost --only rtj@run", "page.json: it was measured with other code", id="code"
        ),
        pytest.param("--runs 0", "", id="nothing to be mixed with"),
    ],
)
def test_published_runs_of_other_code_stay_alone(bench: Bench, arguments: str, reason: str) -> None:
    """Nothing is measured only to be refused. The page can be written anew from them, as of their code."""
    before = text({2: {"rank": {"rtj run": [OLD]}}}, "0ther")
    bench.runs.write_text(before)
    if reason:
        bench.during = lambda: pytest.fail("it was measured")
        with pytest.raises(SystemExit, match=reason):
            bench(f"{arguments} --add --write-docs")
        assert bench.page.read_text() == EMPTY_PAGE
    else:
        bench(f"{arguments} --add --write-docs")
        assert "2.50" in bench.page.read_text()
    assert bench.runs.read_text() == before


def test_runs_of_no_one_version_never_reach_the_page(bench: Bench) -> None:
    """Nor with --runs 0."""
    bench.has({2: {"rank": {"rtj run": [OLD]}}}, code="")
    with pytest.raises(SystemExit, match=r"other code .*unknown"):
        bench("--runs 0 --add --write-docs")
    assert not bench.is_published()
