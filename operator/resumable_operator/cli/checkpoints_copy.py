"""``rtj checkpoints copy``: one checkpoint to another place, or a whole store for a job that moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from resumable_operator.cli.checkpoints_common import STEP
from resumable_operator.cli.checkpoints_reading import Reading, opened_here, reading
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.progress import bytes_bar
from resumable_operator.cli.rundir import is_run
from resumable_operator.cli.units import byte_size
from resumable_operator.words import counted
from resumable_training.checkpoint.copying import THREADS, Copied, Moved, copy_checkpoint, copy_store
from resumable_training.checkpoint.errors import StoreExists
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import is_url, open_store
from resumable_training.contract.codec import to_plain

CLUSTER_HELP = """Copy a checkpoint of JOB: says how to reach it from this machine."""
_EXAMPLES = """\b
Examples:
  rtj checkpoints copy runs/gpt /archive                        the next resume point
  rtj checkpoints copy runs/gpt s3://models/kept --step 1200
  rtj checkpoints copy s3://models/gpt/step-00001200.7 .
  rtj checkpoints copy s3://old/gpt s3://new/gpt --all          a job moves to another bucket

Cut off, the same command line goes on. Another job starts from a copy with
resumeFrom: s3://models/kept/step-00001200.7
"""


@click.command(
    "copy",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Copy checkpoints to another store, verified on the way.",
)
@click.argument("source", metavar="DIR|URL|JOB")
@click.argument("target", metavar="DIR|URL")
@STEP
@click.option("--all", "everything", is_flag=True,
              help="The whole store: owner, records, and all checkpoints on the chain.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1, max=256), default=THREADS, show_default=True,
              help="Files to copy at a time.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def copy_command(
    source: str,
    target: str,
    which: str | None,
    everything: bool,
    jobs: int,
    as_json: bool,
    place: Place,
) -> None:
    """Copy a checkpoint into the directory or bucket DIR|URL, under its own name.

    Each file is compared with the manifest as it passes, and the marker comes last: a copy that was cut off
    is no checkpoint, and the same command goes on with it. Both stores are reached with the same credentials
    (AWS_...). With --all the copy can take the place of the store: point the suspended job at it.
    """
    if everything and which is not None:
        raise UsageProblem("give --step or --all")
    if not is_url(target) and is_run(Path(target)):
        raise UsageProblem(f"{target} is a run directory: copy to a place beside it")
    if everything:
        moved = _copy_all(source, target, place, jobs, as_json)
        click.echo(json.dumps(to_plain(moved), indent=2) if as_json else _told_all(moved, target))
        return
    with reading(source, which, place, "rtj checkpoints copy") as one:
        copied = _copy_one(one, target, jobs)
    click.echo(json.dumps(to_plain(copied), indent=2) if as_json else _told(copied, target))


def _copy_one(one: Reading, target: str, jobs: int) -> Copied:
    size = sum(entry.bytes for entry in one.store.entries(one.name))
    with bytes_bar(f"copying {one.name}", size) as advance, _clashes():
        return copy_checkpoint(
            one.store, one.name, open_store(target), foreign=one.foreign, advance=advance, threads=jobs
        )


def _copy_all(source: str, target: str, place: Place, jobs: int, quiet: bool) -> Moved:
    with opened_here(source, place) as found:
        if found.only is not None:
            raise UsageProblem(f"{source} is one checkpoint: leave out --all")
        with bytes_bar("copying", _bytes_on_chain(found.store)) as advance, _clashes():
            return copy_store(
                found.store,
                open_store(target),
                tell=lambda copied: None if quiet else click.echo(_told(copied, target)),
                advance=advance,
                threads=jobs,
            )


def _bytes_on_chain(store: Store) -> int:
    return sum(info.bytes for info in list_checkpoints(store, 0.0) if info.complete and info.on_chain)


@contextmanager
def _clashes() -> Iterator[None]:
    """What is there already is a problem of the command line."""
    try:
        yield
    except StoreExists as error:
        raise UsageProblem(f"{error}: copy to another place, or remove it first") from error


def _told(copied: Copied, target: str) -> str:
    there = f", {byte_size(copied.there)} were there" if copied.there else ""
    return f"{target.rstrip('/')}/{copied.checkpoint}  {byte_size(copied.bytes)} copied{there}, verified"


def _told_all(moved: Moved, target: str) -> str:
    return (
        f"{target} can take the place of the store of {moved.owner}: {counted(moved.records, 'record')},"
        f" {counted(len(moved.checkpoints), 'checkpoint')}"
    )
