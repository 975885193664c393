"""Which world a command means: run directories of this machine, or jobs in a cluster.

A cluster is meant when one of its options is given, and by ``kubectl rtj``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
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
        place = Place(namespace, context, kubeconfig, by_kubectl(ctx))
        command(*arguments, place=place, **options)

    for option in reversed(_OPTIONS):
        with_place = option(with_place)
    return with_place


class PlacedCommand(click.Command):
    """A command for both worlds, whose help as a plug-in of kubectl speaks of clusters alone.

    Args:
        cluster_help: its help there.
    """

    def __init__(self, *arguments: Any, cluster_help: str, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cluster_help = cluster_help

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """``RUN|JOB`` is a JOB there."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece.rpartition("|")[2] for piece in pieces] if by_kubectl(ctx) else pieces

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = self.help
        self.help = self.cluster_help if by_kubectl(ctx) else own
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = own


def by_kubectl(ctx: click.Context) -> bool:
    """Whether it was called as a plug-in of kubectl."""
    return ctx.find_root().info_name == PLUGIN


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
    name: str,
    place: Place,
    image: str | None,
    time_limit: float | None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[CheckpointSource]:
    """The checkpoints of that job in a cluster, at that URL, or in the directory of that path.

    Args:
        image: of the pod that reads them in a cluster; None: the operator's.
        time_limit: seconds for that pod; None: the default.
        environment: variables ``AWS_...`` for a bucket, above those of this process.

    Raises:
        UsageProblem: there is no such directory, or no way into a cluster.
    """
    if place.in_cluster:
        from resumable_operator.cli.cluster_session import Session
        from resumable_operator.cli.cluster_source import job_name
        from resumable_operator.cli.reader import ReaderStore

        with Session(place) as session:
            yield ReaderStore(session, job_name(name), image, time_limit)
        return
    if image is not None or time_limit is not None:
        raise UsageProblem("--image and --time-limit are for jobs in a cluster; give -n NAMESPACE too")
    from resumable_operator.cli.bucket_store import BucketStore, bucket_of_run
    from resumable_operator.cli.directory_store import DirectoryStore

    if "://" in name:
        yield BucketStore(name, environment)
        return
    _require_directory(name, "a checkpoint store or a run directory")
    yield bucket_of_run(Path(name), environment) or DirectoryStore(Path(name))


def is_directory(path: Path) -> bool:
    """Whether it is one; what can't be one, such as a name that is too long, is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _require_directory(name: str, what: str) -> None:
    if not name:  # a variable of a shell that is not set: Path("") would be this directory
        raise UsageProblem(f"the name is empty: give {what}")
    if is_directory(Path(name)):
        return
    from resumable_operator.cli.rundir import meant_instead

    meant = meant_instead(Path(name))
    if meant:
        raise UsageProblem(f"{name}: no such directory{meant}")
    hint = "-n NAMESPACE for a job in a cluster"
    if _has_kubeconfig(os.environ, Path.home()):
        command = click.get_current_context().command_path.partition(" ")[2]
        hint += f": `kubectl rtj {command} {name}`, or `rtj {command} {name} -n NAMESPACE`"
    raise UsageProblem(f"{name}: no such directory; give {what}, or {hint}")


def _has_kubeconfig(environment: Mapping[str, str], home: Path) -> bool:
    """Whether the user has a cluster at hand, as far as can be told without a client."""
    named = [Path(path) for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    return any(path.is_file() for path in named or [home / ".kube" / "config"])
