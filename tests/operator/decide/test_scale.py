"""Jobs with very many workers: the work of a pass grows with their number, not with its square."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable

import pytest
from world import World

from resumable_operator.decide.plan import decide

SMALL, LARGE = 60, 240


def fresh(workers: int) -> World:
    return World({"workers": {"replicas": workers, "min": 1}}, steps=100_000)


def starting(workers: int) -> World:
    """All are ready; the attempt is to be reserved."""
    world = fresh(workers)
    world.run(0.35)
    return world


def assigning(workers: int) -> World:
    """Rank 0 has chosen its port; all others are to be told."""
    world = starting(workers)
    while world.job.status.attempt.state != "forming" or not any(a.assignment for a in world.agents.values()):
        world.step()
        world.tick()
    return world


def training(workers: int) -> World:
    world = fresh(workers)
    world.run(1.5)
    assert world.job.status.phase == "Running"
    return world


def broken(workers: int) -> World:
    """One is lost, and all the others have reported that they ended."""
    world = training(workers)
    world.kill_worker("train-7-1")
    world.tick()
    return world


def silent(workers: int) -> World:
    """Nobody is heard, and some are on nodes that are lost."""
    world = training(workers)
    for name in world.agents:
        world.cut(name, "operator")
    world.tick(5.0)
    return world


def over(workers: int) -> World:
    world = broken(workers)
    world.step()
    world.tick()
    return world


def calls(world: World) -> int:
    """Function calls of one pass, those of built-in functions too."""
    seen, now = world.observation(), world.now
    profile = cProfile.Profile()
    profile.enable()
    decide(seen, now)
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("situation", [fresh, starting, assigning, training, broken, silent, over])
def test_a_pass_is_linear_in_the_workers(situation: Callable[[int], World]) -> None:
    """Four times the workers are about four times the calls; a look at each pair would be sixteen times."""
    few, many = calls(situation(SMALL)), calls(situation(LARGE))
    assert many < 6 * few, (few, many)
