"""What a spec that cannot be run does: nothing, said clearly; and what it may not do to a job that runs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.observation import Problem
from resumable_operator.decide.validity import BLOCKED_RECHECK_SECONDS, FIRST_RECHECK_SECONDS, check_due

NO_CLAIM = Problem(
    "spec.checkpoint.persistentVolumeClaim.claimName", "ClaimNotFound", "there is no claim data: create it"
)
BAD_TEMPLATE = Problem("spec.template", "TemplateInvalid", "containers[0].image: Required value")
SINGLE_NODE = Problem(
    "spec.checkpoint.persistentVolumeClaim", "ClaimNotShared", "ReadWriteOnce, and several nodes", fatal=False
)
TEMPLATE = {"spec": {"containers": [{"name": "worker", "command": ["x"]}]}}


def fresh(*problems: Problem, **spec: object) -> World:
    world = World({"workers": {"replicas": 2, "min": 1, "max": 4}, **spec}, steps=100_000)
    world.problems = problems
    return world


def running(**spec: object) -> World:
    world = fresh(**spec)
    world.run(2.0, until="Running")
    assert world.job.status.phase == "Running"
    return world


def valid(world: World) -> tuple[str, str, str]:
    known = condition(world.job.status, "Valid")
    assert known is not None
    return known.status, known.reason, known.message


def told(world: World, reason: str) -> list[str]:
    return [event.message for event in world.emitted if event.reason == reason]


def test_a_good_spec_is_checked_once() -> None:
    """Checked before the first worker is made, and not again as long as it stays the same."""
    world = fresh()
    assert check_due(world.job, world.now)
    plan = world.step()
    assert any(isinstance(action, CreateWorker) for action in plan.actions)
    assert valid(world) == ("True", "Checked", "")
    assert not check_due(world.job, world.now + 1e6)
    world.change_spec(recovery={"hangSeconds": 9.0})
    assert check_due(world.job, world.now)


def test_nothing_is_created_from_a_bad_spec() -> None:
    """Pending, the condition names field and fix, one warning, no worker, no attempt."""
    world = fresh(NO_CLAIM)
    world.run(5.0)
    status = world.job.status
    assert (status.phase, status.attempt.number, world.agents) == ("Pending", 0, {})
    assert valid(world) == ("False", "ClaimNotFound", f"{NO_CLAIM.field}: {NO_CLAIM.message}")
    assert told(world, "SpecInvalid") == [f"{NO_CLAIM.field}: {NO_CLAIM.message}"]
    assert told(world, "WorkersWaiting") == []  # it would say the same
    assert "create it" in status.reason
    assert status.backoff_count == 0


def test_a_claim_that_is_created_later_is_seen() -> None:
    """A fatal problem is looked at again, and the job starts when it is gone."""
    world = fresh(NO_CLAIM)
    world.run(1.0)
    assert world.plans[-1].wake_at is not None
    assert world.plans[-1].wake_at <= world.now + BLOCKED_RECHECK_SECONDS
    world.problems = ()
    world.run(BLOCKED_RECHECK_SECONDS + 3.0, until="Running")
    assert world.job.status.phase == "Running"
    assert valid(world)[0] == "True"
    assert len(told(world, "SpecValid")) == 1


def test_an_unchecked_spec_creates_nothing() -> None:
    """When the cluster can't say whether the spec is good, nothing is made of it; it is asked again soon."""
    world = fresh()
    world.problems = None
    plan = world.step()
    assert not any(isinstance(action, CreateWorker) for action in plan.actions)
    assert plan.wake_at is not None
    assert plan.wake_at <= world.now + 2.0
    world.problems = ()
    world.run(3.0, until="Running")
    assert world.job.status.phase == "Running"


def test_a_warning_lets_the_job_start() -> None:
    """A problem that only hurts later is told once, and stays readable in the condition."""
    world = fresh(SINGLE_NODE)
    world.run(3.0)
    assert world.job.status.phase == "Running"
    assert valid(world)[:2] == ("True", "ClaimNotShared")
    assert len(told(world, "SpecQuestionable")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"template": TEMPLATE},
        {"workers": {"replicas": 1}},
        {"workers": {"replicas": 4, "min": 1}},
        {"workers": {"replicas": 2, "min": 1, "processesPerWorker": 4}},
    ],
    ids=["template", "smaller", "larger", "processes"],
)
def test_a_running_job_outlives_a_bad_change(change: dict[str, object]) -> None:
    """Its attempt goes on as it was; nothing of the new spec is applied until it is mended."""
    world = running(recovery={"growCooldownSeconds": 1.0})
    world.problems = (BAD_TEMPLATE,)
    world.change_spec(**change)
    before = set(world.agents)
    world.run(10.0)
    assert (world.job.status.attempt.number, world.job.status.phase) == (1, "Running")
    assert set(world.agents) == before
    assert valid(world)[0] == "False"


def test_a_running_job_with_a_bad_spec_survives_a_loss() -> None:
    """The workers that it has go on, smaller, at once; a new one is made when the spec is good again."""
    world = running()
    world.problems = (BAD_TEMPLATE,)
    world.change_spec(template=TEMPLATE)
    world.run(1.0)
    world.kill_worker("train-1-1")
    world.run(2.0)
    status = world.job.status
    assert (status.phase, status.size, status.attempt.number) == ("Running", 1, 2)
    assert "train-1-2" not in world.agents
    world.problems = ()
    world.run(BLOCKED_RECHECK_SECONDS + 5.0)
    assert {name.rsplit("-", 1)[1] for name in world.agents} != {"1"}, "new pods of the new template"


def test_a_bad_spec_does_not_keep_a_job_from_being_suspended() -> None:
    """Suspending, and a deadline, need nothing that could be wrong."""
    world = running()
    world.problems = (BAD_TEMPLATE,)
    world.change_spec(template=TEMPLATE, suspend=True)
    world.run(3.0)
    assert world.job.status.phase == "Suspended"
    assert world.agents == {}


def test_finished_and_deleted_jobs_are_not_checked() -> None:
    """Nobody needs to know."""
    world = running()
    done = world.job.status.model_copy(update={"finished_at": 1.0})
    assert not check_due(replace(world.job, status=done, generation=9), world.now)
    assert not check_due(replace(world.job, deleting=True, generation=9), world.now)


def test_only_news_of_a_spec_that_waits_are_written_at_once() -> None:
    """That nothing has changed since the last look can wait for another write."""
    world = fresh(NO_CLAIM)
    assert world.step().must_write
    world.tick(FIRST_RECHECK_SECONDS + 0.5)
    assert check_due(world.job, world.now)
    again = world.step()
    assert (again.status.checked_at, again.must_write) == (world.now, False)
    world.problems = (BAD_TEMPLATE,)
    world.tick(2 * FIRST_RECHECK_SECONDS + 0.5)
    assert world.step().must_write


def test_a_look_again_while_an_attempt_lives_is_written_at_once() -> None:
    """Else each pass of a recovery would ask the cluster again."""
    world = running()
    world.problems = (NO_CLAIM,)
    world.change_spec(recovery={"hangSeconds": 9.0})
    world.step()
    world.tick(FIRST_RECHECK_SECONDS + 0.5)
    again = world.step()
    assert (again.status.checked_at, again.must_write) == (world.now, True)


def test_a_claim_made_right_after_the_job_is_seen_at_once() -> None:
    """The first look again comes soon, later ones ever more seldom, none after more than the longest wait."""
    world = fresh(NO_CLAIM)
    looks: list[float] = []
    while world.now < 1300.0:
        if check_due(world.job, world.now):
            looks.append(world.now)
        world.step()
        world.tick(0.5)
    gaps = [after - before for before, after in itertools.pairwise(looks)]
    assert gaps[0] <= FIRST_RECHECK_SECONDS + 0.5
    assert gaps == sorted(gaps)
    assert len(gaps) <= 15
    assert BLOCKED_RECHECK_SECONDS <= gaps[-1] <= BLOCKED_RECHECK_SECONDS + 0.5
