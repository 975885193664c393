"""What the commands of ``rtj checkpoints`` have in common: their options."""

from __future__ import annotations

from collections.abc import Callable

import click

from resumable_operator.cli.place import cluster_options

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

STEP = click.option(
    "--step",
    "which",
    metavar="STEP|NAME",
    help="A step on the chain, or the full name of a checkpoint. Default: the next resume point.",
)


def store_options(metavar: str = "DIR|URL|JOB") -> Decorator:
    """The store, how to reach it in a cluster, and ``--json``."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for decorate in (
            cluster_options,
            click.option(
                "--image", help="In a cluster: image of the pod that reads. Default: the operator's."
            ),
            click.option(
                "--time-limit",
                type=click.FloatRange(min=1, max=30 * 86400),
                help="In a cluster: seconds for the pod that reads. Default: 3600.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
            click.argument("directory", metavar=metavar),
        ):
            command = decorate(command)
        return command

    return decorated
