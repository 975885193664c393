"""Planned ends whose window is over before everything is saved: said, and no more lost than has to be."""

from __future__ import annotations

import pytest
from world import SAMPLES_PER_STEP, World

from resumable_training.contract import events


def training(**recovery: float) -> World:
    spec = {"workers": {"replicas": 3, "min": 1}, "recovery": recovery}
    world = World(spec, capacity=3, steps=100_000, save_every=7)
    world.run(3.0)
    assert world.job.status.phase == "Running"
    return world


def stall(world: World) -> None:
    """No rank comes to its next step any more, as in a save that takes longer than the window."""
    for agent in world.agents.values():
        agent.hung_since = world.now + 1000


def window_is_over(world: World) -> None:
    """Agents keep the window, and kill their ranks."""
    for agent in world.agents.values():
        if agent.training:
            world._kill_ranks(agent, events.STOPPED)


@pytest.mark.parametrize("saved_meanwhile", [False, True])
def test_a_window_that_was_too_short_is_told(saved_meanwhile: bool) -> None:
    """Ranks that are killed at its end: at once, in words, and no more is redone than since the last save."""
    world = training(drainSeconds=30.0)
    stall(world)
    world.preempt("train-1-1", 2.0)
    world.run(1.0)
    step, saved = world.groups[1].step, world.committed
    if saved_meanwhile:  # the one in flight lands
        first = world.agents["train-0-1"]
        saved = world.groups[1].last_save = world.committed = step - 1
        data = {"step": saved, "samples": saved * SAMPLES_PER_STEP, "checkpoint": f"step-{saved}"}
        world._log(first, events.CHECKPOINT, data)
    world.run(1.0)
    window_is_over(world)
    ended_at = world.now
    world.run(3.0)
    assert world.job.status.attempt.number == 2
    ending = world.job.status.interruptions[-1]
    assert ending.cause == "preempted"
    assert "the window of 2.0 s was over" in ending.message
    assert world.groups[2].start == saved
    assert ending.rework_steps <= step - saved
    assert ending.at - ended_at < 0.5


def test_a_window_that_sufficed_is_not_mentioned() -> None:
    """The reason alone is the message when every rank ended by itself."""
    world = training()
    world.preempt("train-1-1", 5.0)
    world.run(3.0)
    ending = world.job.status.interruptions[-1]
    assert (ending.cause, ending.rework_steps) == ("preempted", 0)
    assert "window" not in ending.message


def test_a_crash_in_a_drain_is_no_short_window() -> None:
    """Survivors of a rank that failed are killed too, and that is told as what it is."""
    world = training(drainSeconds=30.0)
    stall(world)
    world.change_spec(workers={"replicas": 2, "min": 1})
    world.step()
    world.kill_rank("train-0-1")
    world.run(3.0)
    ending = world.job.status.interruptions[-1]
    assert ending.cause == "crash"
    assert "window" not in ending.message


def test_a_worker_lost_early_in_a_drain_is_no_short_window() -> None:
    """There was time left; the machine went before."""
    world = training(drainSeconds=30.0)
    stall(world)
    world.preempt("train-1-1", 20.0)
    world.run(1.0)
    world.kill_worker("train-1-1")
    world.run(3.0)
    ending = world.job.status.interruptions[-1]
    assert ending.cause == "preempted"
    assert "window" not in ending.message
