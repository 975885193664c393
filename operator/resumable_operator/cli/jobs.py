"""``rtj list``: the jobs in a cluster, one line each."""

from __future__ import annotations

import time
from typing import Any

import click
from rich import box
from rich.table import Table

from resumable_operator.cli.output import make_console
from resumable_operator.cli.place import Place, PlacedCommand, cluster_options
from resumable_operator.cli.units import duration

REASON_SHOWN = 60  # characters
_RIGHT = ("workers", "step", "attempt", "goodput", "age")


@click.command(
    "list", cls=PlacedCommand, cluster_help="List the jobs in a cluster.\n\nOf one namespace, or of all."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@cluster_options
def list_command(all_namespaces: bool, place: Place) -> None:
    """List the jobs in a cluster.

    Of one namespace, or of all. Runs on this machine have no list: each is a directory.
    """
    from resumable_operator.cli.cluster_session import Session
    from resumable_operator.cluster.kube_api import JOBS

    if all_namespaces and place.namespace:
        raise click.UsageError("-A and -n exclude each other")
    with Session(place) as session:
        namespace = None if all_namespaces else session.namespace
        jobs = session.run(session.api.list(JOBS, namespace)).items
    if not jobs:
        click.echo("no jobs" + (f" in namespace {namespace}" if namespace else ""))
        return
    make_console().print(table(jobs, all_namespaces, time.time()))


def table(jobs: list[dict[str, Any]], with_namespace: bool, now: float) -> Table:
    """One line for each job."""
    names = ["namespace"] if with_namespace else []
    names += ["job", "phase", "workers", "step", "checkpoint", "attempt", "goodput", "age", "reason"]
    result = Table(box=box.SIMPLE, pad_edge=False)
    for name in names:
        fold = name == "reason"
        result.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
        )
    for job in jobs:
        told = cells(job, now)
        result.add_row(*[told[name] for name in names])
    return result


def cells(job: dict[str, Any], now: float) -> dict[str, str]:
    """What one line tells. Reads the object as it is: one that is damaged must not hide the others."""
    from resumable_operator.cluster.kube_objects import seconds

    meta, status = job["metadata"], job.get("status") or {}
    checkpoint, attempt = status.get("checkpoint") or {}, status.get("attempt") or {}
    created = seconds(meta.get("creationTimestamp"))
    reason = str(status.get("reason") or "").partition("\n")[0]
    return {
        "namespace": str(meta["namespace"]),
        "job": str(meta["name"]),
        "phase": str(status.get("phase") or "Pending"),
        "workers": str(status.get("workers") or "-"),
        "step": str(status.get("step") or 0),
        "checkpoint": f"step {checkpoint['step']}" if "step" in checkpoint else "-",
        "attempt": str(attempt.get("number") or "-"),
        "goodput": str(status.get("goodput") or "-"),
        "age": duration(max(0.0, now - created)) if created is not None else "-",
        "reason": reason if len(reason) <= REASON_SHOWN else reason[:REASON_SHOWN] + " ...",
    }
