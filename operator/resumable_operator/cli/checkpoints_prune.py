"""``rtj checkpoints prune``: make room, by the rules of retention."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console

from resumable_operator.cli import exitcodes
from resumable_operator.cli.checkpoints_common import store_options, working_on
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.source import Pruned
from resumable_operator.cli.store_source import require_store
from resumable_operator.cli.units import byte_size
from resumable_operator.words import counted
from resumable_training.checkpoint.prune import LEFTOVER_SECONDS
from resumable_training.contract.codec import to_plain

CLUSTER_HELP = """Delete checkpoints of JOB that retention would delete, and what failed saves have left.

Says what it would do; with --yes it does it, in a pod that has the claim for writing. Safe while the job
runs. The newest complete checkpoints on the chain stay (at least 2), and so does what is pinned.
"""
_EXAMPLES = """\b
Examples:
  rtj checkpoints prune runs/gpt                 what would go
  rtj checkpoints prune runs/gpt --keep 2 --yes  the disk is full
"""


@click.command(
    "prune",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Delete old checkpoints and what failed saves have left.",
)
@store_options()
@click.option("--keep", type=click.IntRange(min=2), help="Complete checkpoints to keep on the chain, at least"
              " 2. Default: what the job's spec says, else 3.")  # fmt: skip
@click.option("--keep-every-steps", type=click.IntRange(min=1), help="Keep also steps that are a multiple of"
              " this. Default: what the job's spec says.")  # fmt: skip
@click.option("--protect", multiple=True, metavar="STEP|NAME", help="Keep this one, too.")
@click.option("--yes", "act", is_flag=True, help="Delete; without it, only say what would go.")
def prune_command(
    directory: str,
    keep: int | None,
    keep_every_steps: int | None,
    protect: tuple[str, ...],
    act: bool,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Delete checkpoints that retention would delete, and what failed saves have left.

    Says what it would do; with --yes it does it. The newest complete checkpoints on the chain stay, the next
    resume point among them, and so do pinned ones and the one that the spec's resumeFrom names. It is safe
    while the job runs: a save in progress is always newer than what may go.
    """
    with checkpoints_at(directory, place, image, time_limit) as store:
        require_store(store)
        if not as_json:
            click.echo(working_on(store.title))
        done = store.prune(keep, act, keep_every_steps, protect)
        if as_json:
            click.echo(json.dumps({"store": store.title, **to_plain(done)}, indent=2))
        else:
            _print(done, make_console())
    if done.failed:
        sys.exit(exitcodes.INTERNAL)


def _print(done: Pruned, console: Console) -> None:
    plan = done.plan
    for one in plan.doomed:
        word = _done_with(one.name, done) if done.acted else "would go"
        console.print(f"{one.name}  {word}: {one.why}, {byte_size(one.bytes)}", soft_wrap=True)
    for name in plan.pinned:
        console.print(f"{name}  stays: pinned, or wanted by resumeFrom", soft_wrap=True)
    for name in plan.young:
        console.print(
            f"{name}  stays: incomplete, and younger than {LEFTOVER_SECONDS / 60:.0f} min", soft_wrap=True
        )
    for name in plan.missing:
        console.print(f"{name}  was to be kept, and is not here", soft_wrap=True)
    console.print(_summary(done), soft_wrap=True)


def _done_with(name: str, done: Pruned) -> str:
    if name in done.failed:
        return f"could not be deleted ({done.failed[name]})"
    return "deleted" if name in done.gone else "kept, pinned just now"


def _summary(done: Pruned) -> str:
    stay = f"{counted(len(done.plan.kept), 'complete checkpoint')} on the chain"
    if not done.plan.doomed:
        return f"nothing to delete; {stay}"
    size = byte_size(sum(one.bytes for one in done.plan.doomed if not done.acted or one.name in done.gone))
    if done.acted:
        return f"{size} freed; {stay} stay"
    return f"{size} would be freed, {stay} would stay: nothing is deleted without --yes"
