"""``rtj checkpoints rollback``: let a job go on from an older checkpoint.

In a store at hand a record is appended that says so (``resumable_training.checkpoint.rollback``). In a
cluster ``spec.checkpoint.resumeFrom`` is set instead: it needs no way to write the store, it is where people
and version control look for what a job was told, and the API server keeps who did it. The library then
appends the same kind of record. Either way nothing trains meanwhile, and nothing is deleted.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resumable_operator.cli.checkpoints_common import store_options, working_on
from resumable_operator.cli.checkpoints_reading import pinned
from resumable_operator.cli.directory_store import DirectoryStore
from resumable_operator.cli.exitcodes import DamagedFound, UsageProblem
from resumable_operator.cli.opening import checkpoints_at
from resumable_operator.cli.place import Place, PlacedCommand
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.source import Listing
from resumable_operator.cli.store_source import Opened, StoreSource, naming_next_older, require_store
from resumable_operator.errors import ClusterRefused, RetryableError
from resumable_operator.words import counted
from resumable_training.checkpoint import rollback
from resumable_training.checkpoint.errors import CheckpointUserError
from resumable_training.checkpoint.rollback import RolledBack
from resumable_training.checkpoint.wanted import find, made_again
from resumable_training.contract.codec import to_plain

if TYPE_CHECKING:  # it needs the extra; without it the command says so
    from resumable_operator.cli.cluster_session import Session
    from resumable_operator.cli.reader import ReaderStore

Raw = dict[str, Any]
POLL_SECONDS = 0.2
RUN_GOES_ON = "the same `rtj run` command line continues it"
SLACK_SECONDS = 30.0  # beyond the drain's window, for the run to end

CLUSTER_HELP = """Let JOB go on from an older checkpoint, once.

Sets spec.checkpoint.resumeFrom. The job must be suspended; --suspend suspends it first and lets it go on
afterwards. Nothing is deleted: what was trained since stays until retention takes it.
"""
_EXAMPLES = """\b
Examples:
  rtj checkpoints rollback runs/gpt --to 1000
  rtj checkpoints rollback runs/gpt --to step-00001800.7      an abandoned branch, by its full name
  rtj checkpoints rollback gpt -n team-a --to 1000 --suspend  suspend, go back, go on
"""


@click.command(
    "rollback",
    cls=PlacedCommand,
    cluster_help=CLUSTER_HELP,
    epilog=_EXAMPLES,
    short_help="Let a job go on from an older checkpoint.",
)
@store_options()
@click.option("--to", "which", required=True, metavar="STEP|NAME",
              help="A step on the chain, or the full name of any complete checkpoint.")  # fmt: skip
@click.option("--suspend", is_flag=True, help="If the job trains, first let it commit and stop. In a cluster"
              " it goes on afterwards.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Of a store alone nobody can see whether a job trains in it: say"
              " that none does.")  # fmt: skip
def rollback_command(
    directory: str,
    which: str,
    suspend: bool,
    yes: bool,
    as_json: bool,
    image: str | None,
    time_limit: float | None,
    place: Place,
) -> None:
    """Let a job go on from an older checkpoint, e.g. after its loss has diverged.

    Nothing is deleted: the branch that is left stays until retention takes it, and going back to its newest
    checkpoint by name undoes it. Refused while the job trains, and for a step that is no complete checkpoint
    on the chain. In a cluster it sets spec.checkpoint.resumeFrom.
    """
    with checkpoints_at(directory, place, image, time_limit) as store:
        if isinstance(store, StoreSource):
            owner = _owner(store, directory, which, suspend, yes)
            require_store(store)
            if not as_json:
                click.echo(working_on(store.title))
            done = store.roll_back(which) if owner is None else _stop_first(store, directory, which, owner)
            told = {"store": store.title, **to_plain(done)}
            click.echo(json.dumps(told, indent=2) if as_json else _told(done, directory))
            return
        from resumable_operator.cli.reader import ReaderStore

        assert isinstance(store, ReaderStore)
        changed = _in_cluster(store, which, suspend, place)
        click.echo(json.dumps(changed, indent=2) if as_json else _told_in_cluster(changed, place))


# ---- a store at hand ---------------------------------------------------------------------------------------


def _owner(store: StoreSource, directory: str, which: str, suspend: bool, yes: bool) -> int | None:
    """Process id of the `rtj run` that is to be suspended first; None: no job trains.

    Raises:
        UsageProblem: one does and is not to be suspended, or that can't be seen.
    """
    path = Path(directory)
    if "://" not in directory and is_run(path):
        run = RunDir(path)
        status = run.status()
        if status is not None and status.phase == "Succeeded":
            raise UsageProblem(f"{path}: {_finished(store, which)}")
        owner = run.owner()
        if owner is not None and not suspend:
            raise UsageProblem(
                f"{path}: `rtj run` (process {owner}) trains in it: stop it by Ctrl-C, or give --suspend"
            )
        return owner
    if suspend:
        raise UsageProblem("--suspend is for run directories and jobs in a cluster: this is only a store")
    if isinstance(store, DirectoryStore) and is_run(path.absolute().parent):
        raise UsageProblem(f"{path} belongs to a run: give the run directory, {path.absolute().parent}")
    if not yes:
        raise UsageProblem(
            f"of {store.title} alone nobody can see whether a job trains in it. Such a job would be ended at"
            " its next save, and what it has done since its last one would be lost. If none trains, add --yes"
        )
    return None


def _finished(store: StoreSource, which: str) -> str:
    with store.whole() as opened, naming_next_older(Opened(opened, list), "--to"):
        name = rollback.check(opened, which)
    another = shlex.join(["rtj", "run", "--dir", "NEW", "--resume-from", f"{store.title}/{name}"])
    return f"this job has finished, and is not rolled back. Start another from there: `{another} ...`"


def _stop_first(store: StoreSource, directory: str, which: str, owner: int) -> RolledBack:
    """Only for a checkpoint that can be gone back to. Held: the drain's retention could delete it."""
    with store.whole() as opened:
        with naming_next_older(Opened(opened, list), "--to"):
            name = rollback.check(opened, which)
        with pinned(opened, name, "rtj checkpoints rollback"), _told_how_to_go_on(RUN_GOES_ON):
            _suspend(RunDir(Path(directory)), owner)
            return store.roll_back(name)


@contextmanager
def _told_how_to_go_on(how: str) -> Iterator[None]:
    """Whatever goes wrong after a job was stopped must not leave it stopped without a word."""
    try:
        yield
    except (UsageProblem, DamagedFound, RetryableError, ClusterRefused) as error:
        text = f"{error}. Nothing was rolled back; the job was told to suspend, and {how}"
        if isinstance(error, ClusterRefused):
            raise ClusterRefused(error.reason, text) from error
        raise type(error)(text) from error


def _suspend(run: RunDir, owner: int) -> None:
    """As Ctrl-C does: commit and stop."""
    click.echo(f"process {owner} drains: it commits a checkpoint and stops", err=True)
    deadline = time.monotonic() + run.spec().recovery.drain_seconds + SLACK_SECONDS
    os.kill(owner, signal.SIGTERM)
    while run.owner() is not None:
        if time.monotonic() > deadline:
            raise RetryableError(f"process {owner} has not ended yet")
        time.sleep(POLL_SECONDS)


def _told(done: RolledBack, directory: str) -> str:
    if done.record is None:
        return f"{done.checkpoint} is the next resume point already: nothing was changed"
    lines = [
        f"the next attempt resumes {done.checkpoint}: step {done.step}, {counted(done.samples, 'sample')}"
    ]
    if done.left:
        undo = shlex.join(["rtj", "checkpoints", "rollback", directory, "--to", done.left[0]])
        lines.append(f"left behind until retention takes them: {', '.join(done.left)}; `{undo}` undoes this")
        lines.append(
            f"`{shlex.join(['rtj', 'checkpoints', 'pin', directory, done.left[0]])}` keeps it longer"
        )
    return "\n".join(lines)


# ---- a job in a cluster ------------------------------------------------------------------------------------


class _Names:
    """``wanted.Names`` of a listing."""

    def __init__(self, listing: Listing) -> None:
        self.complete = [info.name for info in listing.ours if info.complete]
        self.incomplete = [info.name for info in listing.ours if not info.complete]
        self.resume_points = [info.name for info in listing.ours if info.resumable]


def _in_cluster(store: ReaderStore, which: str, suspend: bool, place: Place) -> Raw:
    from resumable_operator.cli.suspend import await_suspended, is_suspended, set_suspend

    session, name = store.session, store.name
    obj = session.run(session.job(name))
    idle = is_suspended(obj)
    _require_stoppable(obj, name, idle, suspend)
    target = _target(store.listing(), which)
    if idle:
        wish = made_again(target, _earlier(obj))
        session.run(_set_wish(session, name, wish, go_on=False))
    else:
        obj, _ = session.run(set_suspend(session, name, True))
        with _told_how_to_go_on(f"`{_resume_command(place, name, session.namespace)}` continues it"):
            session.run(await_suspended(session, name, obj))
            wish = made_again(target, _earlier(session.run(session.job(name))))
            session.run(_set_wish(session, name, wish, go_on=True))
    where = {"job": name, "namespace": session.namespace}
    return {**where, "checkpoint": target, "resumeFrom": wish, "goes_on": not idle}


def _require_stoppable(obj: Raw, name: str, idle: bool, suspend: bool) -> None:
    phase = (obj.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        raise UsageProblem(f"job {name} has ended ({phase}): make another with spec.checkpoint.resumeFrom")
    if idle or suspend:
        return
    if obj["spec"].get("suspend"):
        raise UsageProblem(f"job {name} is being suspended: try again when it is, or give --suspend to wait")
    raise UsageProblem(
        f"job {name} trains: suspend it first (`rtj suspend {name} --wait`), or give --suspend"
    )


def _target(listing: Listing, which: str) -> str:
    try:
        name = find(_Names(listing), which)
    except CheckpointUserError as error:
        raise UsageProblem(str(error)) from error
    why = next(info.why_not for info in listing.ours if info.name == name)
    if why.startswith("damaged"):
        raise DamagedFound(f"{name} is {why}")
    return name


def _earlier(obj: Raw) -> list[str | None]:
    """Wishes that were made already: the same is granted once."""
    spec, status = obj["spec"].get("checkpoint") or {}, obj.get("status") or {}
    return [spec.get("resumeFrom"), status.get("resumedFrom")]


async def _set_wish(session: Session, name: str, wish: str, *, go_on: bool) -> None:
    from resumable_operator.cluster.kube_api import JOBS

    change: Raw = {"spec": {"checkpoint": {"resumeFrom": wish}, **({"suspend": False} if go_on else {})}}
    await session.api.patch(JOBS, name, change, session.namespace)


def _resume_command(place: Place, name: str, namespace: str) -> str:
    front = ["kubectl", "rtj"] if place.plugin else ["rtj"]
    return shlex.join([*front, "resume", name, "-n", namespace])


def _told_in_cluster(told: Raw, place: Place) -> str:
    resume = _resume_command(place, told["job"], told["namespace"])
    then = "it goes on" if told["goes_on"] else f"it goes on with `{resume}`"
    return f"job {told['job']} has spec.checkpoint.resumeFrom: {told['resumeFrom']}; {then} from there"
