"""What ranks of scripts without the library are offered to resume from: the same for all of an attempt."""

from __future__ import annotations

from typing import Any

from world import World

from resumable_operator.decide.actions import SendAssignment
from resumable_training.contract import env

SPEC: dict[str, Any] = {"workers": {"replicas": 3}, "checkpoint": {"directory": {"path": "/checkpoints"}}}
FOUND = "/checkpoints/step-20"


def offers(world: World) -> dict[str, str | None]:
    """Worker -> what its assignment offers; None: its agent is to look."""
    return {
        action.assignment.worker: action.assignment.env.get(env.RESUME_FROM)
        for plan in world.plans
        for action in plan.actions
        if isinstance(action, SendAssignment) and action.assignment.attempt == world.job.status.attempt.number
    }


def formed(library: bool = False, **found: str) -> World:
    """A job at its first attempt, whose agents find in the store what is given by worker."""
    world = World(SPEC)
    world.library = library
    while not world.agents:
        world.step()
        world.tick()
    for name, agent in world.agents.items():
        agent.resume_from = found.get(name.replace("-", "_"), "")
    world.run(30, until="Running")
    assert world.job.status.phase == "Running"
    return world


def test_all_get_what_rank_zeros_agent_found() -> None:
    """Rank 0's agent is asked to look; the others are told its answer, whatever they would have found."""
    world = formed(train_0_1=FOUND, train_1_1="/checkpoints/step-10")
    assert offers(world) == {"train-0-1": None, "train-1-1": FOUND, "train-2-1": FOUND}


def test_nothing_found_is_told_too() -> None:
    """Then no other agent looks either: one that sees more must not resume alone."""
    world = formed(train_2_1=FOUND)
    assert offers(world) == {"train-0-1": None, "train-1-1": "", "train-2-1": ""}


def test_a_script_that_uses_the_library_needs_no_search() -> None:
    """Once that is known, no agent looks."""
    world = formed(library=True, train_0_1=FOUND)
    assert world.job.status.uses_library is not False
    world.run(3)
    world.kill_rank("train-1-1")
    world.run(30, until="Recovering")
    world.run(30, until="Running")
    assert (world.job.status.attempt.number, world.job.status.uses_library) == (2, True)
    assert set(offers(world).values()) == {""}
