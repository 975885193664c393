"""From a SIGKILL to the first *new* step: `rtj run` against `torchrun` elastic, on one machine, in turns.

Both train the same model (body.py), save every 5 steps and lose a process right after step 8. What counts is
the time until a step beyond all that had been done is finished. Runs alternate, so that a busy machine
slows both. Prints a table and writes tests/bench/results/recovery.json. Run by `make bench`.
"""

import argparse
import itertools
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import launch
import stages
import torch

RESULTS = Path(__file__).parent / "results"
STRIKE_AFTER_STEP = 8  # the newest checkpoint is of step 5, so three steps are lost
START_SECONDS, RECOVER_SECONDS = 120.0, 120.0


@dataclass(frozen=True)
class Contender:
    """One side in one scenario: how to start it and how to strike it."""

    name: str
    start: Callable[[Path], launch.Running]
    strike: Callable[[launch.Running], float]


@dataclass(frozen=True)
class Outcome:
    """One run. ``seconds`` None: no new step within the limit."""

    seconds: float | None
    redone: int = 0
    step_seconds: float = 0.0
    split: dict[str, float] | None = None


TORCHRUN = partial(launch.start_torchrun, share_store=False)
TORCHRUN_DEFAULT = partial(launch.start_torchrun, share_store=True)
OURS, TORCHRUN_NAME, DEFAULT_NAME = "rtj run", "torchrun, store sharing off", "torchrun, defaults"
CONTENDERS = {
    "rank": (
        Contender(OURS, partial(launch.start_ours, "rank"), launch.kill_rank),
        Contender(TORCHRUN_NAME, partial(TORCHRUN, "rank"), launch.kill_rank),
        Contender(DEFAULT_NAME, partial(TORCHRUN_DEFAULT, "rank"), launch.kill_rank),
    ),
    "worker": (
        Contender(OURS, partial(launch.start_ours, "worker"), launch.kill_our_worker),
        Contender(TORCHRUN_NAME, partial(TORCHRUN, "worker"), launch.kill_torchrun_supervisor),
    ),
}
TITLES = {"rank": "one rank killed", "worker": "one worker killed, not replaced"}


def run_once(contender: Contender) -> Outcome:
    """Start, wait for the step, strike, wait for a new step."""
    with _scratch() as directory, launch.ended_afterwards(contender.start(directory)) as running:
        if not launch.wait_for("first steps", lambda: _step(running) >= STRIKE_AFTER_STEP, START_SECONDS):
            raise SystemExit(f"{contender.name} never reached step {STRIKE_AFTER_STEP}:\n{_logs(directory)}")
        killed_at = contender.strike(running)
        before = [line for line in running.lines("step") if line["time"] < killed_at]
        high_water = max(_step(running), max(line["step"] for line in before))

        def new_steps() -> list[dict[str, Any]]:
            return [s for s in running.lines("step") if s["step"] > high_water and s["time"] > killed_at]

        if not launch.wait_for("a new step", lambda: bool(new_steps()), RECOVER_SECONDS):
            return Outcome(None)
        recovered_at = new_steps()[0]["time"]
        history = _history(directory / "run" / "history.jsonl", recovered_at)
        split = stages.split(history, killed_at, recovered_at) if history else None
        redone = sum(killed_at < s["time"] < recovered_at for s in running.lines("step"))
        return Outcome(recovered_at - killed_at, redone, _step_seconds(before), split)


def _step(running: launch.Running) -> int:
    return max((line["step"] for line in running.lines("step")), default=0)


def _step_seconds(steps: list[dict[str, Any]]) -> float:
    return statistics.median(b["time"] - a["time"] for a, b in itertools.pairwise(steps))


def _history(path: Path, until: float) -> list[dict[str, Any]]:
    """Events of one of our runs, read once a progress report later than ``until`` is in it."""
    if not path.exists():
        return []

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def is_complete() -> bool:
        return any(entry["at"] > until and entry["kind"] == "progress" for entry in read())

    launch.wait_for("a later report", is_complete, 5)
    return read()


def _logs(directory: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in directory.glob("*.log"))


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="rtj-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def compare(scenario: str, contenders: tuple[Contender, ...], runs: int) -> dict[str, list[Outcome]]:
    """``runs`` of each side in turns; torchrun with its defaults once only, as it mostly never recovers."""
    outcomes: dict[str, list[Outcome]] = {contender.name: [] for contender in contenders}
    for number in range(runs):
        for contender in contenders:
            if contender.name == DEFAULT_NAME and number > 0:
                continue
            outcome = run_once(contender)
            outcomes[contender.name].append(outcome)
            run = f"{scenario} {number + 1}/{runs}"
            print(f"  {run}  {contender.name:<30} {_seconds(outcome.seconds)}", flush=True)
    return outcomes


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _median(outcomes: list[Outcome]) -> float | None:
    """Median over all runs; a run that never recovered counts as the longest."""
    middle = statistics.median(float("inf") if o.seconds is None else o.seconds for o in outcomes)
    return None if middle == float("inf") else middle


def _never(outcomes: list[Outcome]) -> int:
    return sum(outcome.seconds is None for outcome in outcomes)


def _row(name: str, *columns: str) -> str:
    return f"  {name:<30}" + "".join(f"{column:>9}" for column in columns)


def print_table(scenario: str, outcomes: dict[str, list[Outcome]]) -> None:
    """Medians, spread, and each side's ratio to ours."""
    ours = _median(outcomes[OURS]) if OURS in outcomes else None
    print(f"\n{TITLES[scenario]}: kill to first new step")
    print(_row("", "median", "min", "max", "runs", "never", "redone", "x ours"))
    for name, runs in outcomes.items():
        seconds = [run.seconds for run in runs if run.seconds is not None]
        middle = _median(runs)
        low, high = (_seconds(min(seconds)), _seconds(max(seconds))) if seconds else ("-", "-")
        redone = f"{statistics.median(run.redone for run in runs):.0f}"
        ratio = f"{middle / ours:.2f}" if middle and ours else "-"
        print(_row(name, _seconds(middle), low, high, str(len(runs)), str(_never(runs)), redone, ratio))
    splits = [run.split for run in outcomes.get(OURS, []) if run.split]
    if splits:
        parts = {stage: statistics.median(split[stage] for split in splits) for stage in stages.STAGES}
        listed = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
        print(f"  ours by stage (medians, seconds): {listed}")


def write_results(results: dict[str, dict[str, list[Outcome]]]) -> Path:
    """All runs and what they ran on, as JSON."""
    RESULTS.mkdir(exist_ok=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    runs = {
        scenario: {name: [vars(outcome) for outcome in outcomes] for name, outcomes in sides.items()}
        for scenario, sides in results.items()
    }
    path = RESULTS / "recovery.json"
    path.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each side in each scenario")
    parser.add_argument("--scenario", choices=sorted(CONTENDERS), help="only this one")
    parser.add_argument("--only", choices=["ours", "torchrun"], help="only one side")
    options = parser.parse_args()
    results: dict[str, dict[str, list[Outcome]]] = {}
    for scenario in [options.scenario] if options.scenario else CONTENDERS:
        sides = {"ours": lambda name: name == OURS, "torchrun": lambda name: name != OURS}
        wanted = sides.get(options.only, lambda name: True)
        contenders = tuple(contender for contender in CONTENDERS[scenario] if wanted(contender.name))
        results[scenario] = compare(scenario, contenders, options.runs)
    for scenario, outcomes in results.items():
        print_table(scenario, outcomes)
    print(f"\nwritten: {write_results(results)}")


if __name__ == "__main__":
    main()
