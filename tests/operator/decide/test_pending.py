"""Workers that wait: what for is said, what can be done without them is done."""

from __future__ import annotations

import pytest
from world import UNPLACED, World

from resumable_operator.decide.conditions import condition
from resumable_operator.decide.pending import STUCK_START_SECONDS

PULL = ("ImagePullBackOff", 'Back-off pulling image "train:1"')


def world_of(room: int | None = None, recovery: dict[str, object] | None = None, **workers: object) -> World:
    shape = {"replicas": 3, "min": 2, **workers}
    world = World({"workers": shape, "recovery": recovery or {}}, steps=100_000)
    world.room = room
    return world


def readiness(world: World) -> tuple[str, str, str]:
    known = condition(world.job.status, "WorkersReady")
    assert known is not None
    return known.status, known.reason, known.message


def test_all_ready() -> None:
    """With everything there the condition is true."""
    world = world_of()
    world.run(3.0)
    assert readiness(world) == ("True", "AllReady", "3 of 3 workers are ready")
    assert world.job.status.workers == "3/3"


def test_the_schedulers_words_are_shown() -> None:
    """A job without room says so in the scheduler's words, once, and its time is queued."""
    world = world_of(room=0)
    world.run(5.0)
    status, reason, message = readiness(world)
    assert (status, reason) == ("False", "Unschedulable")
    assert UNPLACED[1] in message
    assert UNPLACED[1] in world.job.status.reason
    assert len([event for event in world.emitted if event.reason == "WorkersWaiting"]) == 1
    assert world.job.status.ledger.open_phase == "queued"
    assert world.job.status.workers == "0/3"


def test_a_replacement_that_stays_pending_makes_the_job_smaller() -> None:
    """A lost worker's replacement finds no node: the job goes on smaller soon, and grows when it comes up."""
    world = world_of(room=3, recovery={"growCooldownSeconds": 5.0})
    world.run(3.0)
    world.room = 2
    world.kill_worker("train-1-1")
    world.run(35.0)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 2)
    assert readiness(world)[1] == "Unschedulable"
    world.room = 3
    world.run(40.0)
    assert world.job.status.size == 3
    assert readiness(world)[0] == "True"


@pytest.mark.parametrize("why", [PULL, ("CreateContainerConfigError", "secret not found")])
def test_workers_that_cannot_start_say_why(why: tuple[str, str]) -> None:
    """An image that does not come is the kubelet's word, and not a lack of room."""
    world = world_of()
    for place in range(3):
        world.pending_reasons[f"train-{place}-1"] = why
    world.run(5.0)
    assert readiness(world)[1] == why[0]
    assert why[1] in readiness(world)[2]
    assert world.job.status.ledger.open_phase == "starting"


def test_a_pull_that_is_tried_again_and_again_is_told_once() -> None:
    """The kubelet's word goes to and fro between the try and the pause."""
    world = world_of()
    for turn in range(6):
        word = ("ErrImagePull", "not found") if turn % 2 == 0 else PULL
        world.pending_reasons |= {f"train-{place}-1": word for place in range(3)}
        world.run(1.0)
    assert readiness(world)[1] == PULL[0]
    assert len([event for event in world.emitted if event.reason == "WorkersWaiting"]) == 1


@pytest.mark.parametrize("word", ["ContainerCreating", "PodInitializing"])
def test_what_every_start_shows_is_no_warning(word: str) -> None:
    """A pod that is being made is on its way."""
    world = world_of()
    world.pending_reasons["train-1-1"] = (word, "")
    world.run(1.0)
    assert readiness(world)[1] == "Starting"
    assert not any(event.reason == "WorkersWaiting" for event in world.emitted)


def test_one_that_cannot_start_is_not_waited_for_as_if_it_came_soon() -> None:
    """It may never come: the others start when waiting has cost as much as a later restart would."""
    world = world_of(recovery={"shrinkAfterSeconds": 300.0})
    world.run(3.0)
    world.pending_reasons["train-1-2"] = PULL
    world.kill_worker("train-1-1")
    world.run(20.0)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 2)


def test_one_that_cannot_start_where_others_can_is_tried_elsewhere() -> None:
    """After two minutes it gets a new name and another node, if there is one."""
    world = world_of()
    world.pending_reasons["train-1-1"] = PULL
    world.run(STUCK_START_SECONDS + 5.0, tick=0.5)
    assert "train-1-1" not in world.agents
    assert "train-1-2" in world.agents
    assert list(world.job.status.avoided) == ["node-1"]
    assert len([event for event in world.emitted if event.reason == "WorkerStuck"]) == 1


def test_when_none_can_start_none_is_replaced() -> None:
    """The image is wrong, not a node: new pods would not help."""
    world = world_of()
    for place in range(3):
        world.pending_reasons[f"train-{place}-1"] = PULL
    world.run(STUCK_START_SECONDS + 30.0, tick=0.5)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]
    assert not any(event.reason == "WorkerStuck" for event in world.emitted)


def test_waiting_workers_are_given_back_and_come_again() -> None:
    """Below min for formingTimeoutSeconds: the half that has a node is given back, too."""
    world = world_of(room=1, recovery={"formingTimeoutSeconds": 10.0})
    world.run(14.0)
    assert world.agents == {}
    assert world.job.status.backoff_until is not None
    world.room = None
    world.run(60.0)
    assert world.job.status.phase == "Running"


def test_a_suspended_job_wants_none() -> None:
    """The condition is not about missing workers when none is wanted."""
    world = world_of()
    world.run(3.0)
    world.change_spec(suspend=True)
    world.run(3.0)
    assert readiness(world)[:2] == ("False", "NoneWanted")


def test_waiting_for_long_is_cheap() -> None:
    """A job without room is looked at ever more seldom, and still starts as soon as there is some."""
    world = world_of(room=0)
    waits = []
    for _ in range(20):
        world.run(10.0, tick=1.0)
        plan = world.step()
        assert plan.wake_at is not None
        waits.append(plan.wake_at - world.now)
    assert waits[-1] >= 25.0
    assert sum(1.0 / wait for wait in waits[10:]) / 10 < 0.05, "passes a second"
    world.room = 3
    world.run(3.0)
    assert world.job.status.phase == "Running"


def test_one_that_runs_and_never_answers_is_tried_elsewhere() -> None:
    """Its agent hangs, or its node's network is broken: it would fill its place for ever."""
    world = world_of()
    world.step()
    world.agents["train-1-1"].cut = "operator"
    world.run(STUCK_START_SECONDS + 5.0, tick=0.5)
    assert "train-1-1" not in world.agents
    assert list(world.job.status.avoided) == ["node-1"]
    (told,) = [event for event in world.emitted if event.reason == "WorkerStuck"]
    assert "could not be reached" in told.message
    world.run(60.0, tick=0.5)
    assert world.job.status.incarnations["1"] == 2


def test_when_none_answers_none_is_replaced() -> None:
    """It is the operator that hears nobody."""
    world = world_of()
    world.step()
    for agent in world.agents.values():
        agent.cut = "operator"
    world.run(STUCK_START_SECONDS + 5.0, tick=0.5)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]


def test_a_member_that_a_new_operator_cannot_hear_keeps_its_place() -> None:
    """Its ranks train on, as its peers see: that is no trouble of its start."""
    world = world_of()
    world.run(3.0)
    world.restart_operator()
    world.agents["train-1-1"].cut = "operator"
    world.run(STUCK_START_SECONDS + 5.0, tick=0.5)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]
    assert world.job.status.attempt.number == 1


def test_one_that_has_been_on_its_way_for_long_is_not_waited_for_as_if_it_came_soon() -> None:
    """A volume that can't be mounted, say: each recovery would stand for as long as patience lasts."""
    world = world_of(recovery={"shrinkAfterSeconds": 300.0})
    world.run(3.0)
    world.pending_reasons["train-2-2"] = ("ContainerCreating", "")
    world.kill_worker("train-2-1")
    world.run(STUCK_START_SECONDS + 15.0, tick=0.5)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 2)
    world.kill_rank("train-0-1")
    world.run(15.0)
    status = world.job.status
    assert (status.phase, status.size, status.attempt.number) == ("Running", 2, 3)
