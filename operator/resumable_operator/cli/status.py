"""``rtj status``: what a job is doing now, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from resumable_operator.cli.display import Display
from resumable_operator.cli.lately import Lately, Looks
from resumable_operator.cli.opening import job_at
from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.report import is_opaque, opaque_note
from resumable_operator.cli.report_model import Ending, sighting, steps_told
from resumable_operator.cli.source import JobSource
from resumable_operator.cli.standing import standing
from resumable_operator.cli.status_model import PodLine, StatusView
from resumable_operator.cli.units import byte_size, duration, percent
from resumable_operator.words import counted

PODS_SHOWN = 12


CLUSTER_HELP = """Show what a job is doing and why.

Shows phase, attempt, size, step, loss, newest checkpoint, goodput and its two factors, budgets left,
the job's pods, and the last interruption with the first failure that was seen: worker, rank, exit code or
signal, and the last lines of its log. Exits with 0 whatever the job's state.
"""


@click.command("status", cls=PlacedCommand, cluster_help=CLUSTER_HELP)
@click.argument("job", metavar="RUN|JOB")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Go on until the job has ended or Ctrl-C.")
@cluster_options
def status_command(job: str, as_json: bool, watch: bool, place: Place) -> None:
    """Show what a job is doing and why.

    RUN is a run directory (`rtj run --dir RUN`, by default runs/NAME); with -n, JOB is a job in a cluster.
    Shows phase, attempt, size, step, loss, newest checkpoint, goodput and its two factors, budgets left, and
    the last interruption with the first failure that was seen: worker, rank, exit code or signal, and the
    last lines of its log; of a job in a cluster also its pods. Exits with 0 whatever the job's state.
    """
    if as_json and watch:
        raise click.UsageError(
            "--json and --watch exclude each other; call --json again when you want to know"
        )
    console = make_console()
    with job_at(job, place) as source:
        if watch:
            _watch(source, console)
        elif as_json:
            click.echo(json.dumps(source.view().plain(), indent=2))
        else:
            console.print(render(source.view()))


def _watch(source: JobSource, console: Console) -> None:
    """Follow the job: a page that is redrawn on a terminal, a line per change when piped."""
    try:
        if console.is_terminal:
            looks = Looks()
            with Live(console=console, auto_refresh=False) as live:
                for view in source.views():
                    live.update(render(view, looks.look(view.status.ledger)), refresh=True)
        else:
            with Display(console, live=False) as display:
                for view in source.views():
                    display.update(view.status, view.at)
    except KeyboardInterrupt:
        return


def render(view: StatusView, lately: Lately | None = None) -> Group:
    """The page for people; lines fold at the terminal's width. ``lately``: what earlier looks tell."""
    status = view.status
    stands, reason = standing(status.phase, status.reason, view.cut_off)
    title = Text.assemble((view.name, "bold"), "  ", (stands, "bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, text in _facts(view, lately):
        grid.add_row(name, Text(text))
    parts: list[RenderableType] = [
        title + Text(f": {reason}" if reason else ""),
        Padding(grid, (0, 0, 0, 2)),
    ]
    parts[1:1] = [Text(note, style="yellow") for note in view.notes]
    if view.last_interruption:
        parts += _interruption(view.last_interruption, view)
    return Group(*parts)


def _facts(view: StatusView, lately: Lately | None) -> Iterator[tuple[str, str]]:
    status, numbers = view.status, view.goodput
    yield from [("run", _owner(view))] if view.pods is None else _pods(view.namespace, view.pods)
    yield "attempt", _attempt(view)
    yield "size", _size(view)
    yield "step", _step(view)
    yield "loss", "-" if status.loss is None else f"{status.loss:.4g}"
    yield "checkpoint", _checkpoint(view)
    yield (
        "goodput",
        f"{percent(numbers.goodput)} = scheduling {percent(numbers.scheduling)}"
        f" x runtime {percent(numbers.runtime)}",
    )
    if lately is not None and lately.words and status.finished_at is None:
        yield "", lately.words
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


def _pods(namespace: str, pods: tuple[PodLine, ...]) -> Iterator[tuple[str, str]]:
    """Where it runs; of many pods those first that do not run."""
    yield "namespace", namespace
    yield "pods", _counts(pods)
    troubled_first = sorted(pods, key=lambda pod: pod.phase == "running")
    for pod in troubled_first[:PODS_SHOWN]:
        ranks = f"{'ranks' if '-' in pod.ranks else 'rank'} {pod.ranks}" if pod.ranks else ""
        facts = (pod.name, pod.node or "no node", pod.phase, ranks, pod.reason)
        yield "", "  ".join(fact for fact in facts if fact)
    if len(pods) > PODS_SHOWN:
        yield "", f"and {len(pods) - PODS_SHOWN} more"


def _counts(pods: tuple[PodLine, ...]) -> str:
    phases = sorted({pod.phase for pod in pods})
    counts = ", ".join(f"{sum(pod.phase == phase for pod in pods)} {phase}" for phase in phases)
    return f"{counted(len(pods), 'pod')}: {counts}" if pods else "none"


def _attempt(view: StatusView) -> str:
    attempt = view.status.attempt
    if not attempt.number:
        return "none yet"
    state = f"{attempt.state} when it was cut off" if view.cut_off else attempt.state
    return f"{attempt.number} ({state}), world size {attempt.world_size}"


def _size(view: StatusView) -> str:
    if view.cut_off:
        had = f"{view.status.size} when it was cut off"
        return f"0 of {counted(view.wanted_size, 'worker')}, {had}; allowed {_sizes(view.allowed_sizes)}"
    growth = f"; {view.growth}" if view.growth else ""
    size = f"{view.status.size} of {counted(view.wanted_size, 'worker')}"
    return f"{size}; allowed {_sizes(view.allowed_sizes)}{growth}"


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
    then = ", as of that save" if view.saves_measured else ""  # it may have been changed since
    saves = f"; {view.saves}{then}" if view.saves else ""
    return (
        f"step {newest.step} ({newest.name}), {byte_size(newest.bytes)}, {_ago(view.at - newest.at, view)},"
        f" stopped training for {duration(newest.blocking_ms / 1000)}{saves}"
    )


def _ago(seconds: float, view: StatusView) -> str:
    """``5.0 s ago``; of a job whose clock has stopped, before that."""
    if view.status.finished_at is not None:
        since = "before the end"
    else:
        since = "ago" if view.owner is not None or view.pods is not None else "before it stopped"
    return f"{duration(max(0.0, seconds))} {since}"


def _recovery(item: Ending, view: StatusView) -> str:
    if item.recover_seconds is not None:
        return f"recovered after {duration(item.recover_seconds)}, {steps_told(item)}"
    if view.status.finished_at is not None:  # it will not be
        return "the job ended with it"
    return f"recovered not yet, {steps_told(item)}"


def _interruption(item: Ending, view: StatusView) -> list[Text]:
    ago = _ago(view.goodput.age_seconds - item.at_seconds, view)
    lines = [
        Text(f"last interruption: {item.cause}, attempt {item.attempt}, {ago}", style="bold"),
        Text(f"  {sighting(item)}"),
        Text(f"  detected after {duration(item.detect_seconds)}, {_recovery(item, view)}"),
    ]
    return lines + [Text(f"  | {line}", style="dim") for line in item.tail]
