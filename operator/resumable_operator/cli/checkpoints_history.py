"""``rtj checkpoints history``: what attempts left beside their checkpoints, for reports and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click
from rich import box
from rich.table import Table

from resumable_operator.cli.checkpoints_common import store_options
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.units import duration
from resumable_training.checkpoint.history import AttemptHistory, shortened
from resumable_training.contract.codec import to_plain

MOST_LINES = 3000  # of JSON, over all attempts: it may travel as a pod's log
FEWEST_STEPS = 20  # of each attempt

CLUSTER_HELP = """List what each attempt of JOB left beside its checkpoints.

`rtj report --html` draws it; it is there also when all pods are gone.
"""


@click.command(
    "history",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    short_help="List what each attempt left for reports.",
)
@store_options()
def history_command(
    directory: str, as_json: bool, image: str | None, time_limit: float | None, place: Place
) -> None:
    """List what each attempt left beside its checkpoints: steps, losses, phases and saves.

    `rtj report --html` draws it; it is there also when all pods are gone. With --json, long ones are thinned.
    """
    with checkpoints_at(directory, place, image, time_limit) as store:
        found = store.histories()
        if as_json:
            click.echo(as_lines(found))
        elif not found:
            click.echo(f"{store.title} has no history")
        else:
            make_console().print(_table(found))


def as_lines(found: Sequence[AttemptHistory]) -> str:
    """A JSON list with an attempt on each line, bounded."""
    most = max(FEWEST_STEPS, MOST_LINES // max(1, 2 * len(found)))
    lines = (json.dumps(to_plain(shortened(item, most)), separators=(",", ":")) for item in found)
    return "[\n" + ",\n".join(lines) + "\n]" if found else "[]"


def _table(found: Iterable[AttemptHistory]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("record", "attempt", "ranks", "from step", "to step", "saves", "failed", "lasted"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in found:
        table.add_row(*_cells(item))
    return table


def _cells(item: AttemptHistory) -> tuple[str, ...]:
    last_save = item.saves[-1] if item.saves else None
    newest = max((each.step for each in item.steps), default=None)
    made = last_save.made if last_save else 0
    made += item.committing is not None and (last_save is None or last_save.step != item.committing.step)
    end = item.committing or (item.steps[-1] if item.steps else item.begin)
    return (
        str(item.record),
        str(item.begin.attempt),
        str(item.begin.world_size),
        "-" if item.restored is None else str(item.restored.step),
        "-" if newest is None else str(newest),
        str(made),
        str(last_save.failed if last_save else 0),
        duration(end.ms / 1000),
    )
