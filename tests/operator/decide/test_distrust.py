"""Agents that answer and can't be believed: said, left to train, replaced on purpose after a bounded time."""

from __future__ import annotations

import pytest
from world import World

from resumable_operator.decide.actions import DeleteWorker
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.distrust import PATIENCE_SECONDS
from resumable_operator.decide.observation import Distrust, Node

KEY = Distrust("key", "agent of train-1-1 does not accept our key")
LIES = Distrust("words", "agent of train-1-1: bad signature")


def running(replicas: int = 3, **workers: object) -> World:
    world = World({"workers": {"replicas": replicas, "min": 1, **workers}}, steps=100_000)
    world.run(3.0, until="Running")
    return world


def mismatch(world: World) -> str:
    known = condition(world.job.status, "AgentKeyMismatch")
    return known.status if known else ""


def test_an_unknown_key_ends_nothing() -> None:
    """Its ranks train on, and so does the attempt; the condition says what is wrong."""
    world = running()
    world.distrust["train-1-1"] = KEY
    world.run(60.0, tick=1.0)
    assert world.job.status.attempt.number == 1
    assert world.job.status.interruptions == ()
    assert mismatch(world) == "True"
    assert "train-1-1" in world.job.status.distrusted


def test_it_ends_when_the_key_is_known_again() -> None:
    """An operator that got its old key back finds everything as it was."""
    world = running()
    world.distrust["train-1-1"] = KEY
    world.run(10.0)
    world.distrust.clear()
    world.run(PATIENCE_SECONDS["key"], tick=1.0)
    assert world.job.status.attempt.number == 1
    assert mismatch(world) == "False"
    assert world.job.status.distrusted == {}


@pytest.mark.parametrize("alone", [False, True], ids=["one of three", "all"])
def test_after_a_bounded_time_it_is_replaced_on_purpose(alone: bool) -> None:
    """The attempt drains: the agent takes no request, so its pod gets a SIGTERM. No step is lost."""
    world = running()
    for name in sorted(world.agents) if alone else ["train-1-1"]:
        world.distrust[name] = KEY
    world.run(PATIENCE_SECONDS["key"] - 5.0, tick=1.0)
    assert world.job.status.attempt.number == 1
    done = world.groups[1].step
    world.run(20.0)
    status = world.job.status
    assert (status.phase, status.attempt.number) == ("Running", 2)
    assert "train-1-1" not in world.agents
    assert "train-1-2" in world.agents
    assert world.groups[2].start >= done
    assert [(ending.cause, ending.planned) for ending in status.interruptions] == [("drained", True)]
    assert status.budgets.preemption == status.budgets.infrastructure == ()
    graces = [
        action.grace_seconds
        for plan in world.plans
        for action in plan.actions
        if isinstance(action, DeleteWorker) and action.name == "train-1-1"
    ]
    assert graces[0] > 30.0, "the pod is ended with the window of a drain"


def test_a_liar_is_named_and_replaced_sooner() -> None:
    """What is not signed is not believed; the event says who, once."""
    world = running()
    world.distrust["train-1-1"] = LIES
    world.run(PATIENCE_SECONDS["words"] + 20.0)
    assert "train-1-1" not in world.agents
    told = [event.message for event in world.emitted if event.reason == "AgentNotBelieved"]
    assert len(told) == 1
    assert "train-1-1" in told[0]
    assert world.job.status.phase == "Running"


def test_alone_with_an_unknown_key_is_not_lost() -> None:
    """An agent that answers is not silent, though there is no neighbour that could say so."""
    world = running(replicas=1)
    world.distrust["train-0-1"] = KEY
    world.run(120.0, tick=1.0)
    assert world.job.status.interruptions == ()


def test_a_gone_node_is_gone_whoever_answers() -> None:
    """The API's word counts more than an answer from the address."""
    world = running()
    world.distrust["train-1-1"] = LIES
    world.run(2.0)
    world.nodes["node-1"] = Node("node-1", exists=False)
    world.agents["train-1-1"].phase = "failed"
    world.run(3.0)
    assert world.job.status.last_interruption is not None
    assert world.job.status.last_interruption.cause == "node_lost"


def test_one_that_was_never_heard_takes_part_in_nothing() -> None:
    """A worker that can't be trusted from its start is replaced, too, and the others start without it."""
    world = World({"workers": {"replicas": 3, "min": 2}}, steps=100_000)
    world.distrust["train-1-1"] = LIES
    world.run(35.0)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 2)
    world.run(60.0, tick=1.0)
    assert "train-1-2" in world.agents


def test_a_job_with_an_unknown_key_can_be_suspended() -> None:
    """The pods' SIGTERM drains what no request reaches."""
    world = running()
    for name in world.agents:
        world.distrust[name] = KEY
    world.run(2.0)
    done = world.groups[1].step
    world.change_spec(suspend=True)
    world.run(90.0, tick=0.5)
    assert world.job.status.phase == "Suspended"
    assert world.agents == {}
    assert world.committed >= done


def test_silent_on_its_way_out_is_no_loss() -> None:
    """Between its agent's end and its pod's end nobody answers at the address: the drain is still planned."""
    world = running()
    world.distrust["train-1-1"] = KEY
    world.run(2.0)
    world.change_spec(suspend=True)
    world.step()
    assert world.agents["train-1-1"].deleting
    world.distrust.clear()
    world.cut("train-1-1", "all")
    world.agents["train-1-1"].last_heard = world.now - 60.0
    world.step()
    assert world.job.status.attempt.evidence == ()
    world.run(90.0, tick=0.5)
    status = world.job.status
    assert status.phase == "Suspended"
    assert [(ending.cause, ending.planned) for ending in status.interruptions] == [("suspend", True)]
