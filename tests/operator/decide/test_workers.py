"""Which workers exist: spares, surplus, room, replacements, and pods that will not go away."""

from __future__ import annotations

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker, DeleteWorker
from resumable_operator.decide.observation import Node
from resumable_operator.decide.workers import MOST_CREATED


def world_of(
    capacity: int | None = None, recovery: dict[str, object] | None = None, **workers: object
) -> World:
    shape = {"replicas": 3, "min": 2, **workers}
    return World({"workers": shape, "recovery": recovery or {}}, capacity=capacity, steps=100_000)


def test_spares_wait_and_step_in() -> None:
    """Spares hold no ranks; when a worker is lost one steps in without waiting for a new one."""
    world = world_of(spares=1)
    world.run(2.0)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1", "train-3-1"]
    assert world.job.status.size == 3
    world.kill_worker("train-1-1")
    world.run(0.6)
    assert {member.worker for member in world.job.status.attempt.members} == {
        "train-0-1",
        "train-2-1",
        "train-3-1",
    }


def test_too_many_workers_harm_nobody() -> None:
    """Surplus workers wait while an attempt forms and are deleted once it runs."""
    world = world_of(spares=2)
    world.run(2.0)
    world.change_spec(workers={"replicas": 3, "min": 2, "spares": 0})
    world.run(2.0)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]
    assert world.job.status.attempt.number == 1


def test_no_more_than_there_is_room_for() -> None:
    """Workers beyond the capacity are not created; the job starts with what there is."""
    world = world_of(capacity=2)
    plan = world.step()
    assert len([a for a in plan.actions if isinstance(a, CreateWorker)]) == 2
    world.run(2.0)
    assert (world.job.status.phase, world.job.status.size) == ("Running", 2)


def test_below_min_it_waits_queued() -> None:
    """No room for min: nothing starts, and the time is queued."""
    world = world_of(capacity=1)
    world.run(30.0)
    assert world.job.status.attempt.number == 0
    assert world.job.status.ledger.open_phase == "queued"
    assert "1 of at least 2 workers are ready" in world.job.status.reason


def test_waiting_workers_are_given_back() -> None:
    """Below min for formingTimeoutSeconds: all waiting workers are deleted, and come back after a backoff."""
    world = world_of(recovery={"formingTimeoutSeconds": 5.0})
    world.room = 1
    world.run(5.5)
    while world.job.status.backoff_until is None:
        world.step()
        world.tick()
    assert world.job.status.backoff_count == 1
    assert any(event.reason == "FormingTimeout" for event in world.emitted)
    until = world.job.status.backoff_until
    assert 15 <= until - world.now <= 45
    world.run(until - world.now - 0.5)
    assert world.agents == {}
    world.room = None
    world.run(5.0)
    assert world.job.status.phase == "Running"


def test_an_operator_that_dies_giving_back_does_it_again() -> None:
    """Status says that pods are given back, and the next operator finds them there."""
    world = world_of(recovery={"formingTimeoutSeconds": 5.0})
    world.room = 1
    world.run(4.5)
    while world.job.status.backoff_until is None:
        world.tick()
        world.step(crash_after=1)
    assert world.agents
    world.tick()
    world.run(8.0)
    assert world.agents == {}
    assert world.job.status.backoff_count == 1
    assert len([event for event in world.emitted if event.reason == "FormingTimeout"]) <= 1
    world.room = None
    world.run(60.0, until="Running")
    assert world.job.status.phase == "Running"
    assert world.job.status.below_min_since is None


def test_workers_that_came_while_no_operator_was_there_are_not_given_back() -> None:
    """It was away for longer than they are waited for; in its first pass it has heard none of them."""
    world = world_of(recovery={"formingTimeoutSeconds": 5.0})
    world.room = 1
    world.run(4.0)
    world.room = None
    world.tick(20.0)
    for _ in range(20):  # they start
        world.tick()
    world.restart_operator()
    world.run(5.0)
    assert not any(event.reason == "FormingTimeout" for event in world.emitted)
    assert world.job.status.phase == "Running"


def test_workers_that_fail_to_start_are_retried_ever_more_slowly() -> None:
    """A worker that dies before it took part gets a new name, later and later, with a warning."""
    world = world_of(capacity=3)
    for _ in range(200):
        for agent in world.agents.values():
            if agent.phase == "running":
                agent.phase, agent.exit_code = "failed", 2
        world.step()
        world.tick()
    created = sum(isinstance(a, CreateWorker) for plan in world.plans for a in plan.actions)
    assert created < 25
    assert world.job.status.start_failures > 2
    assert any(event.reason == "WorkerFailed" for event in world.emitted)


def test_workers_that_never_start_spend_a_budget() -> None:
    """Not for ever: the infrastructure budget pays for each, and the end names the last reason."""
    world = world_of(capacity=3, recovery={"budgets": {"infrastructure": {"limit": 4}}})
    for _ in range(20_000):
        for agent in world.agents.values():
            if agent.phase == "running":
                agent.phase, agent.exit_code = "failed", 2
        world.step()
        world.tick()
        if world.job.status.phase == "Failed":
            break
    assert (world.job.status.phase, world.job.status.failure_class) == ("Failed", "budget")
    assert "recovery.budgets.infrastructure is spent" in world.job.status.reason
    assert "failed before it took part in an attempt (exit code 2)" in world.job.status.reason


def test_a_name_that_took_part_is_never_used_again() -> None:
    """A member that vanished without a trace is replaced under a new name."""
    world = world_of(capacity=3)
    world.run(2.0)
    world.kill_worker("train-1-1")
    del world.agents["train-1-1"]
    world.run(3.0)
    assert "train-1-2" in world.agents
    assert "train-1-1" not in world.agents


def test_an_unused_name_is_created_again() -> None:
    """A spare that vanished before it took part is created again under the reserved name."""
    world = world_of(spares=1)
    world.run(2.0)
    del world.agents["train-3-1"]
    plan = world.step()
    assert plan.actions == (CreateWorker("train-3-1", 3, 1),)


def test_a_pod_stuck_on_a_dead_node_blocks_nothing_and_is_forced() -> None:
    """The next attempt starts without it; after a bounded wait its deletion is forced, with one event."""
    world = world_of(capacity=None)
    world.run(2.0)
    world.agents["train-1-1"].stuck = True
    world.cut("train-1-1", "all")
    world.nodes["node-1"] = Node("node-1", ready=False)
    world.agents["train-2-1"].hung_since = None
    world.run(20.0)
    assert world.job.status.attempt.number == 2
    assert world.agents["train-1-1"].deleting
    world.run(60.0)
    assert "train-1-1" not in world.agents
    assert len([event for event in world.emitted if event.reason == "DeletionForced"]) == 1
    forced = [
        a
        for plan in world.plans
        for a in plan.actions
        if isinstance(a, DeleteWorker) and a.grace_seconds == 0
    ]
    assert [action.name for action in forced] == ["train-1-1"]


def test_an_unfit_worker_is_replaced() -> None:
    """A worker with a rank that can't be reaped is not used again."""
    world = world_of(capacity=3)
    world.run(2.0)
    world.kill_rank("train-1-1")
    world.unfit.add("train-1-1")
    world.run(4.0)
    assert {member.worker for member in world.job.status.attempt.members} == {
        "train-0-1",
        "train-1-2",
        "train-2-1",
    }


@pytest.mark.parametrize("ranks", [1, 4])
def test_ranks_follow_places(ranks: int) -> None:
    """Ranks are numbered through the members in order of place."""
    world = world_of(processesPerWorker=ranks)
    world.run(2.0)
    assert [(m.place, m.first_rank) for m in world.job.status.attempt.members] == [
        (0, 0),
        (1, ranks),
        (2, 2 * ranks),
    ]
    assert world.job.status.attempt.world_size == 3 * ranks


def test_without_a_look_at_nodes_a_stuck_pod_is_forced_much_later() -> None:
    """Where nodes may not be looked at only time tells that one is dead: minutes beyond any grace."""
    world = world_of(recovery={"drainSeconds": 30.0})
    world.run(2.0)
    world.agents["train-1-1"].stuck = True
    world.cut("train-1-1", "all")
    world.kill_rank("train-0-1")
    world.run(20.0)
    assert world.agents["train-1-1"].deleting
    world.run(250.0, tick=1.0)
    assert "train-1-1" in world.agents
    world.run(120.0, tick=1.0)
    assert "train-1-1" not in world.agents


def test_a_living_node_ends_its_pods_itself() -> None:
    """On a node that is ready nothing is forced, however long a deletion takes."""
    world = world_of(spares=1)
    world.run(2.0)
    spare = world.agents["train-3-1"]
    spare.stuck = spare.deleting = True
    spare.deleting_since = world.now
    world.nodes["node-3"] = Node("node-3")
    world.run(900.0, tick=1.0)
    assert "train-3-1" in world.agents


def test_an_agent_on_a_dead_node_that_is_heard_is_asked_to_end() -> None:
    """The kubelet is gone, the network is not: the old agent does not hold its devices until a heal."""
    world = world_of()
    world.run(2.0)
    world.nodes["node-1"] = Node("node-1", ready=False)
    world.agents["train-1-1"].stuck = True
    world.run(30.0)
    assert world.job.status.attempt.number == 2
    assert world.agents["train-1-1"].alive
    world.run(20.0)
    assert "train-1-1" not in world.agents or not world.agents["train-1-1"].alive


def test_a_cordoned_nodes_ready_worker_is_used() -> None:
    """A cordon keeps new pods away; a worker that is there takes part in the next attempt."""
    world = world_of()
    world.run(2.0)
    world.nodes["node-1"] = Node("node-1", cordoned=True)
    world.kill_rank("train-0-1")
    world.run(3.0)
    assert world.job.status.attempt.number == 2
    assert "train-1-1" in {member.worker for member in world.job.status.attempt.members}
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]


def test_a_huge_job_is_made_in_pieces() -> None:
    """No pass is so long that nothing else can be decided in the meantime."""
    world = World({"workers": {"replicas": 2 * MOST_CREATED + 1}})
    plan = world.step()
    assert sum(isinstance(action, CreateWorker) for action in plan.actions) == MOST_CREATED
    world.step()
    world.step()
    assert len(world.agents) == 2 * MOST_CREATED + 1


@pytest.mark.parametrize("starts", ["train-0-1", "train-1-2"], ids=["a survivor", "the replacement"])
def test_a_node_that_is_away_for_a_moment_costs_no_worker(starts: str) -> None:
    """Between two attempts, too: an API server that is back may hear of its nodes a moment late."""
    world = world_of(replicas=2, min=2)
    world.run(2.0)
    world.kill_worker("train-1-1")
    while "train-1-2" not in world.agents:
        world.step()
        world.tick()
    node = f"node-{world.agents[starts].place}"
    world.nodes[node] = Node(node, ready=False, unready_since=world.now)
    world.run(2.0)
    del world.nodes[node]
    world.run(5.0)
    assert world.job.status.attempt.number == 2
    assert [member.worker for member in world.job.status.attempt.members] == ["train-0-1", "train-1-2"]


def test_a_node_that_stays_away_costs_its_worker() -> None:
    """Not in the first ten seconds; then a spare is made anew, whether or not anything else happens."""
    world = world_of(spares=1)
    world.run(2.0)
    world.nodes["node-3"] = Node("node-3", ready=False, unready_since=world.now)
    plan = world.step()
    assert (plan.actions, plan.due_at) == ((), world.now + 10.0)
    world.run(9.5)
    assert "train-3-1" in world.agents
    world.run(1.0)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1", "train-3-2"]


def test_nobody_is_made_in_place_of_who_trains_on_a_node_that_is_away_for_a_moment() -> None:
    """It would have nothing to do: what trains goes on."""
    world = world_of()
    world.run(2.0)
    world.nodes["node-1"] = Node("node-1", ready=False, unready_since=world.now)
    world.run(5.0)
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]


def test_a_silent_worker_of_a_node_that_is_away_is_replaced_at_once() -> None:
    """Two who know nothing of it: its machine is lost."""
    world = world_of(spares=1)
    world.run(2.0)
    world.cut("train-3-1", "all")
    world.run(6.0)
    assert "train-3-1" in world.agents
    world.nodes["node-3"] = Node("node-3", ready=False, unready_since=world.now)
    world.run(0.5)
    assert "train-3-2" in world.agents


def test_a_successor_that_came_for_nothing_takes_over_at_the_next_checkpoint() -> None:
    """The node was away for long enough that it was made, and is back: nothing is redone, nobody idles."""
    world = World({"workers": {"replicas": 3, "min": 2}}, steps=100_000, save_every=100_000)
    world.run(2.0)
    world.machines["train-1-2"] = "node-3"
    world.nodes["node-1"] = Node("node-1", ready=False, unready_since=world.now)
    world.run(12.0)
    del world.nodes["node-1"]
    world.run(10.0)
    assert {"train-1-1", "train-1-2"} < world.agents.keys()
    assert world.job.status.attempt.number == 1
    world.save_every = 10
    world.run(10.0)
    status = world.job.status
    assert [member.worker for member in status.attempt.members] == ["train-0-1", "train-1-2", "train-2-1"]
    assert sorted(world.agents) == ["train-0-1", "train-1-2", "train-2-1"]
    assert [(ending.cause, ending.planned) for ending in status.interruptions] == [("drained", True)]
    assert status.ledger.phases.get("rework", 0) == 0
