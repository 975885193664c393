"""From a strike to the first *new* step: `rtj run` beside torchrun, and other peers with --peers.

All train the same model (body.py) with the same interval of saves, in turns, so that a busy machine slows
all. What counts is the time until a step that nobody had done before, at the size that is wanted; where ranks
can be stopped at a step it is the pause of training. Prints tables and aims; writes recovery.json and
recovery.svg into tests/bench/results; with --add, together with what was measured of the same code before;
with --write-docs into docs/, too. Run by `make bench-recovery`.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import contenders
import launch
import peers
import recovery_cases as cases
import recovery_docs
import recovery_main
import recovery_table
import stages
from contenders import Absent, Contender
from launch import Running
from recovery_cases import LEGS, SCENARIOS, Leg, Outcome, Scenario
from recovery_main import Benchmark

START_SECONDS, MOMENT_SECONDS, RECOVER_SECONDS = 120.0, 60.0, 150.0
# What is trained, how it is supervised and struck, and what is taken down of it; not how that is told.
METHOD = [
    launch.HERE / f"{name}.py"
    for name in (
        *("bench_recovery", "body", "contenders", "launch", "peers", "peers_install", "recovery_cases"),
        *("stages", "train_under_torchft", "train_under_torchrun", "train_with_library"),
    )
]
BENCHMARK = Benchmark(
    "recovery",
    METHOD,
    SCENARIOS,
    Outcome,
    recovery_table.tables,
    recovery_table.aims,
    recovery_docs.PUBLISHED,
)
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
    recovery_main.add_options(parser, SCENARIOS)
    parser.add_argument("--slow-runs", type=int, help="of those that wait most of a minute [a third]")
    parser.add_argument("--ranks", type=int, nargs="+", choices=[2, 4], help="[2 4; with --quick 2]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these contenders")
    parser.add_argument("--peers", action="store_true", help="dlrover, NVRx and torchft too; installs them")
    options = recovery_main.parse(parser)
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
    sides, absent = _sides(options)
    wanted = [scenario for scenario in SCENARIOS if scenario.name in options.scenario]
    begun = recovery_main.begin(
        BENCHMARK,
        options,
        _planned(options, sides, wanted),
        notes={side.name: side.note for side in sides},
        absent={side.name: side.reason for side in absent},
    )
    results: Collected = {}
    for ranks in options.ranks:
        results[ranks] = run_all(sides, ranks, wanted, options.runs, options.slow_runs)
    recovery_main.end(begun, results)


if __name__ == "__main__":
    main()
