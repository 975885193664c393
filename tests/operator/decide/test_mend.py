"""Status that somebody's hand changed: no success by accident, no name or number twice, training goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import World

from resumable_operator.model import AttemptStatus, JobStatus


def running(**spec: object) -> World:
    world = World({"workers": {"replicas": 3, "min": 1}, **spec}, steps=100_000)
    world.run(3.0, until="Running")
    world.run(2.0)
    return world


def edit(world: World, **changes: Any) -> None:
    world.job = replace(world.job, status=world.job.status.model_copy(update=changes))


def edit_attempt(world: World, **changes: Any) -> None:
    edit(world, attempt=world.job.status.attempt.model_copy(update=changes))


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(lambda before: AttemptStatus(), id="wiped"),
        pytest.param(lambda before: before.model_copy(update={"members": ()}), id="members removed"),
        pytest.param(lambda before: before.model_copy(update={"number": 0}), id="number removed"),
        pytest.param(lambda before: before.model_copy(update={"number": -3}), id="number below zero"),
        pytest.param(lambda before: before.model_copy(update={"number": 2**63 - 1}), id="no number follows"),
        pytest.param(
            lambda before: before.model_copy(update={"members": before.members[1:]}), id="rank 0 gone"
        ),
        pytest.param(lambda before: before.model_copy(update={"world_size": 7}), id="other size"),
        pytest.param(
            lambda before: before.model_copy(update={"digest": "", "state": "forming"}), id="digest"
        ),
        pytest.param(lambda before: before.model_copy(update={"state": "ended"}), id="called ended"),
    ],
)
def test_an_attempt_changed_by_hand_is_replaced(attempt: Any) -> None:
    """The job neither succeeds nor stalls: the next attempt starts, with a number that nobody has used."""
    world = running()
    done = world.committed
    for name in world.agents:
        assert world.agents[name].assignment is not None
    edit(world, attempt=attempt(world.job.status.attempt))
    world.run(15.0)
    status = world.job.status
    assert (status.phase, status.attempt.number, status.size) == ("Running", 2, 3)
    assert world.groups[2].start >= done
    assert all(agent.assignment.attempt == 2 for agent in world.agents.values() if agent.assignment)


def test_a_lower_number_is_not_used_again() -> None:
    """Agents that know a later attempt than status end the confusion: the next number is above theirs."""
    world = running()
    for _ in range(3):
        world.kill_rank("train-0-1")
        world.run(5.0)
    assert world.job.status.attempt.number == 4
    edit_attempt(world, number=2)
    world.run(10.0)
    assert world.job.status.attempt.number == 5
    assert world.job.status.phase == "Running"


def test_wiped_while_nobody_is_heard() -> None:
    """The endings in status still tell which numbers were used."""
    world = running()
    world.kill_rank("train-0-1")
    world.run(5.0)
    number = world.job.status.attempt.number
    edit(world, attempt=AttemptStatus())
    world.restart_operator()
    world.run(15.0)
    assert world.job.status.attempt.number > number
    assert world.job.status.phase == "Running"


def test_names_do_not_collide() -> None:
    """Incarnations are lost while pods exist: replacements get names that never existed."""
    world = running()
    world.kill_worker("train-1-1")
    world.run(10.0)
    assert "train-1-2" in world.agents
    edit(world, incarnations={})
    world.kill_worker("train-1-2")
    world.run(10.0)
    assert "train-1-3" in world.agents
    assert world.job.status.incarnations == {"0": 1, "1": 3, "2": 1}


def test_everything_is_wiped() -> None:
    """``status: {}`` costs a restart of the attempt, no more."""
    world = running()
    world.kill_worker("train-1-1")
    world.run(10.0)
    done = world.committed
    world.job = replace(world.job, status=JobStatus())
    world.run(15.0)
    status = world.job.status
    assert (status.phase, status.size) == ("Running", 3)
    assert status.attempt.number == 3
    assert sorted(world.agents) == ["train-0-1", "train-1-2", "train-2-1"]
    assert status.step >= done


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_phase_alone_ends_no_job(phase: str) -> None:
    """A phase written by hand is undone, with a warning; training goes on."""
    world = running()
    edit(world, phase=phase)
    world.run(3.0)
    assert (world.job.status.phase, world.job.status.attempt.number) == ("Running", 1)
    assert len([event for event in world.emitted if event.reason == "StatusMended"]) == 1


def test_the_phase_alone_brings_no_job_back() -> None:
    """A finished job stays finished."""
    world = World({"workers": {"replicas": 2}}, steps=10)
    world.run(10.0, until="Succeeded")
    world.run(5.0)
    attempt = world.job.status.attempt.number
    edit(world, phase="Running")
    world.run(3.0)
    assert (world.job.status.phase, world.job.status.attempt.number) == ("Succeeded", attempt)


@pytest.mark.parametrize("number", [2**63 - 1, -1, 10**9])
def test_an_incarnation_that_no_name_can_hold(number: int) -> None:
    """It is forgotten; workers that exist count, and the next one of the place gets a name that works."""
    world = running()
    edit(world, incarnations={"0": number, "1": 1, "2": 1})
    world.run(1.0)
    assert world.job.status.incarnations == {"0": 1, "1": 1, "2": 1}
    world.kill_worker("train-0-1")
    world.run(10.0)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 3)
    assert "train-0-2" in world.agents


def test_counts_below_zero_divide_nothing() -> None:
    """What an assignment is computed from bears any number."""
    world = running()
    edit(world, interruption_counts={"crash": -1})
    world.kill_rank("train-0-1")
    world.run(5.0)
    assert world.job.status.phase == "Running"
