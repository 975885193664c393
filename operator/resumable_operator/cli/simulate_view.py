"""How ``rtj simulate`` shows its result: a table, what was lost to what, JSON, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from resumable_operator.cli.units import duration
from resumable_operator.simulate.account import LOSSES
from resumable_operator.simulate.failures import Machines, Process, Racks, SpotWaves, Trace
from resumable_operator.simulate.grid import Cell, Spread, Summary
from resumable_operator.simulate.parameters import STAGES, Parameters
from resumable_operator.words import counted

_HEADINGS = {
    "machine_mtbf": "machine MTBF",
    "mtbf": "MTBF",
    "replace": "replaced after",
    "blocking": "save blocks",
    "memory_every": "memory every",
}
_LONGEST_REASON = 100


def render(summaries: Sequence[Summary], console: Console, defaults: Sequence[str] = ()) -> None:
    """For people. ``defaults``: names of what was to be measured and is not known."""
    console.print(_given(summaries), style="dim")
    if defaults:
        console.print(
            f"not measured by the run, so usual values are taken: {', '.join(defaults)}", style="yellow"
        )
    console.print()
    console.print(_goodput_table(summaries))
    console.print(_loss_table(summaries))
    for summary in summaries:
        for reason, count in summary.failed.items():
            lives = counted(summary.lives, "life", "lives")
            told = f"{_row(summary)}: {count} of {lives} gave up: {shorten(reason, _LONGEST_REASON)}"
            console.print(told, style="yellow")
        for note in notes(summary.cell):
            console.print(f"{_row(summary)}: {note}", style="yellow")
    if len(summaries) > 1:
        best = max(summaries, key=lambda summary: summary.goodput.mean)
        console.print(f"highest goodput: {_where(best)}: {_percent(best.goodput)} %")
        best = max(summaries, key=lambda summary: summary.gpu_goodput.mean)
        console.print(
            f"most new steps for the {_units(best)}: {_where(best)}: {_percent(best.gpu_goodput)} %"
        )


def notes(cell: Cell) -> Iterator[str]:
    """What a reader of this row must know."""
    parameters = cell.parameters
    if parameters.is_bounded:
        yield (
            f"saves come less often than every {_interval(cell)}: bounded by the time a save needs to become"
            f" durable, {duration(parameters.costs.durable)}"
        )
    if parameters.memory_every and not any(process.leaves_machines for process in cell.processes):
        yield "copies in memory gain nothing: no failure leaves the machines good (--in-place)"
    for process in cell.processes:
        away = process.elsewhere(parameters.slots) if isinstance(process, Trace) else 0
        if away:
            yield (
                f"{counted(away, 'failure')} of the trace left out: this job has machines 0 to"
                f" {parameters.slots - 1}"
            )


def _row(summary: Summary) -> str:
    return _where(summary) or "the job"


def _units(summary: Summary) -> str:
    """What time is paid for."""
    return f"{summary.cell.parameters.hours_of}s"


def _where(summary: Summary) -> str:
    """Which row."""
    names = map(_heading, summary.cell.axes)
    return ", ".join(f"{name} {value}" for name, value in zip(names, _values(summary), strict=True))


def _values(summary: Summary) -> Iterator[str]:
    """Of the axes, as they were given, and the steps between copies that ``auto`` came to."""
    for name, value in summary.cell.axes.items():
        found = summary.cell.parameters.memory_every
        yield f"auto ({found})" if (name, value) == ("memory_every", "auto") else str(value)


def _given(summaries: Sequence[Summary]) -> str:
    """What all cells have in common, as one paragraph."""
    summary = summaries[0]
    cell, parameters = summary.cell, summary.cell.parameters
    workers, costs = parameters.spec.workers, parameters.costs
    stages = ", ".join(f"{stage} {duration(getattr(costs.restart, stage))}" for stage in STAGES)
    fixed = [
        f"{counted(workers.replicas, 'worker')}{_gpus(parameters)} (down to {workers.min_size}),"
        f" {counted(workers.spares, 'spare')}",
        f"a save stops training for {duration(costs.blocking)}, durable after {duration(costs.durable)}",
        f"interval {_interval(cell)}",
        *_copies([summary.cell for summary in summaries]),
        f"restart {duration(costs.restart.total)} ({stages})",
        f"a worker starts in {duration(costs.reschedule)}, a lost machine is replaced"
        f" after {duration(costs.replace)}",
        *(_process(process, cell) for process in cell.processes),
        f"{counted(summary.lives, 'life', 'lives')} of {_days(parameters.days)}",
    ]
    varied = ", ".join(_heading(name) for name in cell.axes)
    return "; ".join(fixed) + (f". Varied below: {varied}; given here is the first row's." if varied else "")


def _copies(cells: Sequence[Cell]) -> Iterator[str]:
    """Of the first row that makes any; how often where the rows do not say it."""
    copying = next((cell for cell in cells if cell.parameters.memory_every), None)
    if copying is not None:
        steps = counted(copying.parameters.memory_every, "step")
        often = "" if "memory_every" in copying.axes else f" every {steps}"
        yield f"a copy in memory{often} takes {duration(copying.parameters.costs.copy_seconds)}"


def _gpus(parameters: Parameters) -> str:
    """Nothing where they have none, or nobody knows."""
    return f" of {counted(parameters.gpus_per_worker, 'GPU')}" if parameters.gpus_per_worker else ""


def _days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:g} days"


def _interval(cell: Cell) -> str:
    interval = cell.parameters.interval
    return interval if isinstance(interval, str) else duration(interval)


def _process(process: Process, cell: Cell) -> str:
    match process:
        case Machines():
            job = process.mtbf / cell.parameters.spec.workers.replicas
            how = "" if process.shape == 1 else f", Weibull with shape {process.shape:g}"
            stays = f", {process.in_place:.0%} of them in place" if process.in_place else ""
            often = f"a machine fails every {duration(process.mtbf)}, so the job every {duration(job)}"
            return f"{often}{how}{stays}"
        case Racks():
            return f"a rack of {process.size} is lost every {duration(process.mtbf)}"
        case SpotWaves():
            return (
                f"every {duration(process.mtbf)} a wave takes {process.share:.0%} of the machines for"
                f" {duration(process.lasts)}, with {duration(process.notice)} of notice"
            )
        case Trace():
            known = len(process.failed) - process.elsewhere(cell.parameters.slots)
            return f"{counted(known, 'failure')} from the trace"


def _goodput_table(summaries: Sequence[Summary]) -> Table:
    table = Table(
        title="Goodput in %, interruptions a day, T", title_justify="left", box=box.SIMPLE, pad_edge=False
    )
    axes, formulas = list(summaries[0].cell.axes), [summary.cell.formula() for summary in summaries]
    for name in axes:
        table.add_column(_heading(name), justify="right")
    columns = ["goodput", "scheduling", "runtime", "work", f"of {_units(summaries[0])}", "interruptions", "T"]
    if any(formulas):
        columns.insert(3, "formula")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for summary, formula in zip(summaries, formulas, strict=True):
        cells = [
            _percent(summary.goodput),
            *(f"{100 * spread.mean:.1f}" for spread in (summary.scheduling, summary.runtime)),
            *(f"{100 * spread.mean:.1f}" for spread in (summary.work, summary.gpu_goodput)),
            f"{summary.interruptions_a_day.mean:.2f}",
            duration(summary.interval_seconds),
        ]
        if any(formulas):
            cells.insert(3, "-" if formula is None else f"{100 * formula:.1f}")
        table.add_row(*_values(summary), *cells)
    return table


def _loss_table(summaries: Sequence[Summary]) -> Table:
    title = f"{summaries[0].cell.parameters.hours_of}-hours lost a day, by cause"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for name in summaries[0].cell.axes:
        table.add_column(_heading(name), justify="right")
    causes = [
        cause
        for cause in LOSSES
        if any(summary.lost_gpu_hours_a_day.get(cause, 0) >= 0.05 for summary in summaries)
    ]
    for cause in (*causes, "all"):
        table.add_column(cause, justify="right")
    for summary in summaries:
        lost = summary.lost_gpu_hours_a_day
        amounts = [f"{lost.get(cause, 0):.1f}" for cause in causes]
        table.add_row(*_values(summary), *amounts, f"{sum(lost.values()):.1f}")
    return table


def _heading(name: str) -> str:
    return _HEADINGS.get(name, name)


def _percent(spread: Spread) -> str:
    """Mean and standard deviation over seeds, in per cent."""
    text = f"{100 * spread.mean:.1f}"
    return f"{text} ± {100 * spread.deviation:.1f}" if spread.deviation else text


# ---- for programs ------------------------------------------------------------------------------------------

_SPREADS = ("goodput", "scheduling", "runtime", "work", "gpu_goodput", "interruptions_a_day")


def plain(summary: Summary) -> dict[str, Any]:
    """One cell as JSON: camelCase names, seconds, ratios as numbers between 0 and 1."""
    parameters = summary.cell.parameters
    found: dict[str, Any] = {"axes": dict(summary.cell.axes), "lives": summary.lives, "days": parameters.days}
    for name in _SPREADS:
        spread: Spread = getattr(summary, name)
        found[_camel(name)] = {"mean": spread.mean, "deviation": spread.deviation}
    return found | {
        "runtimeByFormula": summary.cell.formula(),
        "intervalSeconds": summary.interval_seconds,
        "memoryEverySteps": parameters.memory_every,
        "copySeconds": parameters.costs.copy_seconds if parameters.memory_every else None,
        "hoursOf": parameters.hours_of,
        "notes": list(notes(summary.cell)),
        "lostGpuHoursADay": {cause: summary.lost_gpu_hours_a_day.get(cause, 0.0) for cause in LOSSES},
        "interruptions": summary.interruptions,
        "failed": summary.failed,
    }


def as_csv(summaries: Sequence[Summary]) -> str:
    """One line for each cell, with a header."""
    axes = list(summaries[0].cell.axes)
    columns = [*axes, "lives", "days"]
    for name in _SPREADS:
        columns += [name, f"{name}_deviation"]
    columns += [
        "runtime_by_formula",
        "interval_seconds",
        "memory_every_steps",
        "copy_seconds",
        *(f"lost_gpu_hours_a_day_{cause}" for cause in LOSSES),
    ]
    columns.append("failed")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for summary in summaries:
        parameters = summary.cell.parameters
        row: list[Any] = [summary.cell.axes[name] for name in axes]
        row += [summary.lives, f"{parameters.days:g}"]
        for name in _SPREADS:
            spread: Spread = getattr(summary, name)
            row += [f"{spread.mean:.6f}", f"{spread.deviation:.6f}"]
        formula = summary.cell.formula()
        row += ["" if formula is None else f"{formula:.6f}", f"{summary.interval_seconds:.3f}"]
        copy = f"{parameters.costs.copy_seconds:.6f}" if parameters.memory_every else ""
        row += [parameters.memory_every, copy]
        row += [f"{summary.lost_gpu_hours_a_day.get(cause, 0.0):.4f}" for cause in LOSSES]
        writer.writerow([*row, sum(summary.failed.values())])
    return text.getvalue()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
