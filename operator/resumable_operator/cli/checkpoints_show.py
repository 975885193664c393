"""``rtj checkpoints show``: what one checkpoint holds, from its marker and manifest alone."""

from __future__ import annotations

import json
import time

import click
from rich import box
from rich.console import Console
from rich.table import Table

from resumable_operator.cli.checkpoints_common import STEP, store_options
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import make_console, printable
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.units import byte_size, duration
from resumable_operator.words import counted
from resumable_training.checkpoint.content import Content, Group, Value, group_name
from resumable_training.contract.codec import to_plain

_SHOWN_KINDS = ("module", "other")
CLUSTER_HELP = """Show what a checkpoint of JOB holds: keys, shapes, types, sizes, files.

Reads its index and its manifest, not the shards, and runs nothing that is in them.
"""
_EXAMPLES = """\b
Examples:
  rtj checkpoints show runs/gpt                     the next resume point
  rtj checkpoints show runs/gpt --step 1200 --all   optimizer state and the library's own keys, too
  rtj checkpoints show s3://models/gpt/step-00001200.7 --json | jq '.values[].key'
"""


@click.command(
    "show",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Show keys, shapes, types, sizes and files of a checkpoint.",
)
@store_options()
@STEP
@click.option("--all", "everything", is_flag=True, help="Also each key of optimizers and of the library.")
def show_command(
    directory: str,
    which: str | None,
    everything: bool,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Show what a checkpoint holds: keys, shapes, types, sizes, files.

    DIR or URL is a store, a run directory, or one checkpoint, also of another program. Reads the index and
    the manifest, not the shards, and runs nothing that is in them; needs no torch.
    """
    with checkpoints_at(directory, place, image, time_limit) as store:
        content = store.show(which)
    if as_json:
        click.echo(json.dumps(to_plain(content), indent=2))
    else:
        _print(content, everything, make_console(), time.time())


def _print(content: Content, everything: bool, console: Console, now: float) -> None:
    console.print(f"{content.name}  {byte_size(content.bytes)} in {counted(len(content.files), 'file')}")
    for line in _facts(content, now):
        console.print(f"  {line}", soft_wrap=True)
    console.print(_group_table(content))
    kinds = {group.name: group.kind for group in content.groups}
    shown = [value for value in content.values if everything or kinds[group_name(value.key)] in _SHOWN_KINDS]
    console.print(_value_table(shown))
    if len(shown) < len(content.values):
        console.print(f"{counted(len(content.values) - len(shown), 'more key')} with --all")
    console.print(_file_table(content))


def _facts(content: Content, now: float) -> list[str]:
    if content.step is None:
        return ["another program's: it has no manifest, so its bytes can't be verified"]
    age = f", saved {duration(max(0.0, now - content.created))} ago" if content.created else ""
    made = f" by torch {content.torch_version}" if content.torch_version else ""
    return [
        f"step {content.step}, {counted(content.samples or 0, 'sample')}, attempt {content.attempt}{age}",
        f"written by {counted(content.world_size or 0, 'rank')}{made}; any number can load it",
    ]


def _group_table(content: Content) -> Table:
    table = _table("keys under", "kind", ">keys", ">elements", ">size")
    for group in content.groups:
        table.add_row(*_group_row(group))
    return table


def _group_row(group: Group) -> tuple[str, ...]:
    return (
        printable(group.name),
        group.kind,
        str(group.values),
        f"{group.elements:,}",
        byte_size(group.bytes),
    )


def _value_table(values: list[Value]) -> Table:
    table = _table("key", "type", "shape", ">size", "in")
    for value in values:
        shape = "-" if value.shape is None else "x".join(map(str, value.shape)) or "scalar"
        files = value.files[0] if len(value.files) == 1 else f"{len(value.files)} files"
        table.add_row(printable(value.key), value.dtype or "-", shape, byte_size(value.bytes), files)
    return table


def _file_table(content: Content) -> Table:
    table = _table("file", ">size", "xxh3-128")
    for file in content.files:
        table.add_row(printable(file.name), byte_size(file.bytes), file.hash or "-")
    return table


def _table(*columns: str) -> Table:
    """``>``: numbers, at the right."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in columns:
        table.add_column(name.lstrip(">"), justify="right" if name[0] == ">" else "left", overflow="fold")
    return table
