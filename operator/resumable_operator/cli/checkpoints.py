"""``rtj checkpoints``: what a store holds, whether to trust it, and what people do with it. Needs no torch.

A file for each kind of command beside this one; only ``export`` loads torch, when it is called.
"""

from __future__ import annotations

import errno
from typing import Any

import click

from resumable_operator.cli.checkpoints_copy import copy_command
from resumable_operator.cli.checkpoints_export import export_command
from resumable_operator.cli.checkpoints_history import history_command
from resumable_operator.cli.checkpoints_list import list_command, verify_command
from resumable_operator.cli.checkpoints_pins import pin_command, pins_command, unpin_command
from resumable_operator.cli.checkpoints_prune import prune_command
from resumable_operator.cli.checkpoints_rollback import rollback_command
from resumable_operator.cli.checkpoints_serve import serve_command
from resumable_operator.cli.checkpoints_show import show_command
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import by_kubectl
from resumable_operator.errors import RetryableError

_LONGEST_PATH = 200  # of it in a message
_EXAMPLES = """\b
Examples:
  rtj checkpoints list runs/gpt                          what can be resumed from, and why not
  rtj checkpoints verify s3://models/gpt --step 1200     read every byte
  rtj checkpoints show runs/gpt --step 1200              keys, shapes, types, sizes
  rtj checkpoints rollback runs/gpt --to 1000            go on from an older one
  rtj checkpoints prune runs/gpt --keep 2 --yes          make room
  rtj checkpoints copy runs/gpt s3://models/kept         to another store
  rtj checkpoints export runs/gpt gpt-hf --dtype bf16    to Hugging Face safetensors
"""


class CheckpointsGroup(click.Group):
    """Its help, too, depends on how it was called; its commands are listed as they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """What the system says of a path that was given, or of one below it, is told in a line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read our output has had enough
            raise
        except OSError as error:
            text = f"{str(error.filename or 'the store')[:_LONGEST_PATH]}: {error.strerror or error}"
            kind = UsageProblem if error.errno == errno.ENAMETOOLONG else RetryableError
            raise kind(text) from error

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not by_kubectl(ctx):
            super().format_help_text(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("List, verify and manage checkpoints of a job.")
            formatter.write_paragraph()
            formatter.write_text(
                "A short pod with the operator's image reads the job's claim or bucket, and is deleted."
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not by_kubectl(ctx):
            super().format_epilog(ctx, formatter)


@click.group("checkpoints", cls=CheckpointsGroup, epilog=_EXAMPLES)
def checkpoints_command() -> None:
    """List, verify, show, prune, copy and export checkpoints; roll a job back.

    DIR is a checkpoint store, a run directory (`rtj run --dir DIR`), or a directory with PyTorch DCP
    checkpoints of another program; a store can also be s3://BUCKET/PREFIX, with credentials from the
    environment (AWS_...). Commands about one checkpoint also take its own path or URL. With -n, JOB is a job
    in a cluster: a short pod with the operator's image reads its claim or bucket.
    """


for _command in (
    list_command,
    verify_command,
    show_command,
    history_command,
    rollback_command,
    prune_command,
    pin_command,
    unpin_command,
    pins_command,
    copy_command,
    export_command,
    serve_command,
):
    checkpoints_command.add_command(_command)
