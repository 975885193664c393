"""``rtj status``: what a run is doing now, and why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from resumable_operator.cli.display import Display
from resumable_operator.cli.output import make_console
from resumable_operator.cli.report import is_opaque, opaque_note
from resumable_operator.cli.report_model import Ending, sighting
from resumable_operator.cli.rundir import RunDir, moment
from resumable_operator.cli.status_model import StatusView, build_view
from resumable_operator.cli.units import byte_size, duration, percent
from resumable_operator.model import JobStatus

WATCH_SECONDS = 0.5
ENDED = ("Succeeded", "Failed", "Suspended")


@click.command("status")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Go on until the job has ended or Ctrl-C.")
def status_command(run: Path, as_json: bool, watch: bool) -> None:
    """Show what RUN is doing and why.

    RUN is a run directory (`rtj run --dir RUN`). Shows phase, attempt, size, step, loss, newest checkpoint,
    goodput and its two factors, budgets left, and the last interruption with the first failure that was seen:
    worker, rank, exit code or signal, and the last lines of its log. Exits with 0 whatever the job's state.
    """
    if as_json and watch:
        raise click.UsageError(
            "--json and --watch exclude each other; call --json again when you want to know"
        )
    directory = RunDir(run)
    console = make_console()
    if watch:
        _watch(directory, console)
    else:
        _show(load_view(directory, directory.written_status(), time.time()), as_json, console)


def load_view(run: RunDir, status: JobStatus, now: float) -> StatusView:
    """The view of a run directory at ``now``."""
    owner = run.owner()
    return build_view(run.job(), run.spec(), status, owner, moment(status, owner is not None, now))


def _show(view: StatusView, as_json: bool, console: Console) -> None:
    if as_json:
        click.echo(json.dumps(view.plain(), indent=2))
    else:
        console.print(render(view))


def _watch(run: RunDir, console: Console) -> None:
    """Follow the job: a page that is redrawn on a terminal, a line per change when piped."""
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                _follow(run, lambda view: live.update(render(view), refresh=True))
        else:
            with Display(console, live=False) as display:
                _follow(run, lambda view: display.update(view.status, view.at))
    except KeyboardInterrupt:
        return


def _follow(run: RunDir, show: Callable[[StatusView], None]) -> None:
    for view in _views(run):
        show(view)
        if view.status.phase in ENDED or view.owner is None:
            return


def _views(run: RunDir) -> Iterator[StatusView]:
    """Views as time goes by. A run that is only just beginning is waited for."""
    while True:
        status = run.status() if run.owner() is not None else run.written_status()
        if status is not None:
            yield load_view(run, status, time.time())
        time.sleep(WATCH_SECONDS)


def render(view: StatusView) -> Group:
    """The page for people; lines fold at the terminal's width."""
    status = view.status
    title = Text.assemble((view.name, "bold"), "  ", (status.phase, "bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text in _facts(view):
        grid.add_row(name, Text(text))
    parts: list[RenderableType] = [
        title + Text(f": {status.reason}" if status.reason else ""),
        Padding(grid, (0, 0, 0, 2)),
    ]
    if view.last_interruption:
        parts += _interruption(view.last_interruption, view)
    return Group(*parts)


def _facts(view: StatusView) -> Iterator[tuple[str, str]]:
    status, numbers = view.status, view.goodput
    yield "run", _owner(view)
    yield (
        "attempt",
        f"{status.attempt.number} ({status.attempt.state}), world size {status.attempt.world_size}",
    )
    yield "size", f"{status.size} of {view.wanted_size} workers; allowed {_sizes(view.allowed_sizes)}"
    yield "step", _step(view)
    yield "loss", "-" if status.loss is None else f"{status.loss:.4g}"
    yield "checkpoint", _checkpoint(view)
    yield (
        "goodput",
        f"{percent(numbers.goodput)} = scheduling {percent(numbers.scheduling)}"
        f" x runtime {percent(numbers.runtime)}",
    )
    if is_opaque(numbers):
        yield "", opaque_note(numbers)
    yield (
        "age",
        f"{duration(numbers.age_seconds)}, {duration(numbers.unsettled_seconds)} of it not yet explained",
    )
    yield "time went to", ", ".join(f"{item.phase} {duration(item.seconds)}" for item in view.phases) or "-"
    yield "budgets left", ", ".join(f"{item.name} {item.left} of {item.limit}" for item in view.budgets_left)
    if status.interruption_counts:
        counts = sorted(status.interruption_counts.items())
        yield "endings", ", ".join(f"{cause} {count}" for cause, count in counts)
    for condition in status.conditions:
        why = ": ".join(part for part in (condition.reason, condition.message) if part)
        yield "condition", f"{condition.type}={condition.status}{' (' + why + ')' if why else ''}"


def _owner(view: StatusView) -> str:
    if view.owner is not None:
        return f"process {view.owner}"
    if view.status.phase in ("Succeeded", "Failed"):
        return "ended"
    return "nobody runs it now; the same `rtj run` command line continues it"


def _sizes(sizes: tuple[int, ...]) -> str:
    if len(sizes) > 2 and sizes == tuple(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]}-{sizes[-1]}"
    return ", ".join(str(size) for size in sizes)


def _step(view: StatusView) -> str:
    status = view.status
    furthest = f", furthest {status.high_water_step}" if status.high_water_step > status.step else ""
    pace = f", {duration(status.step_seconds)} a step" if status.step_seconds else ""
    return f"{status.step}{furthest}{pace}"


def _checkpoint(view: StatusView) -> str:
    newest = view.status.checkpoint
    if newest is None:
        return "none yet"
    age = duration(max(0.0, view.at - newest.at))
    return (
        f"step {newest.step} ({newest.name}), {byte_size(newest.bytes)}, {age} ago,"
        f" stopped training for {duration(newest.blocking_ms / 1000)}"
    )


def _interruption(item: Ending, view: StatusView) -> list[Text]:
    ago = duration(max(0.0, view.goodput.age_seconds - item.at_seconds))
    recovered = "not yet" if item.recover_seconds is None else f"after {duration(item.recover_seconds)}"
    lines = [
        Text(f"last interruption: {item.cause}, attempt {item.attempt}, {ago} ago", style="bold"),
        Text(f"  {sighting(item)}"),
        Text(
            f"  detected after {duration(item.detect_seconds)}, recovered {recovered},"
            f" {item.rework_steps} steps redone"
        ),
    ]
    return lines + [Text(f"  | {line}", style="dim") for line in item.tail]
