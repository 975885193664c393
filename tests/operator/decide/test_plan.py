"""``decide`` as a whole: adoption, reservation, numbers, purity."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from world import World

import resumable_operator.decide
from resumable_operator.decide.actions import CreateWorker, SendAssignment, SendRequest
from resumable_operator.decide.plan import decide
from resumable_operator.model import JobStatus
from resumable_training.contract.assignment import Request

SPEC = {"workers": {"replicas": 3, "min": 1}}


def running(spec: dict[str, object] | None = None, capacity: int | None = 3, steps: int = 1000) -> World:
    world = World(spec or SPEC, capacity=capacity, steps=steps)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def test_a_fresh_operator_adopts_what_runs() -> None:
    """A running attempt is adopted: no action at all, before and after the agents are heard."""
    world = running()
    world.step()
    world.restart_operator()
    blind = decide(world.observation(), world.now)
    assert blind.actions == ()
    assert blind.status.attempt.number == 1
    world.tick()
    seeing = decide(world.observation(), world.now)
    assert seeing.actions == ()
    assert seeing.status.attempt.state == "running"


def test_names_and_attempts_are_reserved_in_the_same_plan() -> None:
    """A plan that creates under new names or starts an attempt must be written before it is carried out."""
    world = World(SPEC, capacity=3)
    first = world.step()
    assert first.must_write
    created = [action for action in first.actions if isinstance(action, CreateWorker)]
    assert {action.name for action in created} == {"train-0-1", "train-1-1", "train-2-1"}
    assert first.status.incarnations == {"0": 1, "1": 1, "2": 1}
    while not any(isinstance(action, SendAssignment) for action in world.plans[-1].actions):
        world.tick()
        world.step()
    plan = world.plans[-1]
    assert plan.must_write
    sent = [action.assignment for action in plan.actions if isinstance(action, SendAssignment)]
    assert {(part.attempt, part.digest) for part in sent} == {(1, plan.status.attempt.digest)}


def test_others_get_the_port_that_rank_zero_chose() -> None:
    """All members of an attempt are told one port, and it is the one that rank 0's agent bound."""
    world = running()
    (port,) = {agent.assignment.master_port for agent in world.agents.values() if agent.assignment}
    assert port == world.agents["train-0-1"].master_port == world.job.status.attempt.master_port


def test_attempt_numbers_outrank_what_agents_saw() -> None:
    """With an old status the next attempt is above all that agents know, so they accept it."""
    world = running()
    for _ in range(3):
        world.kill_rank("train-1-1")
        world.run(1.5)
    seen = world.job.status.attempt.number
    assert seen == 4
    world.job = replace(world.job, status=JobStatus(incarnations=world.job.status.incarnations))
    world.run(2.0)
    assert world.job.status.attempt.number == seen + 1
    assert world.job.status.phase == "Running"
    assert world.refused == []


def test_zombies_are_stopped() -> None:
    """An agent that runs an older attempt while not being a member is told to stop."""
    world = running()
    zombie = world.agents["train-2-1"]
    zombie.stuck = True
    world.cut(zombie.name, "all")
    world.run(15.0)
    assert world.job.status.attempt.number == 2
    world.heal()
    world.tick()
    zombie.state = "running"
    plan = world.step()
    stops = [action for action in plan.actions if isinstance(action, SendRequest)]
    assert stops == [SendRequest("train-2-1", Request("stop", 1, "attempt 1 is over"))]
    world.tick()
    assert not zombie.training


def test_a_healthy_job_has_few_reasons_to_wake() -> None:
    """Nothing to do: the next look is seconds away, not at once."""
    world = running()
    world.step()
    world.tick()
    plan = world.step()
    assert plan.actions == ()
    assert plan.wake_at is not None
    assert plan.wake_at - world.now > 5


MODULES = sorted(Path(resumable_operator.decide.__path__[0]).glob("*.py"))
IMPURE = {"asyncio", "time", "random", "logging", "os", "socket", "aiohttp", "kopf", "threading", "datetime"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_decisions_are_pure(path: Path) -> None:
    """No module of decide imports a clock, chance, I/O or logging."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert not imported & IMPURE
