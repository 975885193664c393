"""After the end of a job its workers go, and what ended by itself stays readable."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker, DeleteJob, DeleteWorker, SendRequest
from resumable_operator.decide.observation import Agent
from resumable_operator.decide.plan import decide
from resumable_operator.decide.terminal import SHUTDOWN_SECONDS
from resumable_training.contract.assignment import REQUEST_SHUTDOWN


def finished(**spec: object) -> World:
    """It has succeeded in this very pass; its agents still run."""
    world = World({"workers": {"replicas": 2}, **spec}, steps=20)
    world.run(60.0, until="Succeeded")
    return world


def deleted(world: World, after: float, **agents: Agent) -> set[str]:
    """Workers that are deleted so long after the end, when their pods run and their agents are like this."""
    seen = world.observation()
    workers = tuple(replace(worker, phase="running", exit_code=None) for worker in seen.workers)
    plan = decide(replace(seen, workers=workers, agents={**seen.agents, **agents}), world.now + after)
    return {action.name for action in plan.actions if isinstance(action, DeleteWorker)}


def test_agents_are_asked_to_end() -> None:
    """Agents that are heard end by themselves: their pods, and so their logs, stay."""
    world = finished()
    asked = [action for action in world.plans[-1].actions if isinstance(action, SendRequest)]
    assert {send.worker for send in asked} == {"train-0-1", "train-1-1"}
    assert {send.request.kind for send in asked} == {REQUEST_SHUTDOWN}
    world.run(30.0)
    actions = [action for plan in world.plans for action in plan.actions]
    assert not [action for action in actions if isinstance(action, (DeleteWorker, DeleteJob))]


@pytest.mark.parametrize(("after", "names"), [(0.0, set()), (SHUTDOWN_SECONDS, {"train-1-1"})])
def test_one_that_is_not_heard_any_more(after: float, names: set[str]) -> None:
    """Most likely it ended as asked, and its pod will be seen as ended: deleted if it is not, in time."""
    world = finished()
    ended = replace(world.observation().agents["train-1-1"], connected=False)
    assert deleted(world, after, **{"train-1-1": ended}) - {"train-0-1"} == names


def test_one_that_was_never_heard() -> None:
    """There is nothing to read in it, and nobody to ask."""
    world = finished()
    assert deleted(world, 0.0, **{"train-1-1": Agent("train-1-1", False)}) == {"train-1-1"}


def test_ttl() -> None:
    """When its time after the end is over the job is deleted, once."""
    world = finished(ttlSecondsAfterFinished=5)
    assert not [action for action in world.plans[-1].actions if isinstance(action, DeleteJob)]
    plan = decide(world.observation(), world.now + 5.0)
    assert len([action for action in plan.actions if isinstance(action, DeleteJob)]) == 1
    gone = replace(world.observation(), job=replace(world.job, deleting=True))
    plan = decide(gone, world.now + 5.0)
    assert not [action for action in plan.actions if isinstance(action, (DeleteJob, CreateWorker))]


def test_a_change_after_the_end_is_said_to_have_no_effect() -> None:
    """By one Event and a condition; nothing else follows, and the generation is the one it ended with."""
    world = finished()
    world.run(2.0)
    ended = world.job.generation
    assert "SpecChangeIgnored" not in {item.type for item in world.job.status.conditions}
    world.change_spec(suspend=True)
    world.run(2.0)
    (told,) = [item for item in world.job.status.conditions if item.type == "SpecChangeIgnored"]
    assert (told.status, told.reason) == ("True", "JobHasEnded")
    assert "create it again" in told.message
    assert [item.reason for item in world.emitted].count("SpecChangeIgnored") == 1
    assert (world.job.status.phase, world.job.status.observed_generation) == ("Succeeded", ended)
    before = world.job
    world.run(40.0, tick=5.0)
    assert world.job == before
