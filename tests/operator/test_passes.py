"""Passes as the process sees them: counted by how they end, logged when they do something, timed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from resumable_operator.decide.actions import Action, CreateWorker, EmitEvent, Plan, SendAssignment
from resumable_operator.decide.observation import Job, Observation
from resumable_operator.errors import ConflictError, RetryableError
from resumable_operator.model import AttemptStatus, Evidence, JobSpec, JobStatus, Workers
from resumable_operator.passes import RESULTS, PassMeter
from resumable_training.contract import metrics as names
from resumable_training.contract.assignment import Assignment

KEY = "ns/train"
JOB = Job("ns", "train", "uid", 1, JobSpec(workers=Workers(replicas=1)), JobStatus())
OBSERVATION = Observation(job=JOB)
ASSIGNMENT = Assignment(KEY, "uid", 1, "digest", "w", (), "127.0.0.1", 0)


@dataclass
class FakeClock:
    time: float = 1000.0

    def now(self) -> float:
        return self.time


class Scene:
    """A meter, its clock and what it exports."""

    def __init__(self) -> None:
        self.clock, self.registry = FakeClock(), CollectorRegistry()
        self.meter = PassMeter(self.registry, self.clock)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(name, labels)
        assert found is not None, f"{name} is not exported"
        return found

    def latency(self) -> tuple[float, float]:
        name = names.OPERATOR_EVENT_TO_ASSIGNMENT_SECONDS
        return self.value(f"{name}_count"), self.value(f"{name}_sum")

    def go(self, chosen: Plan, seconds: float = 0.0) -> None:
        """One whole pass."""
        with self.meter.running(KEY):
            self.meter.decided(OBSERVATION, chosen)
            self.clock.time += seconds
        self.meter.done(KEY, chosen)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def plan(*actions: Action, attempt: AttemptStatus | None = None, **changes: Any) -> Plan:
    status = JobStatus(attempt=attempt or AttemptStatus(number=3), phase="Forming")
    return replace(Plan(status, actions, "because", must_write=False), **changes)


def assignment(attempt: int) -> SendAssignment:
    return SendAssignment(replace(ASSIGNMENT, attempt=attempt))


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


@pytest.mark.parametrize(
    ("error", "result"),
    [(ConflictError("x"), "conflict"), (RetryableError("x"), "failed"), (ZeroDivisionError(), "error")],
)
def test_failed_passes_are_counted(scene: Scene, error: Exception, result: str) -> None:
    """Every way to fail has a counter; the error goes on its way."""
    with pytest.raises(type(error)), scene.meter.running(KEY):
        raise error
    counts = {name: scene.value(names.OPERATOR_PASSES_TOTAL, result=name) for name in RESULTS}
    assert counts == {name: float(name == result) for name in RESULTS}
    assert scene.meter.longest_running() is None


def test_finished_passes_are_counted(scene: Scene) -> None:
    """Passes that do something, do nothing, or find the job gone are told apart."""
    scene.go(plan(CreateWorker("w", 0, 1)))
    scene.go(plan())
    scene.meter.done(KEY, None)
    counts = [scene.value(names.OPERATOR_PASSES_TOTAL, result=name) for name in RESULTS[:3]]
    assert counts == [1.0, 1.0, 1.0]


def test_length_of_passes(scene: Scene) -> None:
    """The histogram has every pass with its length."""
    scene.go(plan(), seconds=0.5)
    scene.go(plan(), seconds=0.25)
    assert scene.value(f"{names.OPERATOR_PASS_SECONDS}_count") == 2
    assert scene.value(f"{names.OPERATOR_PASS_SECONDS}_sum") == 0.75


def test_a_pass_that_acts_is_one_line(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """The line has the reason and what is being done, and knows job and attempt."""
    actions = CreateWorker("w-0", 0, 1), CreateWorker("w-1", 1, 1), EmitEvent("Normal", "Started", "go")
    scene.go(plan(*actions))
    (record,) = caplog.records
    assert record.getMessage() == "because [2 x CreateWorker, 1 x EmitEvent]"
    assert (record.levelno, record.job, record.attempt) == (logging.INFO, KEY, 3)  # type: ignore[attr-defined]


def test_a_pass_that_only_writes_is_one_line(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """What is reserved in the status is worth a line."""
    scene.go(plan(must_write=True))
    assert [record.getMessage() for record in caplog.records] == ["because"]


def test_an_idle_pass_is_quiet(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A pass in which nothing happened is not logged."""
    scene.go(plan())
    scene.go(plan(must_write=True, status=JOB.status))
    assert caplog.records == []


def test_repetitions_are_quiet(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Trying the same again is a line for debugging only, until something else was done."""
    again, other = plan(CreateWorker("w", 0, 1)), plan(CreateWorker("w", 0, 1), reason="another")
    for chosen in (again, again, other, again):
        scene.go(chosen)
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.DEBUG, logging.INFO, logging.INFO]


def test_from_evidence_to_assignments(scene: Scene) -> None:
    """Counted from the first witness to the last assignment of the next attempt, not to its ranks' start."""
    witnesses = Evidence(at=999.0, cause="crash"), Evidence(at=998.0, cause="crash")
    scene.go(plan(attempt=AttemptStatus(number=3, state="ending", evidence=witnesses)))
    forming, running = (AttemptStatus(number=4, state=state) for state in ("forming", "running"))
    scene.go(plan(assignment(4), attempt=forming), seconds=0.25)
    scene.go(plan(assignment(4), assignment(4), attempt=forming), seconds=0.75)
    scene.clock.time += 10.0
    assert scene.latency() == (0.0, 0.0)
    scene.go(plan(attempt=running))
    assert scene.latency() == (1.0, 3.0)
    scene.go(plan(assignment(4), attempt=running))
    assert scene.latency() == (1.0, 3.0)


def test_an_attempt_that_fails_while_forming(scene: Scene) -> None:
    """Each attempt counts from its own first witness."""
    for number, at in ((3, 900.0), (4, 1000.0)):
        ending = AttemptStatus(number=number, state="ending", evidence=(Evidence(at=at, cause="crash"),))
        scene.go(plan(assignment(number), attempt=ending))
    scene.go(plan(assignment(5), attempt=AttemptStatus(number=5, state="running")), seconds=1.0)
    assert scene.latency() == (1.0, 1.0)


def test_start_of_a_job_is_no_recovery(scene: Scene) -> None:
    """The first attempt, and one after a planned end, have no evidence to count from."""
    scene.go(plan(assignment(1), attempt=AttemptStatus(number=1, state="running")))
    assert scene.latency() == (0.0, 0.0)


def test_job_that_is_gone(scene: Scene) -> None:
    """Nothing is kept of a job that was deleted in mid-recovery and made again."""
    ending = AttemptStatus(number=3, state="ending", evidence=(Evidence(at=1.0, cause="crash"),))
    scene.go(plan(attempt=ending))
    scene.meter.done(KEY, None)
    scene.go(plan(assignment(4), attempt=AttemptStatus(number=4, state="running")))
    assert scene.latency() == (0.0, 0.0)
