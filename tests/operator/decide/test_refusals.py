"""A cluster that refuses to create workers: said, waited out, and no reason to train on nothing."""

from __future__ import annotations

from world import World

from resumable_operator.decide.actions import CreateWorker
from resumable_operator.decide.conditions import condition


def world_of(quota: int, minimum: int = 1) -> World:
    world = World({"workers": {"replicas": 4, "min": minimum}}, steps=100_000)
    world.quota = quota
    return world


def creatable(world: World) -> str:
    known = condition(world.job.status, "WorkersCreatable")
    assert known is not None
    return known.status


def tries(world: World) -> int:
    return sum(any(isinstance(a, CreateWorker) for a in plan.actions) for plan in world.plans)


def test_a_quota_makes_the_job_smaller() -> None:
    """It starts at once with what it was given, and says why it is small."""
    world = world_of(3)
    world.run(3.0)
    status = world.job.status
    assert (status.phase, status.size) == ("Running", 3)
    known = condition(status, "WorkersCreatable")
    assert known is not None
    assert (known.status, known.reason) == ("False", "QuotaExceeded")
    assert "pods=3" in known.message
    assert [event.message for event in world.emitted if event.reason == "WorkersRefused"] == [
        "QuotaExceeded: exceeded quota: pods=3"
    ]


def test_refused_creations_are_tried_ever_more_slowly() -> None:
    """Not in every pass: a minute of refusals is a handful of tries, and one warning."""
    world = world_of(0)
    world.run(60.0)
    assert 3 <= tries(world) <= 12
    assert world.job.status.refusals == tries(world)
    assert len([event for event in world.emitted if event.reason == "WorkersRefused"]) == 1
    assert world.job.status.phase == "Pending"
    assert world.job.status.ledger.open_phase == "queued"


def test_it_grows_when_the_quota_is_raised() -> None:
    """The next try works: the condition is true again, the job grows by the rules."""
    world = world_of(2)
    world.change_spec(recovery={"growCooldownSeconds": 2.0})
    world.run(10.0)
    assert creatable(world) == "False"
    world.quota = 4
    world.run(90.0)
    assert creatable(world) == "True"
    assert world.job.status.size == 4
    assert world.job.status.refusals == 0


def test_a_fresh_operator_tries_again() -> None:
    """What was refused is in status: an operator that knows nothing else waits, tries, and is believed."""
    world = world_of(2)
    world.run(5.0)
    world.refusal = None
    world.restart_operator()
    world.run(1.0)
    assert creatable(world) == "False", "nobody has tried since"
    world.run(90.0)
    assert creatable(world) == "False"
    world.refusal, world.quota = None, None
    world.run(90.0)
    assert creatable(world) == "True"


def test_below_min_the_few_are_given_back() -> None:
    """Two jobs that each hold half of a quota do not block each other for ever."""
    world = world_of(2, minimum=3)
    world.change_spec(recovery={"formingTimeoutSeconds": 20.0})
    world.run(30.0)
    assert any(event.reason == "FormingTimeout" for event in world.emitted)
    assert world.agents == {}


def test_a_job_that_wants_less_is_no_longer_refused() -> None:
    """Scaled down to what it has, nothing stands against it any more; told once, and it stays so."""
    world = world_of(2)
    world.run(5.0)
    assert creatable(world) == "False"
    world.change_spec(workers={"replicas": 2, "min": 1})
    world.run(10.0)
    assert creatable(world) == "True"
    assert len([event for event in world.emitted if event.reason == "WorkersCreated"]) == 1
    world.change_spec(workers={"replicas": 4, "min": 1})
    world.run(10.0)
    assert creatable(world) == "False"
