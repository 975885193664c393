"""Going on smaller at once where no machine has room, and waiting where a lost worker may leave its room."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker
from resumable_operator.decide.observation import Node
from resumable_operator.decide.size import PLACING_SECONDS

SOON = 1.0  # well below PLACING_SECONDS, well above what this world's agents take to stop and start


def full(**recovery: Any) -> World:
    """Three workers that train on three machines, and no room for a fourth; restarts are cheap."""
    world = World({"workers": {"replicas": 3, "min": 1}, "recovery": recovery}, steps=100_000)
    world.room = 3
    world.nodes = {f"node-{place}": Node(f"node-{place}") for place in range(3)}
    world.run(2.0)
    assert world.job.status.size == 3
    world.write(world.job.status.model_copy(update={"restart_seconds": 0.5}))
    return world


def goes_on_within(world: World, seconds: float) -> bool:
    """The next attempt is there by then, of the two workers that are left."""
    world.run(seconds)
    attempt = world.job.status.attempt
    return (attempt.number, len(attempt.members)) == (2, 2)


def silence(world: World, name: str) -> None:
    """Its machine says nothing any more and carries nothing out; the API server does not know."""
    world.agents[name].stuck = True
    world.cut(name, "all")


def test_a_machine_that_is_silent_leaves_no_room() -> None:
    """Its neighbour's evidence ends the attempt; the others go on as soon as the scheduler has said no."""
    world = full()
    silence(world, "train-1-1")
    while not world.job.status.interruptions:
        world.run(0.1)
    assert goes_on_within(world, SOON), world.job.status.reason
    assert world.job.status.interruptions[-1].cause == "node_lost"


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(Node("node-1", exists=False), id="gone"),
        pytest.param(Node("node-1", ready=False, unready_since=1000.0), id="not ready"),
        pytest.param(Node("node-1", cordoned=True), id="cordoned"),
        pytest.param(Node("node-1", notice_deadline=1100.0), id="will be taken away"),
        pytest.param(Node("node-1", out_of_service=True), id="out of service"),
    ],
)
def test_a_node_that_takes_no_workers_leaves_no_room(node: Node) -> None:
    """Whatever became of the worker there."""
    world = full()
    world.room = 2
    world.nodes["node-1"] = node
    world.kill_worker("train-1-1")
    assert goes_on_within(world, SOON), world.job.status.reason


def test_a_notice_is_followed_at_once() -> None:
    """The replacement was made, and found no room, while ranks still trained."""
    world = full()
    world.nodes["node-1"] = Node("node-1", notice_deadline=world.now + 30.0)
    assert goes_on_within(world, 1.5), world.job.status.reason
    ending = world.job.status.interruptions[-1]
    assert (ending.cause, ending.rework_steps) == ("preempted", 0)


def test_a_rank_dies_in_a_job_that_is_small_for_want_of_room() -> None:
    """The worker that has waited for room all the time is no reason to let the others wait."""
    spec = {"workers": {"replicas": 3, "min": 1}, "recovery": {"shrinkAfterSeconds": 1.0}}
    world = World(spec, steps=100_000)
    world.room = 2
    world.run(4.0)
    assert world.job.status.size == 2
    world.kill_rank("train-0-1")
    assert goes_on_within(world, SOON), world.job.status.reason


def test_the_room_of_a_killed_worker_is_waited_for() -> None:
    """Its node is fine: the scheduler's first no may only mean that the worker had not left yet."""
    world = full()
    world.room = 2
    world.kill_worker("train-1-1")
    assert not goes_on_within(world, PLACING_SECONDS - 0.5)
    world.room = 3
    world.run(2.0)
    assert (world.job.status.attempt.number, world.job.status.size) == (2, 3)


def test_a_room_that_does_not_come_back_is_waited_for_so_long() -> None:
    """Then the job goes on smaller."""
    world = full()
    world.room = 2
    world.kill_worker("train-1-1")
    assert goes_on_within(world, PLACING_SECONDS + SOON), world.job.status.reason


def test_the_first_start_waits_for_its_machines() -> None:
    """Nothing runs that could go on: new machines may be on their way."""
    spec = {"workers": {"replicas": 3, "min": 1}, "recovery": {"shrinkAfterSeconds": 20.0}}
    world = World(spec, steps=1000)
    world.room = 2
    world.run(10.0)
    assert world.job.status.attempt.number == 0
    world.room = 3
    world.run(3.0)
    assert world.job.status.size == 3


def test_a_pod_on_a_silent_machine_is_not_on_its_way() -> None:
    """To the scheduler the machine is fine and may have room: the new pod prefers others, and one that lands
    there is not waited for as one that starts."""
    world = full(shrinkAfterSeconds=60.0)
    world.room = 4
    world.pending_reasons["train-1-2"] = ("ContainerCreating", "")
    silence(world, "train-1-1")
    world.run(12.0)
    made = [action for plan in world.plans for action in plan.actions if isinstance(action, CreateWorker)]
    assert [action.avoid for action in made if action.name == "train-1-2"] == [("node-1",)]
    assert (world.job.status.attempt.number, world.job.status.size) == (2, 2)
    assert world.agents["train-1-2"].phase == "pending"


def test_one_that_hangs_beside_one_that_speaks_is_not_a_silent_machine() -> None:
    """Two workers on a node: what lands there is on its way, for its machine is well."""
    world = full(shrinkAfterSeconds=60.0)
    world.room = 4
    world.pending_reasons["train-1-2"] = ("ContainerCreating", "")
    world.machines["train-0-1"] = "node-1"
    silence(world, "train-1-1")
    world.run(12.0)
    assert [ending.cause for ending in world.job.status.interruptions] == ["node_lost"]
    assert world.job.status.attempt.number == 1, "it waits for the one that starts"


def test_a_room_that_another_worker_has_taken_is_not_left() -> None:
    """Of two that are lost one is replaced in its own room; the machine of the other is lost: none waits."""
    world = full()
    world.room = 1
    world.nodes["node-2"] = Node("node-2", exists=False)
    world.kill_worker("train-1-1")
    world.kill_worker("train-2-1")
    world.run(0.3)
    world.room = 2
    world.run(SOON)
    assert world.agents["train-1-2"].alive
    assert world.job.status.interruptions[-1].size_after == 2, world.job.status.reason
