"""``rtj report``: where every second went and what each interruption cost."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.opening import job_at
from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.report_checkpoints import CheckpointNumbers
from resumable_operator.cli.report_model import (
    Ending,
    GoodputNumbers,
    IntervalAdvice,
    Report,
    in_steps_too,
    not_reported_seconds,
    sighting,
    steps_told,
    waits_told,
)
from resumable_operator.cli.report_resumed import resumed_told
from resumable_operator.cli.report_story import Story
from resumable_operator.cli.standing import standing
from resumable_operator.cli.units import byte_size, duration, percent
from resumable_operator.words import counted

NO_HISTORY = (
    "how many were made, how many failed, and which were passed over as damaged is not in a job's status;"
    " --html reads the history beside the checkpoints, which has it"
)
TABLE_WIDTH = 80  # below it the interruptions are told in lines


CLUSTER_HELP = """Say where every second of a job went and what each interruption cost.

The report holds the interruptions and what was seen of each, seconds by phase (they sum to the job's age),
goodput and its two factors, the newest checkpoint and its cost, and what the save interval should have been.
No history of all saves is in a job's status; what would need it says so. With --html it is read from beside
the checkpoints, for which a short pod may be started and deleted.
"""


@click.command("report", cls=PlacedCommand, cluster_help=CLUSTER_HELP)
@click.argument("job", metavar="RUN|JOB", required=False)  # so that we can say what --html has swallowed
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--html",
    "html",
    metavar="[FILE]",
    is_flag=False,
    flag_value="",
    help="Write one page with charts, by itself, to FILE (-: standard output). Default: JOB-report.html.",
)
@click.option(
    "--image", help="In a cluster, with --html: image of the pod that reads. Default: the operator's."
)
@cluster_options
def report_command(job: str | None, as_json: bool, html: str | None, image: str | None, place: Place) -> None:
    """Say where every second of a job went and what each interruption cost.

    RUN is a run directory (`rtj run --dir RUN`); it may be running, ended or cut off: its `rtj run`
    was killed. With -n, JOB is a job in a cluster. The report holds the interruptions and what was seen of
    each, seconds by phase (they sum to the job's age), goodput and its two factors, the checkpoints and their
    cost, and what the save interval should have been. A job's status in a cluster has no history of all
    saves; what would need it says so.

    With --html it is one page that needs nothing else, with charts: phases, steps, loss and goodput over
    time, what recoveries were made of, what saves cost. It works also when the job's pods are gone: what it
    draws lies beside the checkpoints. In a cluster a short pod reads it, unless it is in object storage that
    AWS_ACCESS_KEY_ID opens.
    """
    if job is None:
        swallowed = f"; --html took {html} for its file: `rtj report {html} --html`" if html else ""
        raise click.UsageError(f"which job? give RUN or JOB first{swallowed}")
    if as_json and html is not None:
        raise click.UsageError("--json and --html exclude each other")
    if image is not None and (html is None or not place.in_cluster):
        raise UsageProblem("--image is for --html of a job in a cluster")
    with job_at(job, place) as source:
        if html is not None:
            _write_page(source.story(image), html)
            return
        report = source.report()
    if as_json:
        click.echo(json.dumps(report.plain(), indent=2))
    else:
        render(report, make_console())


def _write_page(story: Story, target: str) -> None:
    from resumable_operator.cli.html.page import page

    written = time.strftime("Written %d %b %Y, %H:%M UTC", time.gmtime())
    text = page(story.report, story.course, written, story.notes)
    if target == "-":
        click.echo(text, nl=False)
        return
    path = Path(target or f"{story.report.name}-report.html")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageProblem(f"can't write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}", err=True)


def render(report: Report, console: Console) -> None:
    """Print the report for people."""
    _title(report, console)
    _endings(report, console)
    _phases(report, console)
    _checkpoints(report, console)
    _interval(report.interval, console)
    if report.damaged_lines:
        skipped = counted(report.damaged_lines, "damaged line")
        console.print(f"Skipped {skipped} of history.jsonl.", style="yellow")


def _title(report: Report, console: Console) -> None:
    stands, reason = standing(report.phase, report.reason, report.cut_off)
    line = Text.assemble((report.name, "bold"), f"  {stands}")
    console.print(line + Text(f": {reason}" if reason else ""))
    again = f", {counted(report.rework_steps, 'step')} done again" if report.rework_steps else ""
    to_redo = f", {counted(report.steps_to_redo, 'step')} to redo" if report.steps_to_redo else ""
    attempts = counted(report.attempts, "attempt")
    console.print(f"step {report.step} (furthest {report.high_water_step}{again}{to_redo}), {attempts}")
    numbers = report.goodput
    console.print(
        f"goodput {percent(numbers.goodput)} = scheduling {percent(numbers.scheduling)}"
        f" x runtime {percent(numbers.runtime)}",
        style="bold",
    )
    if numbers.lost_seconds:
        lost = duration(numbers.lost_seconds)
        console.print(f"{lost} of productive work were lost for good: no checkpoint holds them")
    if is_opaque(numbers):
        console.print(opaque_note(numbers))


def is_opaque(numbers: GoodputNumbers) -> bool:
    """Whether the script mostly reports no steps; a rank that connects late is opaque for a moment only."""
    return numbers.opaque_seconds > numbers.productive_seconds


def opaque_note(numbers: GoodputNumbers) -> str:
    """Why goodput says little about a script that reports no steps."""
    return f"{duration(numbers.opaque_seconds)} ran without the library: what they produced is not known"


def _endings(report: Report, console: Console) -> None:
    if not report.endings:
        console.print("\nInterruptions: none")
        return
    console.print()
    if console.width < TABLE_WIDTH:
        for number, item in enumerate(report.endings, 1):
            console.print(_ending_line(number, item))
    else:
        console.print(_ending_table(report))
    if report.endings_not_shown:
        older = counted(report.endings_not_shown, "older one")
        console.print(f"(and {older}, counted but no longer kept one by one)")
    for number, item in enumerate(report.endings, 1):
        _evidence(number, item, console)
    _recoveries(report, console)


def _recoveries(report: Report, console: Console) -> None:
    """What all recoveries were made of, those too that ended in another interruption."""
    total = sum(report.recovery_seconds.values())
    if total:
        what = "Recoveries" if report.has_recovered else "No recovery yet; tries that failed"
        parts = ", ".join(f"{stage} {duration(took)}" for stage, took in report.recovery_seconds.items())
        console.print(f"{what} took {duration(total)}: {parts}")


def _ending_table(report: Report) -> Table:
    table = Table(
        title="Interruptions and planned endings", title_justify="left", box=box.SIMPLE, pad_edge=False
    )
    for name in ("#", "at", "attempt", "cause", "detected after", "recovered after", "done again", "size"):
        table.add_column(name, justify="left" if name == "cause" else "right")
    for number, item in enumerate(report.endings, 1):
        table.add_row(*_ending_cells(number, item))
    return table


def _ending_line(number: int, item: Ending) -> str:
    """The same on a terminal too narrow for the table."""
    _, at, attempt, cause, detected, recovered, _, size = _ending_cells(number, item)
    return (
        f"#{number} at {at}, attempt {attempt}: {cause}; detected after {detected},"
        f" recovered after {recovered}, {steps_told(item)}, size {size}"
    )


def _ending_cells(number: int, item: Ending) -> tuple[str, ...]:
    after = "-" if item.size_after is None else str(item.size_after)
    return (
        str(number),
        duration(item.at_seconds),
        str(item.attempt),
        item.cause + (" (planned)" if item.planned else ""),
        duration(item.detect_seconds),
        duration(item.recover_seconds),
        steps_told(item, short=True),
        f"{item.size_before} > {after}",
    )


def _evidence(number: int, item: Ending, console: Console) -> None:
    console.print(Text(f"#{number} {item.cause}: {sighting(item)}"))
    if resumed := resumed_told(item.resumed):
        console.print(Text(f"   {resumed}"))
    for line in item.tail:
        console.print(Text(f"   | {line}", style="dim"))


def _phases(report: Report, console: Console) -> None:
    table = Table(
        title="Seconds by phase", title_justify="left", box=box.SIMPLE, pad_edge=False, show_footer=True
    )
    age = report.goodput.age_seconds
    table.add_column("phase", footer="age")
    table.add_column("seconds", justify="right", footer=f"{age:.3f}")
    table.add_column("share", justify="right", footer=percent(1.0 if age else None))
    for item in report.phases:
        table.add_row(item.phase, f"{item.seconds:.3f}", percent(item.share))
    unsettled = not_reported_seconds(report)
    if unsettled:
        table.add_row("not reported yet", f"{unsettled:.3f}", percent(unsettled / age))
    console.print()
    console.print(table)


def _checkpoints(report: Report, console: Console) -> None:
    numbers = report.checkpoints
    if numbers.made is None:
        _newest_checkpoint(numbers, console)
        return
    failed = f", {numbers.failed} failed" if numbers.failed else ""
    newest = f"; newest {numbers.newest}" if numbers.newest else ""
    console.print(f"Checkpoints: {numbers.made or 'none'} made{failed}{newest}")
    if numbers.made:
        console.print(
            f"  newest {byte_size(numbers.newest_bytes)}, all {byte_size(numbers.total_bytes or 0)};"
            f" one stops training for {duration(numbers.blocking_seconds)}"
            f" and is durable after {duration(numbers.durable_seconds)};"
            f" together they cost {duration(numbers.blocking_total_seconds)}"
        )
    waits = waits_told(report)
    if waits:
        console.print(f"  {waits}")
    for item in numbers.fallbacks or ():
        console.print(
            Text(f"  attempt {item.attempt} did not use {item.checkpoint}: {item.why}", style="yellow")
        )


def _newest_checkpoint(numbers: CheckpointNumbers, console: Console) -> None:
    """All that is known without a history."""
    if numbers.newest is None:
        console.print("Checkpoints: none yet")
    else:
        console.print(
            f"Checkpoints: newest {numbers.newest}, {byte_size(numbers.newest_bytes)};"
            f" it stopped training for {duration(numbers.blocking_seconds)}"
            f" and was durable after {duration(numbers.durable_seconds)}"
        )
    console.print(f"  {NO_HISTORY}")


def _interval(advice: IntervalAdvice | None, console: Console) -> None:
    if advice is None:
        console.print("Save interval: no save was measured, so nothing can be recommended")
        return
    best = in_steps_too(advice.recommended_seconds, advice.recommended_steps)
    console.print(f"Save interval: should have been {best}{_expected(advice.expected_goodput_recommended)}")
    if advice.used:
        console.print(f"  was {advice.used}{_expected(advice.expected_goodput_used)}")
    often = f"an interruption every {duration(advice.mtbf_seconds)} ({seen_told(advice)})"
    console.print(
        f"  by Daly, from {often}, {duration(advice.blocking_seconds)} for a save,"
        f" {duration(advice.restart_seconds)} for a restart"
    )


def seen_told(advice: IntervalAdvice) -> str:
    """What the time between interruptions rests on."""
    if advice.interruptions:
        return f"{advice.interruptions} seen, and one assumed in the first hour"
    return "none yet: an hour to start with, and the time without any since"


def _expected(goodput: float | None) -> str:
    return "" if goodput is None else f": expected runtime goodput {percent(goodput)}"
