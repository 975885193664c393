"""``rtj suspend`` and ``rtj resume``: stop a job in a cluster with everything committed; let it go on."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place, cluster_options
from resumable_operator.errors import RetryableError

if TYPE_CHECKING:  # it needs the extra; without it the command says so
    from resumable_operator.cli.cluster_session import Session

Raw = dict[str, Any]

WAIT_SECONDS = 2.0
AGAIN = "Delete it and create it again: it continues its checkpoints"
ON_THIS_MACHINE = (
    "a run of this machine is suspended by Ctrl-C, and goes on by the same `rtj run` command line"
)


@click.command("suspend")
@click.argument("job", metavar="JOB")
@click.option("--wait", is_flag=True, help="Go on until it is suspended, or Ctrl-C.")
@cluster_options
def suspend_command(job: str, wait: bool, place: Place) -> None:
    """Suspend a job in a cluster: it commits a checkpoint and gives its pods back.

    Sets spec.suspend. All ranks save the same step within the job's drainSeconds, then the pods end; nothing
    is lost, or --wait and the condition Suspended say what. `resume` goes on from there.
    """
    _change(job, place, suspend=True, wait=wait)


@click.command("resume")
@click.argument("job", metavar="JOB")
@cluster_options
def resume_command(job: str, place: Place) -> None:
    """Let a suspended job in a cluster go on, from its newest checkpoint.

    Clears spec.suspend.
    """
    _change(job, place, suspend=False, wait=False)


def _change(job: str, place: Place, *, suspend: bool, wait: bool) -> None:
    if not place.in_cluster and Path(job).is_dir():
        raise UsageProblem(f"{job}: {ON_THIS_MACHINE}")
    from resumable_operator.cli.cluster_session import Session
    from resumable_operator.cli.cluster_source import job_name

    name = job_name(job)
    with Session(place) as session:
        stored, changed = session.run(set_suspend(session, name, suspend))
        click.echo(told(name, suspend, changed))
        if not wait and changed:
            click.echo(f"watch it: {_watch(name, session.namespace, place)}")
        if wait:
            session.run(await_suspended(session, name, stored))


async def set_suspend(session: Session, name: str, suspend: bool) -> tuple[Raw, bool]:
    """The job as it is stored then, and whether that was a change."""
    from resumable_operator.cluster.kube_api import JOBS

    stored = await session.job(name)
    _require_going_on(stored, "suspend" if suspend else "resume")
    if bool(stored["spec"].get("suspend")) == suspend:
        return stored, False
    change = {"spec": {"suspend": suspend}}
    return await session.api.patch(JOBS, name, change, session.namespace), True


def told(name: str, suspend: bool, changed: bool) -> str:
    """What happens now."""
    if not changed:
        return f"job {name} has spec.suspend already" if suspend else f"job {name} is not suspended"
    if suspend:
        return f"job {name} drains: all ranks commit the same step within drainSeconds, then its pods end"
    return f"job {name} goes on from its newest checkpoint as soon as enough workers are ready"


def _watch(name: str, namespace: str, place: Place) -> str:
    front = ["kubectl", "rtj"] if place.plugin else ["rtj"]
    options = ["-n", namespace, *(["--context", place.context] if place.context else [])]
    if place.kubeconfig:
        options += ["--kubeconfig", str(place.kubeconfig)]
    return shlex.join([*front, "status", name, *options, "--watch"])


async def await_suspended(session: Session, name: str, stored: Raw) -> None:
    """Until the operator says so of the spec as it is now. An API server that is away is waited for.

    Raises:
        UsageProblem: the job has ended, was deleted, or is to go on again.
    """
    shown = ""
    while not is_suspended(stored):
        _require_going_on(stored, "suspend")
        if not stored["spec"].get("suspend"):
            raise UsageProblem(f"job {name} is not suspended: somebody has resumed it")
        status = stored.get("status") or {}
        text = ": ".join(str(part) for part in (status.get("phase"), status.get("reason")) if part)
        await asyncio.sleep(WAIT_SECONDS)
        try:
            stored = await session.job(name)
        except RetryableError as error:
            text = f"{error}; trying again"
        if text != shown:
            click.echo(text, err=True)
            shown = text
    checkpoint = (stored["status"].get("checkpoint") or {}).get("step")
    at = "" if checkpoint is None else f" at step {checkpoint}"
    click.echo(f"job {name} is suspended{at}{_not_kept(stored)}")


def _not_kept(stored: Raw) -> str:
    """What the condition says beyond that it is suspended: steps that are in no checkpoint, and why."""
    messages = {each.get("type"): each.get("message") for each in stored["status"].get("conditions") or []}
    _, separator, lost = (messages.get("Suspended") or "").partition("; ")
    return separator + lost


def is_suspended(stored: Raw) -> bool:
    """Whether the operator has seen this spec and has suspended the job."""
    status = stored.get("status") or {}
    seen = int(status.get("observedGeneration") or 0) >= int(stored["metadata"].get("generation") or 0)
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or []}
    return seen and bool(stored["spec"].get("suspend")) and conditions.get("Suspended") == "True"


def _require_going_on(stored: Raw, what: str) -> None:
    """Raises UsageProblem when the job has ended."""
    phase = (stored.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        again = f". {AGAIN}" if phase == "Failed" and what == "resume" else ""
        raise UsageProblem(f"job {stored['metadata']['name']} has ended ({phase}): nothing to {what}{again}")
