"""``rtj logs``: the output of ranks, of any attempt, also while it grows."""

from __future__ import annotations

import sys

import click

from resumable_operator.cli.opening import job_at
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.source import Wanted

CLUSTER_HELP = """Show the output (stdout and stderr) of a job's ranks, from the logs of its pods.

A single rank is shown as it is; of several, each line is led by its attempt and rank. With --attempt,
--follow ends when that attempt is over. Output goes with its pod.
"""


@click.command("logs", cls=PlacedCommand, cluster_help=CLUSTER_HELP)
@click.argument("job", metavar="RUN|JOB")
@click.option(
    "--rank", type=click.IntRange(min=0), help="Only this rank. Default: all, each line with its rank."
)
@click.option("--attempt", type=click.IntRange(min=1), help="This attempt. Default: the newest.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the job ends or Ctrl-C; shows later attempts too."
)
@cluster_options
def logs_command(job: str, rank: int | None, attempt: int | None, follow: bool, place: Place) -> None:
    """Show the output (stdout and stderr) of a job's ranks.

    RUN is a run directory (`rtj run --dir RUN`); with -n, JOB is a job in a cluster, whose pods' logs are
    read. A single rank is shown as it is; of several, each line is led by its attempt and rank. With
    --attempt, --follow ends when that attempt is over.
    """
    wanted, output = Wanted(rank, attempt), sys.stdout.buffer
    with job_at(job, place) as source:
        try:
            if follow:
                source.follow_logs(wanted, output)
            else:
                source.show_logs(wanted, output)
        except KeyboardInterrupt:
            return
