"""Spares: workers that hold no ranks and step in for one that is lost, with no change of size."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from resumable_operator.decide.conditions import condition
from resumable_operator.decide.observation import Node


def world_of(spares: int = 1, recovery: dict[str, Any] | None = None, **workers: Any) -> World:
    shape = {"replicas": 3, "min": 2, "spares": spares, **workers}
    world = World({"workers": shape, "recovery": recovery or {}}, steps=100_000)
    world.run(2.0)
    return world


def members(world: World) -> list[str]:
    return sorted(member.worker for member in world.job.status.attempt.members)


def spares(world: World) -> list[str]:
    return sorted(set(world.agents) - set(members(world)))


def test_spares_hold_no_ranks_and_are_counted() -> None:
    """The size is that of the members; that all workers are ready is said when the spares are, too."""
    world = world_of(spares=2)
    status = world.job.status
    assert (status.size, status.attempt.world_size, len(world.agents)) == (3, 3, 5)
    assert [world.agents[name].assignment for name in spares(world)] == [None, None]
    ready = condition(status, "WorkersReady")
    assert ready is not None
    assert (ready.status, ready.reason) == ("True", "AllReady")


def test_a_loss_changes_no_size() -> None:
    """The spare is in the next attempt, which is as large and starts at once; a new spare is made."""
    world = world_of()
    (spare,) = spares(world)
    world.kill_worker("train-1-1")
    world.run(1.0)
    ending = world.job.status.interruptions[-1]
    assert (ending.cause, ending.size_before, ending.size_after) == ("node_lost", 3, 3)
    assert members(world) == ["train-0-1", "train-2-1", spare]
    assert world.job.status.attempt.number == 2
    world.run(2.0)
    assert len(spares(world)) == 1
    assert world.job.status.attempt.number == 2


def test_the_loss_of_a_spare_harms_nobody() -> None:
    """The attempt goes on, no budget pays, and another spare is made."""
    world = world_of()
    (spare,) = spares(world)
    step = world.job.status.step
    world.kill_worker(spare)
    world.run(3.0)
    status = world.job.status
    assert (status.attempt.number, status.interruptions) == (1, ())
    assert status.step > step
    assert len(spares(world)) == 1
    assert spares(world) != [spare]


def test_a_spare_that_must_go_is_replaced_without_a_drain() -> None:
    """Notice to a spare concerns nobody who trains; it is not taken for a lost worker any more."""
    world = world_of()
    (spare,) = spares(world)
    world.preempt(spare, 30.0)
    world.run(1.0)
    world.kill_worker("train-1-1")
    world.run(3.0)
    status = world.job.status
    assert [ending.cause for ending in status.interruptions] == ["node_lost"]
    assert spare not in members(world)


def test_a_notice_is_answered_by_a_spare() -> None:
    """Planned, with nothing done again, and at the same size."""
    world = world_of()
    (spare,) = spares(world)
    world.preempt("train-1-1", 30.0)
    world.run(2.0)
    ending = world.job.status.interruptions[-1]
    assert (ending.cause, ending.rework_steps, ending.size_after) == ("preempted", 0, 3)
    assert members(world) == ["train-0-1", "train-2-1", spare]


@pytest.mark.parametrize(("spares_wanted", "size"), [(1, 2), (2, 3)])
def test_two_losses_at_once(spares_wanted: int, size: int) -> None:
    """As many spares as there are step in; what is missing then is awaited as without spares."""
    world = world_of(spares=spares_wanted, recovery={"shrinkAfterSeconds": 0.0})
    world.room = 0
    world.kill_worker("train-1-1")
    world.kill_worker("train-2-1")
    world.run(2.0)
    assert world.job.status.size == size


def test_a_spare_on_a_node_with_notice_does_not_step_in() -> None:
    """It would be the next to go."""
    world = world_of(spares=2)
    first, second = spares(world)
    place = first.split("-")[1]
    world.nodes[f"node-{place}"] = Node(f"node-{place}", notice_deadline=world.now + 60.0)
    world.kill_worker("train-1-1")
    world.run(1.0)
    assert second in members(world)
    assert first not in members(world)


def test_more_spares_change_no_attempt() -> None:
    """Spares come and go with the spec while the same attempt trains."""
    world = world_of(spares=0)
    world.change_spec(workers={"replicas": 3, "min": 2, "spares": 2})
    world.run(2.0)
    assert len(spares(world)) == 2
    world.change_spec(workers={"replicas": 3, "min": 2, "spares": 1})
    world.run(2.0)
    assert len(spares(world)) == 1
    assert world.job.status.attempt.number == 1


def test_growing_takes_spares_at_once() -> None:
    """With more replicas wanted, the spares that are there are the first; new spares follow."""
    world = world_of(spares=1, max=4, recovery={"growCooldownSeconds": 0.5})
    (spare,) = spares(world)
    world.change_spec(workers={"replicas": 4, "min": 2, "max": 4, "spares": 1})
    world.run(5.0)
    assert world.job.status.size == 4
    assert spare in members(world)
    assert len(spares(world)) == 1
