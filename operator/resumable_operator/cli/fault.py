"""``rtj fault``: break a running job on purpose, to see what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir
from resumable_operator.cluster.local_control import call
from resumable_operator.cluster.local_faults import LONGEST_SECONDS
from resumable_operator.cluster.local_files import RunFiles
from resumable_operator.errors import UserError

FAULTS = {
    "kill-worker": "SIGKILL a worker with all its ranks; its machine is gone",
    "kill-rank": "SIGKILL one rank",
    "preempt": "give a worker notice: it may drain for --grace seconds, then its machine is gone",
    "hang": "SIGSTOP one rank",
    "add-worker": "a machine comes back, or a new one arrives (up to the job's maximum)",
    "cut-network": "make a worker's agent unreachable for --seconds while its ranks go on",
}
OPTIONS_OF = {
    "kill-worker": {"worker", "back_after"},
    "kill-rank": {"worker", "rank"},
    "preempt": {"worker", "grace", "back_after"},
    "hang": {"worker", "rank"},
    "add-worker": set[str](),
    "cut-network": {"worker", "seconds", "scope"},
}


SECONDS = click.FloatRange(min=0, max=LONGEST_SECONDS)

EPILOG = "\b\nFaults:\n" + "\n".join(f"  {name:<12} {what}" for name, what in FAULTS.items())


def _require_running(run: RunDir) -> None:
    """Raises UsageProblem when the job has ended: "start it first" would be wrong then."""
    if run.owner() is not None:
        return
    status = run.status()
    if status is not None and status.phase in ("Succeeded", "Failed"):
        raise UsageProblem(f"{run.path}: this job has ended ({status.phase}), there is nothing to break")


@click.command("fault", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("fault", type=click.Choice(list(FAULTS)), metavar="FAULT")
@click.option("--worker",
              help="Name of the worker. Default: the last that holds ranks, or else the last.")  # fmt: skip
@click.option("--rank", type=click.IntRange(min=0), help="kill-rank, hang: which rank. Default: the last.")
@click.option("--grace", type=SECONDS, help="preempt: seconds of notice. Default: 30.")
@click.option("--seconds", type=SECONDS, help="cut-network: how long. Default: 10.")
@click.option("--scope", type=click.Choice(["all", "operator"]), help="cut-network: from whom. Default: all.")
@click.option("--back-after", type=SECONDS,
              help="kill-worker, preempt: the machine comes back after so many seconds.")  # fmt: skip
def fault_command(run: Path, fault: str, **options: Any) -> None:
    """Inject FAULT into the job that `rtj run --dir RUN` runs right now.

    The run answers what was done. `rtj status RUN` and `rtj report RUN` show what came of it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    wrong = sorted(set(given) - OPTIONS_OF[fault])
    if wrong:
        raise click.UsageError(f"--{wrong[0].replace('_', '-')} means nothing to {fault}")
    directory = RunDir(run)
    _require_running(directory)
    try:
        reply = call(RunFiles(run.resolve()), {"fault": fault, **given})
    except UserError as error:  # 3 is for a job that failed
        raise UsageProblem(str(error)) from error
    click.echo(reply["message"])
