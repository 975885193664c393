"""Nodes where workers fail again and again: avoided for a while, softly, and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker
from resumable_operator.decide.avoid import AVOID_SECONDS, MOST_NODES
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.observation import Node


def running(capacity: int | None = None, **workers: object) -> World:
    spec = {"workers": {"replicas": 3, "min": 1, **workers}, "recovery": {"budgets": {"withoutProgress": 99}}}
    world = World(spec, capacity=capacity, steps=100_000)
    world.run(3.0, until="Running")
    return world


def lose(world: World, place: int) -> None:
    """The worker of that place is killed with its agent; the next one runs at the same node."""
    name = next(name for name, agent in world.agents.items() if agent.place == place and agent.alive)
    world.kill_worker(name)
    world.run(15.0)


def created(world: World) -> list[CreateWorker]:
    return [action for plan in world.plans for action in plan.actions if isinstance(action, CreateWorker)]


def shown(world: World) -> tuple[str, str]:
    known = condition(world.job.status, "NodeAvoided")
    return (known.status, known.message) if known else ("", "")


def test_two_failures_on_a_node_make_it_avoided() -> None:
    """The first does not, the second does: said once, shown, and heeded by what is created from then on."""
    world = running()
    lose(world, 1)
    assert shown(world) == ("", "")
    lose(world, 1)
    assert shown(world)[0] == "True"
    assert "node-1" in shown(world)[1]
    assert created(world)[-1].avoid == ("node-1",)
    assert len([event for event in world.emitted if event.reason == "NodeAvoided"]) == 1
    assert list(world.job.status.avoided) == ["node-1"]


def test_the_node_is_known_when_the_pod_is_gone() -> None:
    """A member that vanished without a trace is still counted against its node."""
    world = running()
    for _ in range(2):
        name = next(name for name, agent in world.agents.items() if agent.place == 1)
        world.kill_worker(name)
        del world.agents[name]
        world.run(15.0)
    assert list(world.job.status.avoided) == ["node-1"]


def test_avoiding_ends() -> None:
    """After an hour the node is like any other, though nothing else happens to it."""
    world = running()
    lose(world, 1)
    lose(world, 1)
    world.now += AVOID_SECONDS
    world.step()
    assert shown(world)[0] == "False"
    assert world.job.status.avoided == {}


def test_old_failures_do_not_count() -> None:
    """Two failures more than an hour apart are two accidents."""
    world = running()
    lose(world, 1)
    world.now += 4000.0
    lose(world, 1)
    assert world.job.status.avoided == {}


def test_preemptions_are_not_the_nodes_fault() -> None:
    """Spot nodes come and go."""
    world = running()
    for _ in range(3):
        name = next(name for name, agent in world.agents.items() if agent.place == 1 and agent.alive)
        world.preempt(name, 0.0)
        world.run(15.0)
    assert world.job.status.interruption_counts["preempted"] >= 2
    assert world.job.status.avoided == {}


def test_workers_that_fail_to_start_count() -> None:
    """Two starts that fail on one node are enough."""
    world = World({"workers": {"replicas": 2, "min": 1}}, steps=100_000)
    for _ in range(60):
        for agent in world.agents.values():
            if agent.place == 1 and agent.phase == "running":
                agent.phase, agent.exit_code = "failed", 2
        world.step()
        world.tick()
    assert list(world.job.status.avoided) == ["node-1"]


def test_a_spare_elsewhere_is_preferred() -> None:
    """With more workers than needed those on avoided nodes are left out, without a restart for it."""
    world = running(spares=1)
    for _ in range(2):
        world.kill_rank("train-1-1")
        world.run(5.0)
    assert list(world.job.status.avoided) == ["node-1"]
    world.kill_rank("train-0-1")
    world.run(5.0)
    assert {member.worker for member in world.job.status.attempt.members} == {
        "train-0-1",
        "train-2-1",
        "train-3-1",
    }


def test_one_machine_is_one_machine() -> None:
    """Where the room is known all places are on the same hardware: nothing is avoided."""
    world = running(capacity=3)
    lose(world, 1)
    lose(world, 1)
    assert world.job.status.avoided == {}
    assert all(action.avoid == () for action in created(world))


@pytest.mark.parametrize(
    ("code", "tail", "counts"),
    [
        (1, ("ValueError: boom",), False),
        (127, ("train.sh: python4: not found",), False),
        (82, (), False),
        (1, ("RuntimeError: CUDA error: uncorrectable ECC error encountered",), True),
        (-11, (), True),
    ],
)
def test_a_scripts_own_error_is_not_the_nodes(code: int, tail: tuple[str, ...], counts: bool) -> None:
    """Only how a machine may end a rank counts against it: signals, and errors that speak of hardware."""
    world = running()
    for _ in range(2):
        world.kill_rank("train-1-1", code, tail)
        world.run(4.0)
    assert (list(world.job.status.avoided) == ["node-1"]) is counts


def test_what_all_workers_meet_is_no_nodes_fault() -> None:
    """The same end of ranks on several workers at once lies in what they run."""
    world = running()
    for _ in range(2):
        for name in ("train-0-1", "train-1-1", "train-2-1"):
            world.kill_rank(name, -11)
        world.run(4.0)
    assert world.job.status.avoided == {}


def test_a_finished_job_avoids_nothing() -> None:
    """When the job has ended nobody needs to look after a node for its sake."""
    world = running()
    lose(world, 1)
    lose(world, 1)
    assert shown(world)[0] == "True"
    world.steps = 1
    world.run(3.0)
    assert world.job.status.phase == "Succeeded"
    assert shown(world)[0] == "False"


@pytest.mark.parametrize("drains", [True, False])
def test_nodes_that_are_about_to_go_are_avoided(drains: bool) -> None:
    """A pod that tolerates everything would come to them again and again."""
    spec = {"workers": {"replicas": 3, "min": 1}, "recovery": {"drainOnCordon": drains}}
    world = World(spec, steps=100_000)
    world.run(3.0, until="Running")
    world.nodes["node-1"] = Node("node-1", notice_deadline=world.now + 30.0)
    world.nodes["node-2"] = Node("node-2", cordoned=True)
    world.kill_worker("train-0-1")
    world.run(1.0)
    made = next(action for action in created(world) if action.name == "train-0-2")
    assert made.avoid == (("node-1", "node-2") if drains else ("node-1",))


def test_a_bad_day_in_a_large_cluster_fits_into_status() -> None:
    """More nodes than a condition could name."""
    world = running()
    soon = world.now + 1000
    until = {f"node-{number:03}.eu-central-1.compute.internal": soon + number for number in range(1, 90)}
    world.job = replace(world.job, status=world.job.status.model_copy(update={"avoided": until}))
    lose(world, 1)
    lose(world, 1)
    assert len(world.job.status.avoided) == MOST_NODES
    assert "node-1" in world.job.status.avoided
    assert "and 48 more" in shown(world)[1]
    assert len(shown(world)[1]) < 2048
