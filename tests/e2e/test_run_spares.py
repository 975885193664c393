"""``rtj run --spares``: a loss is made good by a worker that waits ready, at the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_run import LocalRun
from training_run import TrainingRun, assert_same

from resumable_operator.model import JobStatus

FAKE = ("--steps", "200", "--step-seconds", "0.02", "--checkpoint-every", "10")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def members(status: JobStatus) -> set[str]:
    return {member.worker for member in status.attempt.members}


def until_ready(run: LocalRun, count: int) -> None:
    """Until so many workers, spares included, have an agent that speaks."""
    run.until(
        lambda status: (
            any(one.type == "WorkersReady" and one.reason == "AllReady" for one in status.conditions)
            and len(run.workers_created()) >= count
        ),
        f"{count} workers to be ready",
    )


def test_a_spare_steps_in(run: LocalRun) -> None:
    """The machine is gone for good, and the job goes on at once with as many; a new machine makes a spare."""
    run.start_fake("--workers", "1:2", "--spares", "1", fake=FAKE)
    before = members(run.until_step(15, size=2))
    until_ready(run, 3)
    (spare,) = set(run.workers_created()) - before
    lost = sorted(before)[1]
    run.fault("kill-worker", "--worker", lost)
    after = run.until_step(30, attempt=2, size=2)
    assert members(after) == (before - {lost}) | {spare}
    run.fault("add-worker")
    until_ready(run, 4)
    status = run.finish()
    (ending,) = status.interruptions
    assert (ending.cause, ending.size_before, ending.size_after) == ("node_lost", 2, 2)
    assert status.attempt.number == 2


def test_the_last_worker_is_a_spare_and_may_go(run: LocalRun) -> None:
    """What hits a spare costs the training nothing."""
    run.start_fake("--workers", "2", "--spares", "1", fake=FAKE)
    before = members(run.until_step(15))
    until_ready(run, 3)
    (spare,) = set(run.workers_created()) - before
    run.fault("kill-worker", "--worker", spare, "--back-after", "0.1")
    status = run.finish()
    assert (status.attempt.number, status.interruptions) == (1, ())


def test_training_is_the_same_with_a_spare(
    training: TrainingRun, undisturbed: Callable[..., dict[str, Any]]
) -> None:
    """The spare is preloaded before it is needed; every sample is used once, to the same weights."""
    slowly = ("--step-seconds", "0.1")
    training.start_tiny("--workers", "1:2", "--spares", "1", tiny=slowly)
    before = training.until_step(12, size=2)
    until_ready(training, 3)
    (spare,) = set(training.workers_created()) - members(before)
    log = training.directory / "workers" / spare / "agent.log"
    training.wait(lambda: "preloaded" in log.read_text(), "the spare to be preloaded")
    training.fault("kill-worker", "--worker", before.attempt.members[0].worker)
    status = training.finish()
    training.check()
    assert [(one.cause, one.size_after) for one in status.interruptions] == [("node_lost", 2)]
    assert spare in members(status)
    assert_same(training.result(), undisturbed(2))
