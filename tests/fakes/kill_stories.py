"""A job on the cluster to which one thing happens while its operator may die at any of its writes.

Whatever write that is, the story has one end: that is what ``play`` asserts. Used by test_cluster_kills.py
and, for every write, by test_cluster_soak.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mortal_operator
from cluster_run import ClusterRun, causes, step_of
from cluster_witness import Witness
from mortal_operator import Death
from operator_process import OperatorProcess

from resumable_operator.model import JobStatus

STEPS, SAMPLES = 120, 64  # of a fake rank's step
BREAK_AT = 50  # where all wait for what is done to them
SILENT = ("--status-seconds", "3600")  # writes are only those that must be


@dataclass(frozen=True)
class Story:
    """What happens to the job at step ``BREAK_AT``, and its one ending, of one of the causes."""

    act: Callable[[ClusterRun], None]
    causes: tuple[str, ...]
    members: tuple[str, ...]
    rework: bool


def _fail(run: ClusterRun) -> None:
    os.kill(run.agent("train-1-1"), signal.SIGKILL)


def _remove(run: ClusterRun) -> None:
    """With its grace: it drains."""
    run.api.delete(run.pod_path("train-1-1"))


def _shrink(run: ClusterRun) -> None:
    run.scale(2)


STORIES = {
    "failed pod": Story(_fail, ("node_lost",), ("train-0-1", "train-1-2", "train-2-1"), True),
    # Its agent's SIGTERM may be all that an operator hears which is away when the pod goes.
    "deleted pod": Story(_remove, ("evicted", "preempted"), ("train-0-1", "train-1-2", "train-2-1"), False),
    "scaled down": Story(_shrink, ("scale",), ("train-0-1", "train-1-1"), False),
}


def play(run: ClusterRun, story: Story, directory: Path, death: Death) -> bool:
    """The story with an operator that dies so, and a fresh one after it; false when it had no such effect."""
    with mortal(run, directory, death) as process, Witness(run):
        fake = ("--meet", "--wait-at", str(BREAK_AT), "--only-attempt", "1")
        run.faking(*fake, steps=STEPS).create(replicas=3)
        attempt = run.until(lambda status: status.attempt.state == "running", "attempt 1").attempt
        uids = run.uids()
        run.wait(lambda: step_of(attempt.members[0]) >= BREAK_AT, f"step {BREAK_AT}")
        mortal_operator.arm(directory)
        story.act(run)
        died = await_death(run, process)
        status = run.finish()
        _judge(story, status)
        assert run.members() == list(story.members)
        kept = uids.keys() & set(story.members)
        assert {name: run.uids()[name] for name in kept} == {name: uids[name] for name in kept}
    return died


@contextmanager
def mortal(run: ClusterRun, directory: Path, death: Death) -> Iterator[OperatorProcess]:
    """An operator that will die so in place of the usual one, which is at work again at the end."""
    run.operator.kill()
    process = run.operator.begin(*SILENT, program=death.program(directory))
    process.await_ready()
    try:
        yield process
    finally:
        if run.operator.process is process:
            run.operator.kill()
            run.operator.start()


def await_death(run: ClusterRun, process: OperatorProcess) -> bool:
    """Until it is dead, or the story is over without that, and a fresh one is at work. True: it died."""

    def over() -> bool:
        attempt = run.status().attempt
        return process.process.poll() is not None or (attempt.number > 1 and attempt.state == "running")

    run.wait(over, "the operator's death, or the next attempt")
    died = process.process.poll() == -signal.SIGKILL
    run.operator.kill()
    run.operator.start()
    return died


def _judge(story: Story, status: JobStatus) -> None:
    (cause,) = causes(status)
    assert (cause in story.causes, status.attempt.number) == (True, 2), cause
    assert (status.step, status.high_water_samples) == (STEPS, STEPS * SAMPLES)
    assert (status.ledger.rework_steps > 0) == story.rework
    ledger = status.ledger
    assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at
    charged = len(status.budgets.infrastructure) + len(status.budgets.preemption)
    assert charged <= 1
