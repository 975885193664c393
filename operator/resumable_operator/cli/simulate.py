"""``rtj simulate``: what goodput would be with another interval, other machines, more spares."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from resumable_operator.cli.document import read_document, unreadable
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.numbers import Number
from resumable_operator.cli.opening import is_directory
from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, cluster_options
from resumable_operator.cli.simulate_input import AXES, MACHINE_MTBF, Wish, cells_of, read_trace
from resumable_operator.cli.simulate_measured import Measured, measured_of, not_measured
from resumable_operator.cli.simulate_view import as_csv, plain, render
from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Trace
from resumable_operator.simulate.grid import Cell, Summary, live, summarize

_COSTS = (
    ("step", "time of a step at full size", "1s"),
    ("copy", "of a copy in memory", "as a save takes from training"),
    ("reschedule", "a new worker on a machine that is there", "30s"),
    ("detect", "stage of a restart: the failure until it is known", "10s"),
    ("setup", "stage: processes, imports, model, data", "20s"),
    ("rendezvous", "stage: the ranks meet", "10s"),
    ("restore", "stage: the checkpoint is loaded", "30s"),
    ("warmup", "stage: restored until the first step is done", "10s"),
)
_AXES = {
    "workers": "machines at full size, one worker each [the spec's, or 8]",
    "spares": "more machines, whose workers wait ready [the spec's]",
    "interval": "work between saves (T), or auto [the spec's]",
    "blocking": "time that one save takes from training (d) [5s]",
    "durable": "from the start of a save until it is committed [30s]",
    "mtbf": "mean time between failures (M) of the whole job at full size",
    "machine_mtbf": f"the same of one machine [{MACHINE_MTBF}]",
    "restart": "sum of the stages of a restart (R); keeps their proportions [80s]",
    "replace": "a lost machine until another is there [15m]",
    "notice": "of a spot wave [2m]",
    "memory_every": "steps between copies in memory, or auto; 0: none [the spec's]",
}


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that are alike: values with commas between, and costs."""
    for name, text, default in reversed(_COSTS):
        command = click.option(f"--{name}", metavar="TIME", help=f"{_sentence(text)[:-1]} [{default}].")(
            command
        )
    for name in reversed(AXES):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, metavar="VALUE,...", help=f"{_sentence(_AXES[name])}")(command)
    return command


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


@dataclass(frozen=True)
class _Output:
    as_json: bool
    csv: Path | None
    plot: Path | None


@click.command("simulate")
@click.argument("job", required=False, type=click.Path(path_type=Path))
@_options
@click.option("--min", "least", type=click.IntRange(1), help="Goes on with so few [the spec's].")
@click.option("--gpus", type=click.IntRange(1, 1024), help="Of a machine [the spec's, or 8].")
@click.option(
    "--weibull",
    type=Number(0.1, 10),
    metavar="SHAPE",
    help="Of the time between failures"
    " of a machine: below 1 bursts, above 1 more regular. Without it failures are Poisson.",
)
@click.option(
    "--in-place",
    type=Number(0, 1),
    help="Share of failures that leave the machine good [0].",
)
@click.option("--racks", metavar="SIZE:MTBF", help="Also whole racks fail, e.g. 4:90d.")
@click.option(
    "--spot",
    metavar="MTBF:SHARE[:LASTS]",
    help="The provider takes a share of the machines back in waves, e.g. 1d:0.25:1h.",
)
@click.option("--trace", type=click.Path(path_type=Path), help="Failures from a file, CSV or JSON lines.")
@click.option("--days", type=Number(0.01, 3650), default=30.0, show_default=True, help="Of a life.")
@click.option(
    "--seeds", type=click.IntRange(1, 100_000), default=8, show_default=True, help="Lives in each row."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The first one.")
@click.option(
    "--from-run",
    metavar="RUN|JOB",
    help="Take costs, interval and MTBF from a run directory, or"
    " with -n from a job in a cluster; options overrule them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", type=click.Path(path_type=Path), metavar="FILE", help="Write the table there too.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw it.")
@click.option("--processes", type=click.IntRange(1), help="To simulate with [one a core].")
@cluster_options
def simulate_command(
    job: Path | None,
    least: int | None,
    gpus: int | None,
    weibull: float | None,
    in_place: float | None,
    racks: str | None,
    spot: str | None,
    trace: Path | None,
    days: float,
    seeds: int,
    seed: int,
    from_run: str | None,
    as_json: bool,
    csv: Path | None,
    plot: Path | None,
    processes: int | None,
    place: Place,
    **values: str | None,
) -> None:
    """Say what goodput would be, before buying.

    Runs the operator's own decisions and ledger under a fake clock, with machines that fail. Options with
    VALUE,... take several values; each combination is a row of the table, and all rows meet the same
    failures. Times are numbers with ms, s, m, h or d. JOB.YAML gives workers, spares, save interval and
    recovery settings.

    \b
    Examples:
      rtj simulate --workers 32 --machine-mtbf 50d --interval 10m,30m,2h,auto
      rtj simulate job.yaml --spares 0,1,2 --replace 15m,4h --plot spares.svg
      rtj simulate --workers 16 --min 8 --spot 12h:0.25:1h --notice 30s,2m
      rtj simulate --from-run runs/train --workers 64 --machine-mtbf 100d --interval auto
    """
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageProblem(f"--plot draws SVG: '{plot}' must end in .svg")
    for target in filter(None, (csv, plot)):
        if not is_directory(target.parent):
            raise UsageProblem(f"cannot write {target}: no such directory")
    measured = _measured(from_run, place, with_job=job is not None)
    given = {name: value for name, value in values.items() if value is not None}
    axes = {name: given[name] for name in AXES if name in given}
    taken = {name: value for name, value in measured.axes.items() if not _overruled(name, axes)}
    spec = _spec(job)
    if "workers" not in spec:
        spec = {**spec, "workers": {"replicas": 8}}
    wish = Wish(
        spec=spec,
        axes={**taken, **axes},
        costs={**measured.costs, **{name: given[name] for name, _, _ in _COSTS if name in given}},
        least=least or (None if "workers" in axes else measured.least),
        gpus=gpus,
        measured_gpus=measured.gpus,
        days=days,
        shape=weibull,
        in_place=in_place,
        racks=racks,
        spot=spot,
        trace=_trace(trace),
    )
    cells = cells_of(wish)
    summaries = _simulate(cells, range(seed, seed + seeds), processes, Console(stderr=True))
    copies = any(cell.parameters.memory_every for cell in cells)
    defaults = not_measured(wish, copies=copies) if from_run is not None else []
    _show(summaries, _Output(as_json, csv, plot), defaults)


def _measured(from_run: str | None, place: Place, with_job: bool) -> Measured:
    """Of the run that is named. Beside a job's file it gives costs alone: the file says the rest."""
    if from_run is None:
        if place.namespace or place.context or place.kubeconfig:
            raise UsageProblem("-n, --context and --kubeconfig are for --from-run of a job in a cluster")
        return Measured()
    found = measured_of(from_run, place)
    return Measured(costs=found.costs, gpus=found.gpus) if with_job else found


def _overruled(name: str, axes: dict[str, str]) -> bool:
    """The options say otherwise. With another number of machines the whole job's MTBF is another one."""
    return name in axes or (name == "mtbf" and ("machine_mtbf" in axes or "workers" in axes))


def _spec(path: Path | None) -> dict[str, Any]:
    """``spec`` of the job in a file; a bare spec is taken as well."""
    if path is None:
        return {}
    document = read_document(path)
    if not isinstance(document, dict):
        raise UsageProblem(f"{path} must hold one ResumableTrainingJob, or its spec")
    found = document.get("spec", document)
    if not isinstance(found, dict):
        raise UsageProblem(f"{path}: spec must be a mapping")
    return found


def _trace(path: Path | None) -> Trace | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    return read_trace(text, str(path))


def _show(summaries: Sequence[Summary], output: _Output, defaults: Sequence[str]) -> None:
    """``defaults``: names of what the run that was to be measured does not tell."""
    if output.csv is not None:
        _write(output.csv, as_csv(summaries))
    if output.plot is not None:
        from resumable_operator.simulate.chart import draw

        _write(output.plot, draw(summaries))
    if output.as_json:
        told = {"notMeasured": list(defaults), "cells": [plain(summary) for summary in summaries]}
        click.echo(json.dumps(told, indent=2))
    else:
        render(summaries, make_console(), defaults)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"cannot write {path}: {error.strerror}") from error


# ---- many lives --------------------------------------------------------------------------------------------


def _one(cell: Cell, seed: int) -> Outcome:
    return live(cell, seed, Random)


def _simulate(cells: Sequence[Cell], seeds: range, processes: int | None, console: Console) -> list[Summary]:
    """Every cell for every seed, on several cores; the result does not depend on how many."""
    lives = len(cells) * len(seeds)
    count = min(lives, processes or len(os.sched_getaffinity(0)))
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("lives", total=lives)
        with _executor(count) as run:
            summaries = []
            for cell, outcomes in [(cell, run(_one, [cell] * len(seeds), seeds)) for cell in cells]:
                found = []
                for outcome in outcomes:
                    found.append(outcome)
                    progress.advance(task)
                summaries.append(summarize(cell, found))
    return summaries


@contextmanager
def _executor(processes: int) -> Iterator[Callable[..., Iterator[Outcome]]]:
    """Something like ``map``."""
    if processes == 1:
        yield map
        return
    pool: Executor
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        yield pool.map
