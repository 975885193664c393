"""The engine with one rank: rolled back by hand, resumed from a step, forked from another job's store."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from engine_job import Job, make_state, save, start, weight

from resumable_training.checkpoint import pins
from resumable_training.checkpoint.copying import copy_checkpoint, copy_store
from resumable_training.checkpoint.errors import NoResumePoint, Superseded
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.rollback import roll_back
from resumable_training.checkpoint.stores import open_store


@pytest.fixture(params=["directory", "s3"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    if request.param == "s3":
        return Job(request.getfixturevalue("s3_url") + "/store")
    return Job(tmp_path / "store")


def back(job: Job, wanted: str) -> None:
    roll_back(job.store, wanted, now=time.time(), nonce=uuid.uuid4().hex)


def restored(job: Job, attempt: int, **config: object) -> tuple[str, float]:
    """Name and weight of what an attempt resumes."""
    state = make_state()
    report = job.engine(attempt, **config).restore(state)
    assert report is not None
    return report.checkpoint, weight(state)


def test_rolled_back_it_goes_on_from_there(job: Job) -> None:
    """With the values of that step; what it saves then is the chain, the branch it left is not."""
    start(job, 1, 10, 20, 30)
    back(job, "20")
    assert restored(job, 2) == ("step-00000020.1", 20.0)
    assert "step-00000030.1" in survey(job.store).complete
    start(job, 3, 25)
    assert job.resume_points == ["step-00000025.4", "step-00000020.1", "step-00000010.1"]


def test_the_first_restore_since_a_persons_choice_says_so(job: Job) -> None:
    """A roll-back, or ``resumeFrom``; an attempt that comes back to the same point is on its own."""

    def deliberate(attempt: int, **config: object) -> bool:
        report = job.engine(attempt, **config).restore(make_state())
        assert report is not None
        return report.deliberate

    start(job, 1, 10, 20)
    assert not deliberate(2)
    back(job, "10")
    assert [deliberate(3), deliberate(4)] == [True, False]
    assert [deliberate(5, resume_from="step-00000020.1"), deliberate(6)] == [True, False]


def test_an_attempt_that_trains_on_is_superseded(job: Job) -> None:
    """It was not stopped: its next save fails, and writes nothing on the chain."""
    running = start(job, 1, 10, 20)
    back(job, "10")
    with pytest.raises(Superseded, match="record 2 is newer"):
        save(running, 30)
    assert job.resume_points == ["step-00000010.1"]


def test_the_branch_that_was_left_goes_when_there_are_enough(job: Job) -> None:
    """Not before; until then going back to it by name undoes the roll-back."""
    start(job, 1, 20, 30)
    back(job, "20")
    engine = job.engine(2, keep_last=3)
    engine.restore(make_state())
    save(engine, 21)
    assert "step-00000030.1" in survey(job.store).complete
    save(engine, 22)
    assert "step-00000030.1" not in survey(job.store).complete
    assert job.resume_points == ["step-00000022.3", "step-00000021.3", "step-00000020.1"]


def test_a_wish_for_a_step_is_granted_once_and_can_be_made_again(job: Job) -> None:
    """By the step on the chain; a serial number makes it another wish."""
    start(job, 1, 10, 20)
    assert restored(job, 2, resume_from="10")[0] == "step-00000010.1"
    start(job, 3, 15, resume_from="10")
    assert restored(job, 4, resume_from="10")[0] == "step-00000015.3"
    assert restored(job, 5, resume_from="10#2")[0] == "step-00000010.1"
    with pytest.raises(NoResumePoint, match="resumeFrom: there is no complete checkpoint of step 11"):
        job.engine(6, resume_from="11").restore(make_state())


def test_ones_own_checkpoint_by_its_path(job: Job) -> None:
    """Is the same as by its name: the chain does not end there."""
    start(job, 1, 10, 20)
    path = f"{job.store.location}/step-00000020.1"
    assert restored(job, 2, resume_from=path)[0] == "step-00000020.1"
    assert job.resume_points == ["step-00000020.1", "step-00000010.1"]


def test_fork_from_the_newest_of_another_store(job: Job, tmp_path: Path) -> None:
    """The place is settled at the first resume: the other job may go on saving."""
    first = start(job, 1, 10, 20)
    fork = Job(tmp_path / "fork", job="local/fork", uid="other")
    where = job.store.location
    assert restored(fork, 1, resume_from=where) == (f"{where}/step-00000020.1", 20.0)
    save(first, 30)
    assert restored(fork, 2, resume_from=where)[0] == f"{where}/step-00000020.1"
    start(fork, 3, 21, resume_from=where)
    assert fork.resume_points == ["step-00000021.3"]
    assert job.resume_points[0] == "step-00000030.1"
    empty = Job(tmp_path / "empty", job="local/empty")
    empty.engine(1)
    with pytest.raises(NoResumePoint, match="resumeFrom: the store"):
        Job(tmp_path / "third", job="local/third").engine(1, resume_from=str(empty.root)).restore(
            make_state()
        )


def test_fork_from_a_copy(job: Job, tmp_path: Path) -> None:
    """A copied checkpoint is verified and resumed like any other."""
    start(job, 1, 10)
    copies = LocalStore(tmp_path / "copies", visibility_seconds=0.0)
    copy_checkpoint(job.store, "step-00000010.1", copies)
    fork = Job(tmp_path / "fork", job="local/fork", uid="other")
    path = f"{copies.location}/step-00000010.1"
    assert restored(fork, 1, resume_from=path) == (path, 10.0)


def test_a_job_moves_to_a_copy_of_its_store(job: Job, tmp_path: Path) -> None:
    """It finds its owner, records and chain there, and goes on."""
    start(job, 1, 10, 20)
    copy_store(job.store, LocalStore(tmp_path / "moved"))
    moved = Job(tmp_path / "moved")
    assert restored(moved, 2, known_checkpoint=True) == ("step-00000020.1", 20.0)


def test_retention_spares_what_a_reader_holds(job: Job) -> None:
    """An evaluation job of another process reads while the job trains on."""
    engine = start(job, 1, 10, keep_last=2)
    with pins.held(job.store.location, holder="eval") as path:
        for step in (20, 30, 40):
            save(engine, step)
        assert open_store(path).size(".metadata")
    save(engine, 50)
    assert job.resume_points == ["step-00000050.1", "step-00000040.1"]
