"""What the recovery benchmarks do around their measuring: what came before, file, tables, page.

Their options are the same; with --add they go on from what was measured of the same code before, in results
or, where nothing is there, as it was published in docs/.
"""

from __future__ import annotations

import argparse
import compileall
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import recovery_file
from recovery_cases import Outcome, Scenario
from recovery_docs import Published
from recovery_file import Measured
from recovery_table import Aim, Results

RESULTS = Path(__file__).parent / "results"
QUICK_RUNS, RUNS = 2, 10
Names = Mapping[int, Mapping[str, Iterable[str]]]  # of contenders, by ranks and scenario


@dataclass(frozen=True)
class Benchmark:
    """``name``: of its files in results; ``method``: files and directories that decide what is measured, and
    how, beside the packages themselves; ``scenarios``: in the order of its tables; ``outcome``: what it takes
    down of a run.
    """

    name: str
    method: Sequence[Path]
    scenarios: Sequence[Scenario]
    outcome: type[Outcome]
    tables: Callable[[Results], list[str]]
    aims: Callable[[Results], list[Aim]]
    published: Published

    def digest(self) -> str:
        """Of all that is measured, as it is now."""
        return recovery_file.digest((*recovery_file.PACKAGES, *self.method))

    def file(self, directory: Path) -> Path:
        return directory / f"{self.name}.json"


@dataclass(frozen=True)
class Begun:
    """``before``: what is added to; ``now``: what is measured, still without results."""

    benchmark: Benchmark
    options: argparse.Namespace
    before: Measured
    now: Measured
    at: float  # of the monotonic clock


def add_options(parser: argparse.ArgumentParser, scenarios: Sequence[Scenario]) -> None:
    names = [scenario.name for scenario in scenarios]
    parser.add_argument("--runs", type=int, default=RUNS, help="of each scenario and contender [%(default)s]")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs")
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep all other tables of the results, or of docs/ where there are none, if they are of the same"
        " code and machine",
    )
    parser.add_argument("--write-docs", action="store_true", help="put tables and runs into docs/")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory for the results")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """As ``parse_args``. Ends here if nothing would be measured or written."""
    options = parser.parse_args()
    if options.runs < (0 if options.add else 1):
        parser.error("--runs: nothing would be measured; 0 goes with --add alone, to write what is there")
    if options.quick:
        options.runs = min(options.runs, QUICK_RUNS)
    return options


def begin(
    benchmark: Benchmark,
    options: argparse.Namespace,
    planned: Names,
    notes: Mapping[str, str],
    absent: Mapping[str, str] | None = None,
) -> Begun:
    """Before an hour is spent in vain: ends here if what is there can't be added to.

    ``planned``: who will be measured; ``notes``, ``absent``: as of ``Measured``.
    """
    now = Measured(benchmark.digest(), recovery_file.machine(), notes, {}, absent or {})
    before = _earlier(benchmark, options, now, planned) if options.add else now
    if not options.runs:  # what is there stays of the code and machine that it is of
        now = replace(before, results={})
    for package in recovery_file.PACKAGES:  # as in the images: no start is to compile what was just edited
        compileall.compile_dir(package, quiet=2)
    return Begun(benchmark, options, before, now, time.monotonic())


def _earlier(benchmark: Benchmark, options: argparse.Namespace, now: Measured, planned: Names) -> Measured:
    """All that was measured before, or nothing. A table is not to lose anybody by what is ``planned``."""
    own = benchmark.file(options.output)
    path = next((one for one in (own, benchmark.published.runs) if one.exists()), None)
    if path is None:
        return now
    before = recovery_file.parsed(path.read_text(), benchmark.outcome)
    try:
        new = now if options.runs else replace(before, results={})
        found = before.with_added(new, benchmark.scenarios)
    except recovery_file.Mixed as mixed:
        raise SystemExit(f"--add: {path}: {mixed}") from mixed
    if lost := before.lost_to(planned):
        raise SystemExit(
            f"--add: a table is of one run, and these would be lost: {', '.join(lost)}. Measure them too"
            " (--only, --peers), or measure apart: with another --output, and without --add"
        )
    print(f"added to what is in {path}", flush=True)
    return found


def end(begun: Begun, results: Results) -> None:
    """Tells all that there is now and writes it down. Ends here, with the reason, where it can't go on."""
    benchmark, options = begun.benchmark, begun.options
    everything = begun.before.with_added(replace(begun.now, results=results), benchmark.scenarios)
    if not everything.results:
        raise SystemExit("nothing was measured: no file is written")
    changed = bool(options.runs) and benchmark.digest() != begun.now.code
    text = recovery_file.text(replace(everything, code="") if changed else everything)
    everything = recovery_file.parsed(text, benchmark.outcome)  # what is told is what is kept
    print("\n".join(_told(benchmark, everything)))
    path = benchmark.file(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if benchmark.published.draw is not None:
        path.with_suffix(".svg").write_text(benchmark.published.draw(everything.results))
    if lost := begun.before.lost_to(_trained(results)):
        print(f"\nnot in the new tables, since they did not train this time: {', '.join(lost)}")
    print(f"\nwritten: {path}; took {(time.monotonic() - begun.at) / 60:.1f} min")
    if changed:
        raise SystemExit(
            "the code was edited while it was measured: the numbers are of no one version, nothing can be"
            " added to them, and docs/ stays as it is"
        )
    if options.write_docs:
        print(f"written: {', '.join(map(str, benchmark.published.write(everything)))}")


def _told(benchmark: Benchmark, measured: Measured) -> list[str]:
    notes = ["", *told] if (told := measured.told()) else []
    aims = [f"  {aim}" for aim in benchmark.aims(measured.results)]
    return [*benchmark.tables(measured.results), *notes, "", "Aims:", *aims]


def _trained(results: Results) -> Names:
    return {
        ranks: {scenario: [name for name, runs in sides.items() if runs] for scenario, sides in of.items()}
        for ranks, of in results.items()
    }
