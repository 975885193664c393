"""What the commands of ``rtj checkpoints`` have in common: their options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import cluster_options

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

STEP = click.option(
    "--step",
    "which",
    metavar="STEP|NAME",
    help="A step on the chain, or the full name of a checkpoint. Default: the next resume point.",
)


def working_on(title: str) -> str:
    """The first word of what changes a store: which one it is. A link is told with where it leads."""
    link = "://" not in title and Path(title).is_symlink()
    return f"store: {title}" + (f", a link to {os.path.realpath(title)}" if link else "")


def pod_options(image: str = "the operator's", seconds: int = 3600) -> Decorator:
    """A cluster, and the pod that reads there."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for decorate in (
            cluster_options,
            click.option("--image", help=f"In a cluster: image of the pod that reads. Default: {image}."),
            click.option(
                "--time-limit",
                type=click.FloatRange(min=1, max=30 * 86400),
                help=f"In a cluster: seconds for the pod that reads. Default: {seconds}.",
            ),
        ):
            command = decorate(command)
        return command

    return decorated


@dataclass(frozen=True)
class Pod:
    """What the command line says about a cluster's pod. None: as it is by default."""

    image: str | None = None
    time_limit: float | None = None
    memory: str | None = None
    target_secret: str | None = None
    target_endpoint: str | None = None

    def require_unused(self) -> None:
        """Raises UsageProblem for what has no meaning on this machine."""
        for option, value in self._options().items():
            if value is not None:
                raise UsageProblem(f"{option} is for jobs in a cluster; give -n NAMESPACE too")

    def require_served(self) -> None:
        """Raises UsageProblem for what has no meaning where the bytes come to this machine."""
        for option, value in self._options().items():
            if value is not None and option not in ("--image", "--time-limit"):
                raise UsageProblem(
                    f"{option} is for a place that pods write: s3://BUCKET/PREFIX, claim://NAME/PATH"
                )

    def _options(self) -> dict[str, object]:
        return {
            "--image": self.image,
            "--time-limit": self.time_limit,
            "--memory": self.memory,
            "--target-secret": self.target_secret,
            "--target-endpoint": self.target_endpoint,
        }


def target_options(memory: str, image: str = "the operator's", buckets: bool = True) -> Decorator:
    """A cluster, and the pod that writes elsewhere what it reads; the command gets them as ``pod``.

    Args:
        memory: its default, for people.
        buckets: it can write to buckets.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_pod(
            *arguments: Any,
            image: str | None,
            time_limit: float | None,
            memory: str | None,
            target_secret: str | None = None,
            target_endpoint: str | None = None,
            **options: Any,
        ) -> None:
            pod = Pod(image, time_limit, memory, target_secret, target_endpoint)
            command(*arguments, pod=pod, **options)

        given = pod_options(image, 86400)(with_pod)
        given = click.option(
            "--memory", metavar="QUANTITY", help=f"In a cluster: memory of that pod. Default: {memory}."
        )(given)
        return _bucket_options(given) if buckets else given

    return decorated


def _bucket_options(command: Callable[..., None]) -> Callable[..., None]:
    for decorate in (
        click.option(
            "--target-endpoint",
            metavar="URL",
            help="In a cluster: the target's service, if it is not AWS and the Secret has no"
            " AWS_ENDPOINT_URL.",
        ),
        click.option(
            "--target-secret",
            metavar="NAME",
            help="In a cluster: Secret with the keys of the target's bucket (AWS_ACCESS_KEY_ID,"
            " AWS_SECRET_ACCESS_KEY). Default: as the job reaches its own.",
        ),
    ):
        command = decorate(command)
    return command


def store_options(metavar: str = "DIR|URL|JOB") -> Decorator:
    """The store, how to reach it in a cluster, and ``--json``."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        for decorate in (
            pod_options(),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
            click.argument("directory", metavar=metavar),
        ):
            command = decorate(command)
        return command

    return decorated
