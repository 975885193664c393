"""An operator that has just started has heard nobody yet: that proves nothing about workers and ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker, DeleteWorker
from resumable_operator.decide.observation import Node
from resumable_operator.decide.views import UNREADY_SECONDS
from resumable_training.contract.events import SILENT_SECONDS


def running(replicas: int) -> World:
    workers = {"replicas": replicas, "min": 1}
    world = World({"workers": workers, "recovery": {"silentSeconds": 10.0}}, steps=100_000)
    world.run(3.0)
    assert world.job.status.phase == "Running"
    return world


def nodes_away(world: World, *places: int) -> None:
    """For long enough that their workers would be replaced."""
    away = world.now - UNREADY_SECONDS - 10
    world.nodes |= {
        f"node-{place}": Node(f"node-{place}", ready=False, unready_since=away) for place in places
    }


def touched(world: World) -> set[str]:
    """Workers made or deleted so far."""
    actions = [action for plan in world.plans for action in plan.actions]
    return {action.name for action in actions if isinstance(action, CreateWorker | DeleteWorker)}


def waited(world: World, seconds: float) -> None:
    """Status says that an operator has waited so long for a first word of each member."""
    attempt = world.job.status.attempt
    since = {member.worker: world.now - seconds for member in attempt.members}
    status = world.job.status.model_copy(
        update={"attempt": attempt.model_copy(update={"silent_since": since})}
    )
    world.job = replace(world.job, status=status)


@pytest.mark.parametrize("away", [(0, 1), (0, 1, 2)])
def test_nodes_that_the_control_plane_does_not_hear_cost_no_worker(away: tuple[int, ...]) -> None:
    """Most nodes are not ready while their agents speak; the operator starts anew before they are back."""
    world = running(3)
    nodes_away(world, *away)
    made = touched(world)
    world.restart_operator()
    world.run(20.0)
    assert touched(world) == made
    assert world.job.status.incarnations == {"0": 1, "1": 1, "2": 1}
    assert world.job.status.attempt.number == 1


def test_a_node_that_is_away_is_replaced_once_the_new_operator_has_listened() -> None:
    """One of three is not ready and silent: not in the first pass, but soon."""
    world = running(3)
    nodes_away(world, 1)
    world.cut("train-1-1", "operator")
    made = touched(world)
    world.restart_operator()
    world.step()
    assert touched(world) == made
    world.run(SILENT_SECONDS + 2.0)
    assert "train-1-2" in touched(world)


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_an_operator_before_waited_is_no_silence_of_the_agents(replicas: int) -> None:
    """It died before it could write that it had heard them; the next one hears them a moment later."""
    world = running(replicas)
    waited(world, 40.0)
    nodes_away(world, *range(replicas))
    world.restart_operator()
    assert world.step().status.attempt.state == "running"
    world.run(5.0)
    assert world.job.status.attempt.number == 1
    assert not world.job.status.attempt.silent_since


def test_an_agent_that_stays_silent_is_lost_all_the_same() -> None:
    """Counted from when this operator could have heard it."""
    world = running(1)
    waited(world, 40.0)
    world.cut("train-0-1", "all")
    world.restart_operator()
    began = world.now
    world.run(20.0, until="Recovering")
    assert 10.0 <= world.now - began < 12.0


def test_an_ending_is_not_settled_before_agents_were_heard() -> None:
    """The operator was away while an attempt ended: what its agents have to say comes a moment later."""
    world = running(3)
    world.cut("train-1-1", "operator")
    world.agents["train-1-1"].shown = len(world.agents["train-1-1"].log)
    world.kill_rank("train-1-1", 1, ("ValueError: no",))
    world.step()
    world.tick(10.0)
    world.restart_operator()
    world.heal()
    assert world.step().status.attempt.number == 1
    world.run(10.0)
    assert [ending.cause for ending in world.job.status.interruptions] == ["crash"]
