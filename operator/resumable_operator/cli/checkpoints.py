"""``rtj checkpoints list`` and ``verify``: what a store holds and whether to trust it. Needs no torch."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resumable_operator.cli import exitcodes
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.output import make_console
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.units import byte_size, duration
from resumable_operator.errors import RetryableError
from resumable_training.checkpoint.errors import CheckpointError
from resumable_training.checkpoint.listing import CheckpointInfo, list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.verify import DAMAGED, OK, Verdict, verify_checkpoint
from resumable_training.contract.codec import to_plain
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

WIDE = 80
_NUMBERS = ("step", "attempt", "samples", "ranks", "size", "age")
FOREIGN_DEPTH = 3  # directories below DIR that are searched for checkpoints of other programs


@dataclass(frozen=True)
class Target:
    """One complete checkpoint to verify. ``foreign``: another program's, without our manifest."""

    store: LocalStore
    name: str
    step: int | None
    foreign: bool


def _directory_argument(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))(command)


@click.group("checkpoints")
def checkpoints_command() -> None:
    """List and verify checkpoints.

    DIR is a checkpoint store, a run directory (`rtj run --dir DIR`), or a directory with PyTorch DCP
    checkpoints of another program; `verify` also takes one checkpoint.
    """


@checkpoints_command.command("list", short_help="Say what DIR holds and what can be resumed from.")
@_directory_argument
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_command(directory: Path, as_json: bool) -> None:
    """List what DIR holds, newest first, and why a checkpoint is no resume point.

    Reads names, sizes and manifests, not the shards: `verify` does that.
    """
    root = store_root(directory)
    if (root / MARKER_FILE).is_file():
        raise UsageProblem(
            f"{root} is one checkpoint: give the directory that holds it, {root.resolve().parent}"
        )
    with _store_errors():
        ours = list_checkpoints(LocalStore(root), time.time())
    others = foreign_names(root)
    if as_json:
        click.echo(
            json.dumps(
                [*map(to_plain, ours), *({"name": name, "foreign": True} for name in others)], indent=2
            )
        )
        return
    _print_list(ours, others, root, make_console())


@checkpoints_command.command("verify", short_help="Read every byte and compare it with the manifests.")
@_directory_argument
@click.option("--step", type=click.IntRange(min=0), help="Only checkpoints of this step.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def verify_command(directory: Path, step: int | None, as_json: bool) -> None:
    """Read every byte of DIR's complete checkpoints and compare it with the manifests.

    Of another program's checkpoints, which have no manifest, only the structure can be checked: that the
    marker parses and every shard it names is there and long enough. Exits with 0 when all are whole, with 1
    when one is proved damaged, with 6 when a store error left it open.
    """
    console = make_console()
    results = []
    with _store_errors():
        for target in targets(directory, step):
            verdict = verify_checkpoint(target.store, target.name, foreign=target.foreign)
            results.append((target, verdict))
            if not as_json:
                console.print(_verdict_line(target, verdict), soft_wrap=True)
    if as_json:
        click.echo(json.dumps([_verdict_plain(target, verdict) for target, verdict in results], indent=2))
    sys.exit(_exit_code([verdict for _, verdict in results]))


def store_root(directory: Path) -> Path:
    """The directory that holds checkpoints: DIR itself, or that of a run.

    Raises:
        UsageProblem: there is no such directory.
    """
    root = RunDir(directory).checkpoints() if is_run(directory) else directory
    if not root.is_dir():
        what = "this run has made no checkpoint" if root != directory else "no such directory"
        raise UsageProblem(f"{root}: {what}")
    return root


def foreign_names(root: Path) -> list[str]:
    """Directories below ``root`` that another program's DCP made, relative and sorted."""
    patterns = ["/".join(["*"] * depth + [MARKER_FILE]) for depth in range(1, FOREIGN_DEPTH + 1)]
    found = (path.parent.relative_to(root) for pattern in patterns for path in root.glob(pattern))
    others = [str(path) for path in found if parse_checkpoint_name(path.parts[0]) is None]
    return sorted(others, key=_by_numbers)


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """step-80 before step-400: runs of digits are compared as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def targets(directory: Path, step: int | None) -> list[Target]:
    """The complete checkpoints that DIR means, newest first; with ``step`` only those of it.

    Raises:
        UsageProblem: there is none.
    """
    root = store_root(directory)
    found = [_single(root)] if (root / MARKER_FILE).is_file() else _all_below(root)
    if not found:
        raise UsageProblem(f"{root} holds no complete checkpoint")
    chosen = [target for target in found if step is None or target.step == step]
    if not chosen:
        steps = sorted({target.step for target in found if target.step is not None})
        raise UsageProblem(f"{root} holds no complete checkpoint of step {step}; it has steps {steps}")
    return chosen


def _single(root: Path) -> Target:
    parsed = parse_checkpoint_name(root.resolve().name)
    store = LocalStore(root.resolve().parent)
    return Target(store, root.resolve().name, parsed[0] if parsed else None, foreign=parsed is None)


def _all_below(root: Path) -> list[Target]:
    store = LocalStore(root)
    ours = [info for info in list_checkpoints(store, time.time()) if info.complete]
    return [Target(store, info.name, info.step, foreign=False) for info in ours] + [
        Target(store, name, None, foreign=True) for name in foreign_names(root)
    ]


def _verdict_line(target: Target, verdict: Verdict) -> Text:
    style = {OK: "green", DAMAGED: "bold red"}.get(verdict.outcome, "yellow")
    word = verdict.outcome.replace("_", " ")
    if verdict.outcome == OK and target.foreign:
        word = "ok (structure only: it has no manifest)"
    line = Text.assemble(f"{target.name}  ", (word, style))
    return line + Text(f": {verdict.reason}" if verdict.reason else "")


def _verdict_plain(target: Target, verdict: Verdict) -> dict[str, Any]:
    return {
        "name": target.name,
        "step": target.step,
        "foreign": target.foreign,
        "outcome": verdict.outcome,
        "reason": verdict.reason,
    }


def _exit_code(verdicts: list[Verdict]) -> int:
    outcomes = {verdict.outcome for verdict in verdicts}
    if DAMAGED in outcomes:
        return exitcodes.CHECK_FAILED
    return exitcodes.SUCCESS if outcomes == {OK} else exitcodes.INTERNAL


def _print_list(ours: list[CheckpointInfo], others: list[str], root: Path, console: Console) -> None:
    if not ours and not others:
        console.print(f"{root} holds no checkpoints")
        return
    if ours:
        console.print(_table(ours, console.width))
    for name in others:
        console.print(f"{name}  (another program's; `rtj checkpoints verify` checks its structure)")


def _table(ours: list[CheckpointInfo], width: int) -> Table:
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
    return Text(word + (", pinned" if info.pinned else ""), style=style)


@contextmanager
def _store_errors() -> Iterator[None]:
    """What the store can't tell now is trouble of the infrastructure, in the words of this package."""
    try:
        yield
    except CheckpointError as error:
        raise RetryableError(str(error)) from error
