"""The cause of a loss that agents saw before the API told of it."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from resumable_operator.decide.actions import SendRequest
from resumable_operator.decide.observation import Disruption, Node
from resumable_operator.decide.why_lost import WHY_SECONDS

NAME, NODE = "train-1-1", "node-1"
NOTICE = Disruption("preempted", "TerminationTarget")


@pytest.fixture
def world() -> World:
    world = World({"workers": {"replicas": 3, "min": 1}}, capacity=3, steps=100_000)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def causes(world: World) -> list[str]:
    return [ending.cause for ending in world.job.status.interruptions]


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ({"exit_code": 137, "reason": "OOMKilled"}, "oom"),
        ({"exit_code": 3}, "unknown"),
        ({"exit_code": 137, "disruption": NOTICE}, "preempted"),
        ({"exit_code": 137}, "node_lost"),
    ],
)
def test_it_is_told_by_the_api(world: World, told: dict[str, Any], cause: str) -> None:
    """Survivors are stopped at once; the cause is what the kubelet tells a moment later, and nothing waits
    beyond that word."""
    world.kill_agent(NAME)
    plan = world.step()
    assert [action.worker for action in plan.actions if isinstance(action, SendRequest)] != []
    world.run(0.5)
    assert world.job.status.attempt.state == "ending"
    agent = world.agents[NAME]
    agent.phase, agent.exit_code, agent.disruption = "failed", told["exit_code"], told.get("disruption")
    world.reasons[NAME] = told.get("reason", "")
    world.step()
    assert world.job.status.attempt.number == 2 or world.job.status.attempt.state == "ended"
    assert causes(world) == [cause]


def test_it_is_not_waited_for_long(world: World) -> None:
    """A kubelet that says nothing: what others saw is the cause."""
    world.kill_agent(NAME)
    world.run(WHY_SECONDS - 0.2)
    assert causes(world) == []
    world.run(0.4)
    assert causes(world) == ["node_lost"]


def test_of_a_dead_node_nobody_tells_more(world: World) -> None:
    """Nothing is waited for where the API knows of the loss already."""
    world.nodes[NODE] = Node(NODE, ready=False)
    world.kill_agent(NAME)
    world.run(0.3)
    assert causes(world) == ["node_lost"]


def test_a_silent_machine_tells_nothing(world: World) -> None:
    """It refuses nothing, so no kubelet is there either: decided as soon as it is called lost."""
    world.cut(NAME, "all")
    while not world.job.status.attempt.evidence:
        world.tick()
        world.step()
    world.run(0.3)
    assert causes(world) == ["node_lost"]
