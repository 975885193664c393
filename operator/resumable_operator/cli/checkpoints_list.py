"""``rtj checkpoints list`` and ``verify``: what a store holds and whether to trust it."""

from __future__ import annotations

import json
import sys

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resumable_operator.cli import exitcodes
from resumable_operator.cli.checkpoints_common import store_options
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import make_console, printable
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.source import Checked, CheckpointSource, Listing
from resumable_operator.cli.store_source import StoreSource
from resumable_operator.cli.units import byte_size, duration
from resumable_training.checkpoint.listing import CheckpointInfo
from resumable_training.checkpoint.verify import DAMAGED, OK

WIDE = 80
_NUMBERS = ("step", "attempt", "samples", "ranks", "size", "age")


LIST_CLUSTER_HELP = """List what the store of JOB holds, newest first, and why one is no resume point.

Reads names, sizes and manifests, not the shards: `verify` does that.
"""
VERIFY_CLUSTER_HELP = """Read every byte of the complete checkpoints of JOB and compare it with the manifests.

Of another program's checkpoints, which have no manifest, only the structure can be checked. Exits with 0 when
all are whole, with 1 when one is proved damaged, with 6 when a store error left it open.
"""


@click.command(
    "list",
    cls=PlacedCommand,
    cluster_help=LIST_CLUSTER_HELP,
    short_help="Say what a store holds and what can be resumed from.",
)
@store_options()
def list_command(
    directory: str, as_json: bool, image: str | None, time_limit: float | None, place: Place
) -> None:
    """List what DIR (or the store of JOB) holds, newest first, and why a checkpoint is no resume point.

    Reads names, sizes and manifests, not the shards: `verify` does that.
    """
    with checkpoints_at(directory, place, image, time_limit) as store:
        listing = store.listing()
        if as_json:
            click.echo(json.dumps(listing.plain(), indent=2))
        else:
            _print_list(listing, store.title, make_console())


@click.command(
    "verify",
    cls=PlacedCommand,
    cluster_help=VERIFY_CLUSTER_HELP,
    short_help="Read every byte and compare it with the manifests.",
)
@store_options()
@click.option("--step", type=click.IntRange(min=0), help="Only checkpoints of this step.")
@click.option("--jobs", type=click.IntRange(min=1, max=256), help="Files to read at a time. Default: twice as"
              " many as processors, at most 8.")  # fmt: skip
def verify_command(
    directory: str,
    step: int | None,
    jobs: int | None,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Read every byte of the complete checkpoints in DIR (or of JOB) and compare it with the manifests.

    Of another program's checkpoints, which have no manifest, only the structure can be checked: that the
    marker parses and every shard it names is there and long enough. Exits with 0 when all are whole, with 1
    when one is proved damaged, with 6 when a store error left it open. A terminal shows how far it is.
    """
    console = make_console()

    def tell(checked: Checked) -> None:
        if as_json:
            return
        with console.capture() as line:
            console.print(_verdict_line(checked), soft_wrap=True)
        sys.stdout.write(line.get())  # a progress bar that is shown moves down for it, for no console
        sys.stdout.flush()

    with checkpoints_at(directory, place, image, time_limit) as store:
        results = store.verify(step, tell, jobs)
        passed_over = "" if as_json else _passed_over(store, results)
    if passed_over:
        click.echo(passed_over)
    if as_json:
        click.echo(json.dumps([checked.plain() for checked in results], indent=2))
    sys.exit(_exit_code(results))


def _passed_over(store: CheckpointSource, results: list[Checked]) -> str:
    """What a job goes on from, where its next resume point is damaged. Empty: it is not, or nobody looked."""
    damaged = [checked.name for checked in results if checked.verdict.outcome == DAMAGED]
    if not damaged or len(results) == 1 or not isinstance(store, StoreSource):
        return ""
    points = [info.name for info in store.listing().ours if info.resumable]
    if not points or points[0] not in damaged:
        return ""
    older = next((name for name in points if name not in damaged), None)
    then = f"resumes {older}" if older else "has none to resume"
    return f"the next resume point is damaged: the next attempt passes over it, and {then}"


def _verdict_line(checked: Checked) -> Text:
    verdict = checked.verdict
    style = {OK: "green", DAMAGED: "bold red"}.get(verdict.outcome, "yellow")
    word = verdict.outcome.replace("_", " ")
    if verdict.outcome == OK and checked.foreign:
        word = "ok (structure only: it has no manifest)"
    line = Text.assemble(f"{printable(checked.name)}  ", (word, style))
    return line + Text(f": {printable(verdict.reason)}" if verdict.reason else "")


def _exit_code(results: list[Checked]) -> int:
    outcomes = {checked.verdict.outcome for checked in results}
    if DAMAGED in outcomes:
        return exitcodes.CHECK_FAILED
    return exitcodes.SUCCESS if outcomes == {OK} else exitcodes.INTERNAL


def _print_list(listing: Listing, title: str, console: Console) -> None:
    if not listing.ours and not listing.others:
        console.print(f"{title} holds no checkpoints")
        return
    if listing.ours:
        console.print(_table(listing.ours, console.width))
        console.print(
            "By names and sizes: whether the bytes are whole says `checkpoints verify`.", style="dim"
        )
    for name in listing.others:
        line = Text(f"{printable(name)}  (another program's; `checkpoints verify` checks its structure)")
        if name == listing.offered:
            line.append("  next resume point", style="bold green")
        console.print(line, soft_wrap=True)


def _table(ours: tuple[CheckpointInfo, ...], width: int) -> Table:
    """Name and state always; numbers where there is room for them."""
    shown = _NUMBERS if width >= WIDE else ()
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("checkpoint", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    newest = next((info.name for info in ours if info.resumable), None)
    for info in ours:
        numbers = _numbers(info)
        table.add_row(info.name, *[numbers[name] for name in shown], _state(info, info.name == newest))
    return table


def _numbers(info: CheckpointInfo) -> dict[str, str]:
    return {
        "step": str(info.step),
        "attempt": _known(info.attempt),
        "samples": _known(info.samples),
        "ranks": _known(info.world_size),
        "size": byte_size(info.bytes),
        "age": duration(info.age_seconds),
    }


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)


def _state(info: CheckpointInfo, is_next: bool) -> Text:
    word = info.why_not or ("next resume point" if is_next else "complete")
    style = "bold green" if is_next else "" if info.resumable else "yellow"
    notes = [f"verified {duration(info.verified_seconds)} ago"] if info.verified_seconds is not None else []
    notes += ["pinned"] if info.pinned else []
    return Text(", ".join([word, *notes]), style=style)
