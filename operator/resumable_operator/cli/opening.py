"""What a command looks at: a job or a store, opened in the world that its command line means (``place``).

What the other world needs is not imported: a command on a run directory is quick and needs no client of
Kubernetes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.place import Place

if TYPE_CHECKING:
    from resumable_operator.cli.source import CheckpointSource, JobSource


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
