"""The ``rtj`` command: a group whose sub-commands are imported only when they are called."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from resumable_operator.cli import exitcodes
from resumable_operator.cli.place import PLUGIN, by_kubectl
from resumable_operator.errors import ResumableError, SpecError


@dataclass(frozen=True)
class Lazy:
    """Where a sub-command is, and its one line of help for the list."""

    module: str
    attribute: str
    summary: str


_CLI = "resumable_operator.cli"
COMMANDS = {
    "run": Lazy(f"{_CLI}.run", "run_command", "Train on this machine through failures; continue a run."),
    "list": Lazy(f"{_CLI}.jobs", "list_command", "List the jobs in a cluster."),
    "status": Lazy(f"{_CLI}.status", "status_command", "Show what a job is doing and why."),
    "logs": Lazy(f"{_CLI}.logs", "logs_command", "Show the output of a job's ranks."),
    "report": Lazy(f"{_CLI}.report", "report_command", "Say where every second went and what failures cost."),
    "checkpoints": Lazy(
        f"{_CLI}.checkpoints", "checkpoints_command", "List, verify, prune, copy, export; roll back."
    ),
    "suspend": Lazy(f"{_CLI}.suspend", "suspend_command", "Commit a checkpoint and give the pods back."),
    "resume": Lazy(f"{_CLI}.suspend", "resume_command", "Let a suspended job in a cluster go on."),
    "simulate": Lazy(
        f"{_CLI}.simulate", "simulate_command", "Say what goodput would be, before buying machines."
    ),
    "fault": Lazy(f"{_CLI}.fault", "fault_command", "Break a running job on purpose."),
    "demo": Lazy(
        f"{_CLI}.demo", "demo_command", "See it survive failures on this machine, and check itself."
    ),
}
_ABOUT_CLUSTERS = (
    "See PyTorch jobs in a cluster that train through failures: what they do and why, what they print, where"
    " their time goes, and what they can resume from."
)
OF_THIS_MACHINE = ("run", "fault", "demo")  # not part of `kubectl rtj`


def _commands(ctx: click.Context) -> dict[str, Lazy]:
    """Those that make sense as it was called: a plug-in of kubectl is for clusters."""
    plugin = by_kubectl(ctx)
    return {name: COMMANDS[name] for name in COMMANDS if not (plugin and name in OF_THIS_MACHINE)}


class LazyGroup(click.Group):
    """Lists ``COMMANDS`` without importing them, and turns our errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_commands(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _commands(ctx).get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What was mistyped is told with what is nearest, as click does for options."""
        near = get_close_matches(args[0], self.list_commands(ctx))
        if near and args[0] not in self.list_commands(ctx):
            meant = " or ".join(f"'{name}'" for name in near)
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean {meant}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in _commands(ctx).items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        meaning = exitcodes.IN_CLUSTER if by_kubectl(ctx) else exitcodes.MEANING
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in meaning.items()])

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not by_kubectl(ctx):
            super().format_help_text(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_ABOUT_CLUSTERS)
            formatter.write_paragraph()
            formatter.write_text("`kubectl rtj COMMAND --help` tells more about each command.")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ResumableError as error:
            lines = error.lines if isinstance(error, SpecError) else (str(error),)
            click.echo("\n       ".join([f"Error: {lines[0]}", *lines[1:]]), err=True)
            ctx.exit(exitcodes.for_error(error))
        except KeyboardInterrupt:
            ctx.exit(exitcodes.INTERRUPTED)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="resumable-training", prog_name="rtj")
def cli() -> None:
    """Train PyTorch jobs through failures: elastic, resumed from verified checkpoints, with their goodput.

    `rtj COMMAND --help` tells more about each command. Those that look at a job take a run directory, or with
    -n NAMESPACE the name of a job in a cluster.
    """


def _open_standard_streams() -> None:
    """Started with closed ones (``>&-``), a file of ours would get their numbers, and output go into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  for the whole life
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> None:
    """Entry point. A bug of ours prints its traceback and exits with the code of an internal error."""
    _open_standard_streams()
    try:
        cli.main(prog_name=PLUGIN if Path(sys.argv[0]).name.startswith("kubectl-") else "rtj")
    except Exception:  # noqa: BLE001  the outermost frame: everything unforeseen ends here
        traceback.print_exc()
        sys.exit(exitcodes.INTERNAL)


if __name__ == "__main__":
    main()
