"""Which world a command means: run directories of this machine, or jobs in a cluster.

A cluster is meant when one of its options is given, and by ``kubectl rtj``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resumable_operator.cli.exitcodes import UsageProblem

if TYPE_CHECKING:
    from resumable_operator.cli.source import CheckpointSource, JobSource

PLUGIN = "kubectl rtj"  # what the command line is called as a plug-in of kubectl
_OPTIONS = (
    click.option("-n", "--namespace", help="Namespace of the job in a cluster. Default: the context's."),
    click.option("--context", help="Context in the kubeconfig. Default: the current one."),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Default: $KUBECONFIG, else ~/.kube/config, else a pod's own account.",
    ),
)


@dataclass(frozen=True)
class Place:
    """What the command line says about where to look. ``plugin``: it was called by kubectl."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    plugin: bool = False

    @property
    def in_cluster(self) -> bool:
        return self.plugin or any((self.namespace, self.context, self.kubeconfig))


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a cluster; the command gets them as ``place``."""

    @wraps(command)
    @click.pass_context
    def with_place(
        ctx: click.Context,
        /,
        *arguments: Any,
        namespace: str | None,
        context: str | None,
        kubeconfig: Path | None,
        **options: Any,
    ) -> None:
        plugin = ctx.find_root().info_name == PLUGIN
        command(*arguments, place=Place(namespace, context, kubeconfig, plugin), **options)

    for option in reversed(_OPTIONS):
        with_place = option(with_place)
    return with_place


@contextmanager
def job_at(name: str, place: Place) -> Iterator[JobSource]:
    """The job of that name in a cluster, or in the run directory of that path.

    Raises:
        UsageProblem: there is no such directory, or no way into a cluster.
    """
    if place.in_cluster:
        from resumable_operator.cli.cluster_session import Session
        from resumable_operator.cli.cluster_source import ClusterSource, job_name

        with Session(place) as session:
            yield ClusterSource(session, job_name(name))
        return
    from resumable_operator.cli.run_source import RunSource
    from resumable_operator.cli.rundir import RunDir

    _require_directory(name, "the run directory (rtj run --dir)")
    yield RunSource(RunDir(Path(name)))


@contextmanager
def checkpoints_at(
    name: str, place: Place, image: str | None, time_limit: float | None
) -> Iterator[CheckpointSource]:
    """The checkpoints of that job in a cluster, or in the directory of that path.

    Args:
        image: of the pod that reads them in a cluster; None: the operator's.
        time_limit: seconds for that pod; None: the default.

    Raises:
        UsageProblem: there is no such directory, or no way into a cluster.
    """
    if place.in_cluster:
        from resumable_operator.cli.cluster_session import Session
        from resumable_operator.cli.cluster_source import job_name
        from resumable_operator.cli.reader import ClaimStore

        with Session(place) as session:
            yield ClaimStore(session, job_name(name), image, time_limit)
        return
    from resumable_operator.cli.directory_store import DirectoryStore

    if image is not None or time_limit is not None:
        raise UsageProblem("--image and --time-limit are for jobs in a cluster; give -n NAMESPACE too")
    _require_directory(name, "a checkpoint store or a run directory")
    yield DirectoryStore(Path(name))


def _require_directory(name: str, what: str) -> None:
    if not Path(name).is_dir():
        raise UsageProblem(f"{name}: no such directory; give {what}, or -n NAMESPACE for a job in a cluster")
