"""Runs one job on this machine until it ends: the same reconciler as the operator's, over a local cluster.

``rtj run`` is the caller. What may be continued, and how, is decided by the pure functions at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from resumable_operator.agents import AgentPool
from resumable_operator.cli.display import Display
from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rank_output import RankOutput
from resumable_operator.cli.run_metrics import serving_metrics
from resumable_operator.cli.run_options import Wish, same_program
from resumable_operator.clock import SystemClock
from resumable_operator.cluster.local import LocalCluster
from resumable_operator.cluster.local_control import ControlServer
from resumable_operator.cluster.local_faults import Faults
from resumable_operator.cluster.local_files import RunFiles, holding_store
from resumable_operator.cluster.local_machines import Machines
from resumable_operator.decide import ledger
from resumable_operator.decide.actions import Plan
from resumable_operator.decide.assign import store_root
from resumable_operator.decide.observation import Job, Observation
from resumable_operator.errors import RetryableError
from resumable_operator.model import BudgetStatus, JobSpec, JobStatus
from resumable_operator.reconcile import Reconciler, Settings
from resumable_operator.words import counted
from resumable_training.checkpoint.stores import is_url
from resumable_training.contract import env

logger = logging.getLogger(__name__)

STATUS_SECONDS = 1.0
TICK_SECONDS = 0.2
OVER = ("Succeeded", "Failed", "Suspended")


@dataclass(frozen=True)
class Setting:
    """How ``rtj run`` was asked to run the job, beside the job itself."""

    directory: Path
    fresh: bool = False
    quiet: bool = False
    trace_samples: bool = False
    gpus: tuple[str, ...] = ()
    metrics_port: int | None = None


class Stopped(Exception):
    """A second Ctrl-C: everything was killed at once."""


class LocalRun:
    """One job from start to end.

    Raises (``run``):
        UsageProblem: the run directory belongs to something else.
        UserError: another process has it, or the checkpoint directory.
        FatalError: its files are damaged.
        Stopped: the user did not want to wait for the drain.
    """

    def __init__(self, wish: Wish, setting: Setting, console: Console) -> None:
        self._wish = wish
        self._setting = setting
        self._console = console
        self._clock = SystemClock()
        workers = wish.spec.workers
        processes = workers.processes_per_worker if workers.processes_per_worker != "auto" else 1
        self._cluster = LocalCluster(
            setting.directory,
            self._clock,
            Machines(workers.replicas + workers.spares, workers.max_size + workers.spares),
            environment=self._environment(),
            gpus=setting.gpus,
            gpus_per_worker=processes,
            on_event=self._told,
        )
        self._output = RankOutput(lambda attempt: self._cluster.files.log(attempt, 0))
        self._messages: list[str] = []
        self._status = JobStatus()
        self._over = asyncio.Event()
        self._stop = asyncio.Event()
        self._draining = False
        self._look_again: Callable[[], None] = lambda: None
        self._suspend_due = False  # asked for, and not yet written down
        self._stopped_by = ""  # the signal, in words of people

    async def run(self) -> JobStatus:
        """Run until the job is finished, failed or drained; its last status."""
        async with self._cluster as cluster, contextlib.AsyncExitStack() as stack:
            if self._wish.spec.checkpoint.directory is not None:
                stack.enter_context(holding_store(Path(self._wish.spec.checkpoint.directory.path)))
            job = self._submit()
            if job.status.phase == "Succeeded":
                return job.status
            agents = AgentPool(self._clock)
            stack.push_async_callback(agents.close)
            faults = Faults(
                cluster,
                self._clock,
                lambda worker, wish: agents.request(job.key, worker, wish),
                lambda message: self._messages.append(message),  # the list is a new one after each display
            )
            server = ControlServer(cluster.files, cluster.machines.capacity, faults.answer)
            await stack.enter_async_context(server)
            page = serving_metrics(self._setting.metrics_port, cluster.store.job, self._clock.now)
            await stack.enter_async_context(page)
            reconciler = Reconciler(cluster, agents, self._clock, self._settings())
            self._look_again = lambda: reconciler.queue.add_after(job.key, TICK_SECONDS)
            with self._signals(), Display(self._console, live=self._console.is_terminal) as display:
                await self._until_over(reconciler, display)
            stored = cluster.store.job()
            assert stored is not None
            return stored.status

    def _submit(self) -> Job:
        """Bring the job into the run directory, or go on with the one that is there."""
        store, files = self._cluster.store, self._cluster.files
        if self._setting.fresh:
            check_fresh(self._wish.spec, files.root)
            aside = files.set_aside()
            if aside is not None:
                self._messages.append(f"the earlier run was moved to {aside}")
        previous = store.job()
        if previous is not None:
            self._clock.not_before(previous.status.ledger.settled_at / 1000)
            check_continuation(previous, self._wish)
            if previous.status.phase == "Succeeded":
                return previous
            if previous.status.phase == "Failed":
                previous = store.write_status(previous, reopened(previous.status))
            elif previous.status.phase != "Suspended":
                previous = store.write_status(previous, after_a_kill(previous.status, self._clock.now()))
            self._messages.append(
                f"continuing {files.root}: {counted(previous.status.attempt.number, 'attempt')} so far"
            )
            if previous.name != self._wish.name:
                self._messages.append(f"the job keeps its name, {previous.name}")
            self._output.start_at(previous.status.attempt.number)
            self._status = previous.status
        return self._cluster.submit(previous.name if previous else self._wish.name, self._wish.spec)

    def _settings(self) -> Settings:
        return Settings(
            status_seconds=STATUS_SECONDS,
            isolate_jobs=False,
            on_pass=self._passed,
            on_folded=lambda _job, events: self._cluster.store.record_history(events),
        )

    def _environment(self) -> dict[str, str]:
        result = rank_environment()
        if self._setting.trace_samples:
            result[env.TRACE_DIR] = str(self._setting.directory / "traces")
        return result

    # ---- while it runs -------------------------------------------------------------------------------

    async def _until_over(self, reconciler: Reconciler, display: Display) -> None:
        tasks = [
            asyncio.create_task(reconciler.run(), name="reconciler"),
            asyncio.create_task(self._show(display), name="display"),
            asyncio.create_task(self._over.wait(), name="over"),
            asyncio.create_task(self._stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._update(display, last=True)
        if self._stop.is_set() and not self._over.is_set():
            raise Stopped

    async def _show(self, display: Display) -> None:
        while True:
            if self._suspend_due:
                self._suspend()
            self._update(display)
            await asyncio.sleep(TICK_SECONDS)

    def _update(self, display: Display, last: bool = False) -> None:
        lines, self._messages = self._messages, []
        if not self._setting.quiet:
            lines += self._output.poll(self._status.attempt.number)
            lines += self._output.end() if last else []
        display.update(self._status, self._clock.now(), lines)

    def _passed(self, observation: Observation, plan: Plan) -> None:
        self._status = plan.status
        ended = all(worker.phase in ("succeeded", "failed") for worker in observation.workers)
        if plan.status.phase not in OVER or not ended:
            return
        if observation.job.status.phase in OVER:
            self._over.set()
        else:  # not written yet; and when no worker is left, nothing else will happen
            self._look_again()

    def _told(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Warnings are shown as they come; the job's failure, with all its lines, is for the end."""
        if kind == "Warning" and reason != "Failed":
            self._messages.append(f"{reason}: {message.splitlines()[0]}")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._interrupted, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _interrupted(self, number: signal.Signals) -> None:
        """The first time drain, the second time stop."""
        if self._draining:
            self._stop.set()
            return
        self._draining = True
        self._stopped_by = "Ctrl-C" if number == signal.SIGINT else number.name
        self._messages.append("draining: the job commits a checkpoint and ends (Ctrl-C again: stop at once)")
        self._suspend()

    def _suspend(self) -> None:
        """Write down that the job is to stop; tried again as long as the disk is full."""
        suspended = self._wish.spec.model_copy(update={"suspend": True})
        try:
            self._cluster.submit(self._wish.name, suspended, self._stopped_by)
        except RetryableError as error:
            if not self._suspend_due:
                self._messages.append(f"cannot drain yet: {error}")
            self._suspend_due = True
        else:
            self._suspend_due = False


def rank_environment() -> dict[str, str]:
    """What ranks get beside our own: in a virtual environment ``python`` is this one, as if activated."""
    path = os.environ.get("PATH", os.defpath)
    if sys.prefix != sys.base_prefix:
        path = os.pathsep.join([os.path.dirname(sys.executable), path])
    return {"PATH": path}


def check_continuation(previous: Job, wish: Wish) -> None:
    """Whether ``wish`` may go on with the job that is in the run directory.

    Raises:
        UsageProblem: it runs another program, the job has finished and its arguments differ, or its
            checkpoints would have to move while it is not suspended.
    """
    old, new = previous.spec, wish.spec
    if not same_program(old, new):
        raise UsageProblem(
            f"this run directory belongs to `{_shown(old)}`, not to `{_shown(new)}`: "
            "give another --dir, or start over with --fresh"
        )
    if previous.status.phase == "Succeeded" and old.command() != new.command():
        raise UsageProblem(
            f"the job in this run directory has finished as `{_shown(old)}`; "
            "to run it with other arguments give another --dir, or start over with --fresh"
        )

    store = store_root(new.checkpoint)
    if previous.status.phase not in OVER and not _same_place(previous.status.store or store, store):
        raise UsageProblem(
            f"this run was killed while its checkpoints were in {previous.status.store}: continue it there, "
            "and drain it (Ctrl-C) before you give it another directory"
        )


def _same_place(one: str, other: str) -> bool:
    """Whether two roots of a store are the same one, links followed."""
    return one == other or (
        not any(map(is_url, (one, other))) and os.path.realpath(one) == os.path.realpath(other)
    )


def check_fresh(spec: JobSpec, root: Path) -> None:
    """Starting over moves the run directory's content aside, and touches nothing else.

    Raises:
        UsageProblem: checkpoints lie elsewhere, so that the job would go on from them.
    """
    if spec.checkpoint.s3 is not None:
        raise UsageProblem(
            f"--fresh does not touch {store_root(spec.checkpoint)}, and the job would go on from checkpoints "
            "there: give another prefix"
        )
    own = RunFiles(root).checkpoints
    store = Path(spec.checkpoint.directory.path) if spec.checkpoint.directory else own
    if store.resolve() != own and store.is_dir() and any(store.iterdir()):
        raise UsageProblem(
            f"--fresh does not touch {store}, and the job would go on from the checkpoints there: "
            "empty it, or give another --checkpoint-dir"
        )


def after_a_kill(status: JobStatus, now: float) -> JobStatus:
    """Nothing ran between the last status of a killed ``rtj run`` and ``now``: nobody wanted it to.

    That time is ``suspended``, not time spent on detecting a failure.
    """
    settled = ledger.settle(status.ledger, ledger.SUSPENDED, ledger.milliseconds(now))
    attempt = status.attempt
    if attempt.last_progress_at is not None:
        attempt = attempt.model_copy(update={"last_progress_at": now})
    return status.model_copy(update={"ledger": settled, "attempt": attempt})


def reopened(status: JobStatus) -> JobStatus:
    """A failed job that its user starts again: as if suspended since, with fresh budgets.

    Whatever is saved next is progress: perhaps its user mended the store, or goes back.
    """
    return status.model_copy(
        update={
            "phase": "Suspended",
            "reason": "started again",
            "finished_at": None,
            "failure_class": None,
            "budgets": BudgetStatus(),
            "saved_samples": 0,
            "backoff_until": None,
            "backoff_count": 0,
            "start_failures": 0,
            "create_after": None,
            "store": "",
            "conditions": tuple(c for c in status.conditions if c.type != "Failed"),
            "ledger": ledger.enter(ledger.go_on(status.ledger), ledger.SUSPENDED, status.ledger.settled_at),
        }
    )


def _shown(spec: JobSpec) -> str:
    return " ".join(spec.command())
