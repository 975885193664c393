"""From a strike to the first *new* step: `rtj run` beside torchrun, and other peers with --peers.

All train the same model (body.py) with the same interval of saves, in turns, so that a busy machine slows
all. What counts is the time until a step that nobody had done before, at the size that is wanted; where ranks
can be stopped at a step it is the pause of training. Prints tables and aims; writes recovery.json and
recovery.svg into tests/bench/results; with --add, together with what was measured of the same code before.
Run by `make bench-recovery`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import contenders
import launch
import peers
import recovery_cases as cases
import recovery_docs
import recovery_file
import recovery_table
import stages
from contenders import Absent, Contender
from launch import Running
from recovery_cases import LEGS, SCENARIOS, Leg, Outcome, Scenario
from recovery_file import Measured

RESULTS = Path(__file__).parent / "results"
START_SECONDS, MOMENT_SECONDS, RECOVER_SECONDS = 120.0, 60.0, 150.0
QUICK_RUNS, RUNS = 2, 10
Collected = dict[int, dict[str, dict[str, list[Outcome]]]]


class Broken(Exception):
    """A training did not come as far as the strike; the message has its last words."""


def run_leg(
    contender: Contender, leg: Leg, ranks: int, wanted: Sequence[Scenario]
) -> Iterator[tuple[Scenario, Outcome]]:
    """Start a training and strike it with each scenario in turn; ends early when it never recovers."""
    with _scratch() as directory, launch.ended_afterwards(contender.start(directory, leg, ranks)) as running:
        if not launch.wait_for(lambda: running.step() >= cases.SETTLE_STEPS, START_SECONDS):
            raise Broken(f"{contender.name} does not train ({LEGS[leg]})\n{_logs(directory)}")
        for scenario in wanted:
            outcome = strike(contender, running, scenario, ranks)
            yield scenario, outcome
            if outcome.seconds is None:
                return


def strike(contender: Contender, running: Running, scenario: Scenario, ranks: int) -> Outcome:
    """Wait for the moment, strike, wait for a new step at the wanted size."""
    since = running.step()

    def is_time() -> bool:
        step = running.step()
        saved = step - cases.LOST_STEPS if contender.survives else running.saved()  # it needs no checkpoint
        return cases.is_time(scenario, step, saved, since) and contender.is_ready(running)

    if not launch.wait_for(is_time, MOMENT_SECONDS):
        saved = f"step {running.step()}, newest checkpoint {running.saved()}"
        raise Broken(f"{contender.name}: no moment for {scenario.name} ({saved})\n{_logs(running.directory)}")
    struck_at = contender.strikes[scenario.name](running)
    world = scenario.world(ranks) - contender.fewer

    def found() -> int | None:
        return cases.first_new(running.steps(), struck_at, world, contender.survives)

    if not launch.wait_for(lambda: found() is not None, RECOVER_SECONDS):
        return Outcome(None)
    index = found()
    assert index is not None
    outcome = cases.judge(running.steps(), struck_at, index, scenario.planned)
    return _with_stages(outcome, running, struck_at) if contender.is_ours else outcome


def _with_stages(outcome: Outcome, running: Running, struck_at: float) -> Outcome:
    """What our own books say of it, once they are closed."""
    assert outcome.after_strike is not None
    recovered_at = struck_at + outcome.after_strike
    path = contenders.our_files(running).history

    def history() -> list[launch.Line]:
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    launch.wait_for(lambda: any(e["at"] > recovered_at and e["kind"] == "progress" for e in history()), 5)
    booked: list[dict[str, float] | None] = []

    def is_booked() -> bool:
        booked[:] = [stages.ledger_stages(contenders.our_status(running), struck_at)]
        return booked[0] is not None

    is_planned = outcome.seconds != outcome.after_strike
    launch.wait_for(lambda: is_planned or is_booked(), 5)
    split = stages.split(history(), struck_at, recovered_at)
    return replace(outcome, ledger=booked[0] if booked else None, split=split)


def run_all(
    sides: Sequence[Contender], ranks: int, wanted: Sequence[Scenario], runs: int, slow_runs: int
) -> dict[str, dict[str, list[Outcome]]]:
    """``runs`` of every scenario and contender, in turns; slow ones ``slow_runs`` times."""
    found: dict[str, dict[str, list[Outcome]]] = {
        scenario.name: {side.name: [] for side in sides if scenario.name in side.strikes}
        for scenario in wanted
    }
    for number in range(runs):
        for leg in LEGS:
            for side in sides:
                due = [one for one in wanted if one.leg == leg and _is_due(side, one, number, slow_runs)]
                if not due:
                    continue
                try:
                    for scenario, outcome in run_leg(side, leg, ranks, due):
                        found[scenario.name][side.name].append(outcome)
                        _tell(f"{number + 1}/{runs}  {ranks} ranks", scenario, side, outcome)
                except Broken as broken:
                    print(f"  {number + 1}/{runs}  BROKEN: {broken}", flush=True)
    return found


def _tell(where: str, scenario: Scenario, side: Contender, outcome: Outcome) -> None:
    took = recovery_table.seconds(math.inf if outcome.seconds is None else outcome.seconds)
    print(f"  {where}  {scenario.name:<11}{side.name:<24}{took:>6}  {outcome.redone} redone", flush=True)


def _is_due(side: Contender, scenario: Scenario, number: int, slow_runs: int) -> bool:
    return scenario.name in side.strikes and (number < slow_runs or scenario.name not in side.slow)


def _logs(directory: Path) -> str:
    paths = [*directory.glob("*.log"), *directory.glob("run/rtj.log"), *directory.glob("run/logs/*/*0.log")]
    return "\n".join(f"--- {path.name}\n{path.read_text()[-2500:]}" for path in sorted(paths))


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rtj-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--runs", type=int, default=RUNS, help="of each scenario and contender [%(default)s]")
    parser.add_argument("--slow-runs", type=int, help="of those that wait most of a minute [a third]")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs at 2 ranks")
    parser.add_argument("--ranks", type=int, nargs="+", choices=[2, 4], help="[2 4]")
    parser.add_argument("--scenario", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these contenders")
    parser.add_argument("--peers", action="store_true", help="dlrover, NVRx and torchft too; installs them")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the other tables of recovery.json, if they are of the same code and machine",
    )
    parser.add_argument("--write-docs", action="store_true", help="put tables and picture into docs/")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory for JSON and picture")
    options = parser.parse_args()
    if options.runs < (0 if options.add else 1):
        parser.error("--runs: nothing would be measured; 0 goes with --add alone, to write what is there")
    if options.quick:
        options.runs = min(options.runs, QUICK_RUNS)
    options.ranks = options.ranks or ([2] if options.quick else [2, 4])
    if options.slow_runs is None:
        options.slow_runs = max(1, options.runs // 3)
    return options


def _sides(options: argparse.Namespace) -> tuple[list[Contender], list[Absent]]:
    """Who takes part, and who could not."""
    everybody: list[Contender | Absent] = [*contenders.ours(), contenders.TORCHRUN]
    if options.peers:
        everybody += peers.contenders()
    if options.only:
        unknown = set(options.only) - {side.name for side in everybody}
        if unknown:
            names = ", ".join(side.name for side in everybody)
            raise SystemExit(f"--only: no contender {', '.join(sorted(unknown))}; there are: {names}")
        everybody = [side for side in everybody if side.name in options.only]
    sides = [side for side in everybody if isinstance(side, Contender)]
    return sides, [side for side in everybody if isinstance(side, Absent)]


def _earlier(directory: Path, now: Measured, planned: Mapping[int, Mapping[str, Sequence[str]]]) -> Measured:
    """What is added to: all that was measured before, or nothing. Ends here if it does not go together.

    ``planned``: who will be measured, by ranks and scenario; a table is not to lose anybody by it.
    """
    before = recovery_file.read(directory)
    if before is None:
        return now
    try:
        found = before.with_added(now)
    except recovery_file.Mixed as mixed:
        raise SystemExit(f"--add: {directory / recovery_file.JSON}: {mixed}") from mixed
    if lost := before.lost_to(planned):
        raise SystemExit(
            f"--add: a table is of one run, and these would be lost: {', '.join(lost)}. Measure them too"
            " (--only, --peers), or give another --output"
        )
    return found


def _planned(
    options: argparse.Namespace, sides: Sequence[Contender], wanted: Sequence[Scenario]
) -> dict[int, dict[str, list[str]]]:
    """Names, by ranks and scenario."""
    runs, slow_runs = range(options.runs), options.slow_runs
    names = {
        one.name: [side.name for side in sides if any(_is_due(side, one, run, slow_runs) for run in runs)]
        for one in wanted
    }
    return dict.fromkeys(options.ranks, names)


def main() -> None:
    options = _options()
    began = time.monotonic()
    for package in recovery_file.PACKAGES:  # as in the images: no start is to compile what was just edited
        compileall.compile_dir(package, quiet=2)
    sides, absent = _sides(options)
    wanted = [scenario for scenario in SCENARIOS if scenario.name in options.scenario]
    now = Measured(
        recovery_file.digest(),
        recovery_file.machine(),
        notes={side.name: side.note for side in sides},
        results={},
        absent={side.name: side.reason for side in absent},
    )
    before = now
    if options.add:  # before an hour is spent in vain
        before = _earlier(options.output, now, _planned(options, sides, wanted))
    results: Collected = {}
    for ranks in options.ranks:
        results[ranks] = run_all(sides, ranks, wanted, options.runs, options.slow_runs)
    everything = before.with_added(replace(now, results=results))
    if not everything.results:
        raise SystemExit("nothing was measured: no file is written")
    changed = recovery_file.digest() != now.code
    trained = {
        ranks: {scenario: [name for name, runs in of.items() if runs] for scenario, of in tables.items()}
        for ranks, tables in results.items()
    }
    lost = before.lost_to(trained)
    lines = [*recovery_table.tables(everything.results), "", *everything.told(), "", "Aims:"]
    lines += [f"  {aim}" for aim in recovery_table.aims(everything.results)]
    print("\n".join(lines))
    path = recovery_file.write(replace(everything, code="") if changed else everything, options.output)
    if lost:
        print(f"\nnot in the new tables, since they did not train this time: {', '.join(lost)}")
    print(f"\nwritten: {path}; took {(time.monotonic() - began) / 60:.1f} min")
    if changed:
        raise SystemExit(
            "the code was edited while it was measured: the numbers are of no one version, nothing can be"
            " added to them, and docs/ stays as it is"
        )
    if options.write_docs:
        print(f"written: {recovery_docs.write(everything.results, everything.told())}")


if __name__ == "__main__":
    main()
