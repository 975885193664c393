"""``rtj checkpoints copy`` and ``export`` of a job in a cluster to a place that is in reach of its pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable_operator.cli.checkpoints_common import Pod
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.place import Place
from resumable_training.checkpoint.copying import Copied, Moved
from resumable_training.checkpoint.export_plan import Exported

if TYPE_CHECKING:
    from resumable_operator.cli.cluster_target import Bucket, ClaimPath
    from resumable_operator.cli.reader import ReaderStore


def bucket_or_claim(target: str, pod: Pod) -> Bucket | ClaimPath | None:
    """The place in reach of the cluster's pods; None: it is one of this machine."""
    from resumable_operator.cli.cluster_target import bucket, claim_path

    return claim_path(target) or bucket(target, pod.target_secret, pod.target_endpoint)


def require_here(target: str) -> None:
    """Raises UsageProblem for a claim, which nothing on this machine can write."""
    from resumable_operator.cli.cluster_target import CLAIM_SCHEME

    if target.startswith(CLAIM_SCHEME):
        raise UsageProblem(f"{target} is a claim of a cluster: give a job there, and -n NAMESPACE")


def copy_one(job: str, place: Place, pod: Pod, to: Bucket | ClaimPath, options: Sequence[str]) -> Copied:
    """One checkpoint, copied by a pod."""
    with _at(job, place, pod) as store:
        return store.copy(to, options, pod.memory)


def copy_all(job: str, place: Place, pod: Pod, to: Bucket | ClaimPath, options: Sequence[str]) -> Moved:
    """The whole store, copied by a pod. What is damaged is in the result."""
    with _at(job, place, pod) as store:
        return store.copy_all(to, options, pod.memory)


def export(job: str, place: Place, pod: Pod, to: ClaimPath, options: Sequence[str]) -> tuple[Exported, str]:
    """A checkpoint, exported by a pod; also which one it was."""
    with _at(job, place, pod) as store:
        return store.export(to, options, pod.memory)


@contextmanager
def _at(job: str, place: Place, pod: Pod) -> Iterator[ReaderStore]:
    from resumable_operator.cli.reader import ReaderStore

    with checkpoints_at(job, place, pod.image, pod.time_limit) as store:
        assert isinstance(store, ReaderStore)
        yield store
