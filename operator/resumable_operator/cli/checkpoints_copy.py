"""``rtj checkpoints copy``: one checkpoint to another place, or a whole store for a job that moves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from resumable_operator.cli.bucket_store import bucket_of_run, sides
from resumable_operator.cli.checkpoints_common import STEP, Pod, target_options, working_on
from resumable_operator.cli.checkpoints_reading import Reading, opened_here, pinned, reading
from resumable_operator.cli.checkpoints_there import bucket_or_claim, copy_all, copy_one, require_here
from resumable_operator.cli.exitcodes import DamagedFound, UsageProblem
from resumable_operator.cli.output import warning
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.progress import bytes_bar
from resumable_operator.cli.rundir import is_run
from resumable_operator.cli.store_source import store_errors
from resumable_operator.cli.units import byte_size
from resumable_operator.words import counted
from resumable_training.checkpoint.copying import THREADS, Copied, Moved, copy_checkpoint, copy_store
from resumable_training.checkpoint.errors import StoreExists
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.stores import is_url, open_store
from resumable_training.contract.codec import to_plain
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

if TYPE_CHECKING:
    from resumable_operator.cli.cluster_target import Bucket, ClaimPath

_MOST_NAMED = 5
HOLDER = "rtj checkpoints copy"  # of the pins that it has meanwhile
CLUSTER_HELP = """Copy a checkpoint of JOB, verified on the way.

To a bucket (s3://BUCKET/PREFIX) or a claim (claim://NAME/PATH) a pod in the cluster copies it; nothing passes
through this machine. The bucket is reached with the keys of --target-secret, else as the job reaches its own.
"""
_EXAMPLES = """\b
Examples:
  rtj checkpoints copy runs/gpt /archive                        the next resume point
  rtj checkpoints copy runs/gpt s3://models/kept --step 1200
  rtj checkpoints copy s3://models/gpt/step-00001200.7 .
  rtj checkpoints copy s3://old/gpt s3://new/gpt --all          a job moves to another bucket
  rtj checkpoints copy gpt -n team-a s3://models/kept --target-secret models-keys
  rtj checkpoints copy gpt -n team-a claim://archive/gpt --all
  rtj checkpoints copy s3://old/gpt s3://new/gpt --source-env OLD_
                                                two services: OLD_AWS_ENDPOINT_URL, AWS_ENDPOINT_URL, ...

Cut off, the same command line goes on. Another job starts from a copy with
resumeFrom: s3://models/kept/step-00001200.7
"""


@click.command(
    "copy",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Copy checkpoints to another store, verified on the way.",
)
@click.argument("source", metavar="DIR|URL|JOB")
@click.argument("target", metavar="TARGET")
@STEP
@click.option("--all", "everything", is_flag=True,
              help="The whole store: owner, records, and all checkpoints on the chain.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1, max=256), default=THREADS, show_default=True,
              help="Files to copy at a time.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--source-env", metavar="PREFIX", help="Reach the source's bucket with the variables"
              " PREFIXAWS_... instead of AWS_....")  # fmt: skip
@click.option("--target-env", metavar="PREFIX", help="The same for the target's.")
@target_options(memory="1Gi")
def copy_command(
    source: str,
    target: str,
    which: str | None,
    everything: bool,
    jobs: int,
    as_json: bool,
    source_env: str | None,
    target_env: str | None,
    place: Place,
    pod: Pod,
) -> None:
    """Copy a checkpoint into TARGET, a directory or s3://BUCKET/PREFIX, under its own name.

    Of a job in a cluster (-n) a pod copies it to a bucket, or to a claim given as claim://NAME/PATH; into a
    directory it comes to this machine, through the API server.

    Each file is compared with the manifest as it passes, and the marker comes last: a copy that was cut off
    is no checkpoint, and the same command goes on with it. Buckets are reached with AWS_ACCESS_KEY_ID,
    AWS_ENDPOINT_URL and so on, or each with its own: with --source-env OLD_ the source's are those in
    OLD_AWS_ACCESS_KEY_ID, OLD_AWS_ENDPOINT_URL and so on. With --all the copy can take the place of the
    store: point the suspended job at it.
    """
    if everything and which is not None:
        raise UsageProblem("give --step or --all")
    there = _place_there(target, place, pod, source_env, target_env)
    if there is not None:
        options = [*([] if which is None else ["--step", which]), "--jobs", str(jobs)]
        if everything:
            _tell_all(copy_all(source, place, pod, there, options), target, as_json)
        else:
            _tell(copy_one(source, place, pod, there, options), target, as_json)
        return
    _require_place(target)
    if target_env is not None and not is_url(target):
        raise UsageProblem(f"--target-env is for buckets, and {target} is a directory")
    if source_env is not None and not is_url(source) and bucket_of_run(Path(source)) is None:
        raise UsageProblem(f"--source-env is for buckets, and {source} is none")
    source_has, target_has = sides(os.environ, source_env, target_env)
    with store_errors():
        into = open_store(target, target_has, warning)
    if everything:
        with opened_here(source, place, source_has, pod) as found:
            if found.only is not None:
                raise UsageProblem(f"{source} is one checkpoint: leave out --all")
            _require_other(found.store, into, source_has == target_has)
            if not as_json:
                click.echo(f"{working_on(found.store.location)}, to {target}")
            tell = _nothing if as_json else (lambda copied: click.echo(_told(copied, target)))
            moved = _copy_all(found.store, into, jobs, tell)
        _tell_all(moved, target, as_json)
        return
    with reading(source, which, place, HOLDER, source_has, pod) as one:
        copied = _copy_one(one, into, jobs)
    _tell(copied, target, as_json)


def _place_there(
    target: str, place: Place, pod: Pod, source_env: str | None, target_env: str | None
) -> Bucket | ClaimPath | None:
    """The target, if it is one that the pods of a cluster are to write; None: this machine does it."""
    if not place.in_cluster:
        require_here(target)
        pod.require_unused()
        return None
    if source_env is not None or target_env is not None:
        option = "--source-env" if source_env is not None else "--target-env"
        raise UsageProblem(f"{option} is for this machine: a pod in the cluster gets --target-secret")
    there = bucket_or_claim(target, pod)
    if there is None:
        pod.require_served()
    return there


def _require_place(target: str) -> None:
    """That copies may lie there, as far as its name tells."""
    if not target:
        raise UsageProblem("the place to copy to is empty: give a directory or a bucket")
    if is_url(target):
        return
    if is_run(Path(target)):
        raise UsageProblem(f"{target} is a run directory: copy to a place beside it")
    if (Path(target) / MARKER_FILE).is_file():
        raise UsageProblem(f"{target} is a checkpoint itself: give the directory that is to hold the copy")


def _require_other(source: Store, target: Store, one_service: bool) -> None:
    """Raises UsageProblem for a store that would be copied onto itself."""
    here, there = source.location, target.location
    if isinstance(source, LocalStore) and isinstance(target, LocalStore):
        same = Path(here).resolve() == Path(there).resolve()
    else:
        same = one_service and is_url(here) and here.rstrip("/") == there.rstrip("/")
    if same:
        raise UsageProblem(f"{there} is the store that is to be copied: give another place")


def _copy_one(one: Reading, target: Store, jobs: int) -> Copied:
    size = sum(entry.bytes for entry in one.store.entries(one.name))
    with bytes_bar(f"copying {one.name}", size) as advance, _clashes():
        return copy_checkpoint(
            one.store, one.name, target, foreign=one.foreign, advance=advance, threads=jobs
        )


def _copy_all(source: Store, target: Store, jobs: int, tell: Callable[[Copied], None]) -> Moved:
    with bytes_bar("copying", _bytes_on_chain(source)) as advance, _clashes():
        return copy_store(
            source,
            target,
            tell=tell,
            advance=advance,
            threads=jobs,
            hold=lambda name: pinned(source, name, HOLDER),
        )


def _nothing(copied: Copied) -> None:
    """JSON comes at the end, as a whole."""


def _bytes_on_chain(store: Store) -> int:
    return sum(info.bytes for info in list_checkpoints(store, 0.0) if info.complete and info.on_chain)


@contextmanager
def _clashes() -> Iterator[None]:
    """What is there already is a problem of the command line."""
    try:
        yield
    except StoreExists as error:
        raise UsageProblem(f"{error}: copy to another place, or remove it first") from error


def _tell(copied: Copied, target: str, as_json: bool) -> None:
    click.echo(json.dumps(to_plain(copied), indent=2) if as_json else _told(copied, target))


def _tell_all(moved: Moved, target: str, as_json: bool) -> None:
    """Raises DamagedFound when something was left out."""
    click.echo(json.dumps(to_plain(moved), indent=2) if as_json else _told_all(moved, target))
    if moved.damaged:
        raise DamagedFound(_left_out(moved, target))


def _told(copied: Copied, target: str) -> str:
    there = f", {byte_size(copied.there)} were there" if copied.there else ""
    return f"{target.rstrip('/')}/{copied.checkpoint}  {byte_size(copied.bytes)} copied{there}, verified"


def _told_all(moved: Moved, target: str) -> str:
    return (
        f"{target} can take the place of the store of {moved.owner}: {counted(moved.records, 'record')},"
        f" {counted(len(moved.checkpoints), 'checkpoint')}{_left_behind(moved)}"
    )


def _left_behind(moved: Moved) -> str:
    if not moved.off_chain:
        return ""
    named = ", ".join(moved.off_chain[:_MOST_NAMED]) + (", ..." if len(moved.off_chain) > _MOST_NAMED else "")
    return f". Off the chain, and left behind: {named} (copy one by --step NAME)"


def _left_out(moved: Moved, target: str) -> str:
    """What is damaged, and what to do where it is the one that the job would go on from."""
    told = "; ".join(f"{name} is damaged: {why} (left out)" for name, why in moved.damaged.items())
    newest = moved.checkpoints[0].checkpoint if moved.checkpoints else ""
    if not newest or _age(newest) > max(map(_age, moved.damaged)):
        return told
    return f"{told}. Before the job goes on there: rtj checkpoints rollback {target} --to {newest} --yes"


def _age(name: str) -> tuple[int, int]:
    step, record = parse_checkpoint_name(name) or (0, 0)
    return record, step
