"""``rtj checkpoints pin``, ``unpin`` and ``pins``: hold checkpoints for readers."""

from __future__ import annotations

import getpass
import json
import re
import socket
import time
from datetime import datetime

import click

from resumable_operator.cli.checkpoints_common import store_options
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.output import make_console, printable
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.source import Held
from resumable_operator.cli.units import duration
from resumable_training.contract.codec import to_plain

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LENGTH = re.compile(r"([0-9]{1,9})([smhd])")
_MOMENT = re.compile(r"@([0-9]{1,12})")
LONGEST_HOLDER = 200
_CENTURY = 100 * 365.25 * 86400
DEFAULT_UNTIL = "7d"

_PIN_CLUSTER_HELP = """Hold a checkpoint of JOB, so that neither retention nor prune deletes it."""
_UNPIN_CLUSTER_HELP = """Give back a pin on a checkpoint of JOB."""
_PINS_CLUSTER_HELP = """List the pins in the store of JOB."""
_EXAMPLES = """\b
Examples:
  rtj checkpoints pin runs/gpt 1200 --until 30d
  rtj checkpoints pin s3://models/gpt step-00001200.7 --until 2031-01-31T18:00 --holder eval
  rtj checkpoints unpin runs/gpt 1200
"""


def until(text: str, now: float) -> float:
    """``7d``, ``12h``, ``2031-01-31``, ``2031-01-31T18:00`` as wall clock seconds; by default in this zone.

    Raises:
        UsageProblem: it is none of these, or past.
    """
    length, moment = _LENGTH.fullmatch(text), _MOMENT.fullmatch(text)
    if length:
        at = now + int(length[1]) * _UNITS[length[2]]
    elif moment:
        at = float(moment[1])
    else:
        try:
            at = datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError) as error:
            raise UsageProblem(
                f"--until {text}: give a length such as 12h or 7d, or a date such as 2031-01-31T18:00"
            ) from error
    if at <= now:
        raise UsageProblem(f"--until {text} is past: the pin would hold nothing")
    return at


def _me() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _fit(holder: str) -> str:
    """Raises UsageProblem for what nobody could read in a list."""
    if len(holder) > LONGEST_HOLDER or not holder.isprintable():
        raise UsageProblem(f"--holder: give at most {LONGEST_HOLDER} letters that can be printed")
    return holder


def _length(seconds: float) -> str:
    return duration(seconds) if seconds < _CENTURY else "more than 100 years"


@click.command(
    "pin",
    cls=PlacedCommand,
    cluster_help=_PIN_CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Hold a checkpoint, so that nothing deletes it.",
)
@store_options()
@click.argument("which", metavar="STEP|NAME")
@click.option("--until", "text", default=DEFAULT_UNTIL, show_default=True, metavar="LENGTH|DATE",
              help="How long: 30m, 12h, 7d, or a date and time. A forgotten pin ends by itself.")  # fmt: skip
@click.option("--holder", help="Who holds it, for people. Default: user@host.")
def pin_command(
    directory: str,
    which: str,
    text: str,
    holder: str | None,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Hold a checkpoint, so that neither retention nor `prune` deletes it.

    The same holder may pin it again with another end. A program that reads a checkpoint holds it by
    `resumable_training.checkpoint.pins.held`.
    """
    now = time.time()
    at, holder = until(text, now), _fit(holder or _me())
    with checkpoints_at(directory, place, image, time_limit) as store:
        name = store.pin(which, holder, at)
    if as_json:
        click.echo(json.dumps({"checkpoint": name, "holder": holder}, indent=2))
    else:
        click.echo(f"{name} is held by {holder} for {_length(at - now)}")


@click.command("unpin", cls=PlacedCommand, cluster_help=_UNPIN_CLUSTER_HELP, short_help="Give a pin back.")
@store_options()
@click.argument("which", metavar="STEP|NAME", required=False)
@click.option("--holder", help="Whose pin. Default: user@host, as for `pin`.")
@click.option("--all", "of_all", is_flag=True, help="The pins of all holders, also of jobs that read it now.")
@click.option("--damaged", is_flag=True, help="Instead: pins that can't be read, which hold everything.")
def unpin_command(
    directory: str,
    which: str | None,
    holder: str | None,
    of_all: bool,
    damaged: bool,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Give back the pin on a checkpoint."""
    if damaged == (which is not None):
        raise UsageProblem("give a checkpoint (STEP or NAME), or --damaged")
    whose = None if of_all or damaged else holder or _me()
    with checkpoints_at(directory, place, image, time_limit) as store:
        gone = store.unpin(which, whose)
    if not gone:
        told = f"no pin of {whose}" if whose else "no such pin"
        raise UsageProblem(
            f"{told} is there; `rtj checkpoints pins` lists them, --all takes those of anybody"
        )
    if as_json:
        click.echo(json.dumps([to_plain(one) for one in gone], indent=2))
        return
    for one in gone:
        click.echo(f"{one.checkpoint or one.file} is no longer held by {printable(one.holder or 'anybody')}")


@click.command(
    "pins", cls=PlacedCommand, cluster_help=_PINS_CLUSTER_HELP, short_help="List pins: who holds what."
)
@store_options()
def pins_command(
    directory: str, as_json: bool, image: str | None, time_limit: float | None, place: Place
) -> None:
    """List who holds which checkpoint for how long."""
    with checkpoints_at(directory, place, image, time_limit) as store:
        held = store.pins()
        if as_json:
            click.echo(json.dumps([to_plain(one) for one in held], indent=2))
            return
        console = make_console()
        for one in held:
            console.print(_line(one), soft_wrap=True)
        if not held:
            console.print(f"{store.title} has no pins")


def _line(one: Held) -> str:
    holder = printable(one.holder or "somebody")
    if one.checkpoint is None or one.seconds is None:
        return f"{one.file}: can't be read, so nothing is deleted; `unpin --damaged` removes it"
    if not one.counts:
        return f"{one.checkpoint}: no longer held by {holder}: its time was over"
    return f"{one.checkpoint}: held by {holder} for {_length(one.seconds)}"
