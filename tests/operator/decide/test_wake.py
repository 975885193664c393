"""When to decide again: because a wait is over, or only in case that something went untold."""

from __future__ import annotations

from world import World


def test_a_job_that_trains_has_nothing_due_but_is_looked_at() -> None:
    """Where all is told, a simulation say, a healthy attempt needs no pass for as long as it trains."""
    world = World({"workers": {"replicas": 2}}, steps=10_000)
    world.run(5)
    plan = world.step()
    assert plan.status.attempt.state == "running"
    assert plan.due_at is None
    assert plan.wake_at == plan.look_at == world.now + 30


def test_a_wait_is_due_whatever_is_told() -> None:
    """The end of a bounded wait is not a mere look: without it the job would wait for ever."""
    world = World({"workers": {"replicas": 2, "min": 1}, "recovery": {"shrinkAfterSeconds": 40}}, steps=100)
    world.room = 1
    world.run(2)
    plan = world.step()
    assert plan.status.below_target_since is not None
    assert plan.due_at is not None
    assert plan.due_at > world.now
    assert plan.look_at is not None
    assert plan.wake_at == min(plan.due_at, plan.look_at)
