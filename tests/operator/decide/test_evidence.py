"""What is seen, and what it means: lost, doomed, or nobody's business. The design's table, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from world import World

from resumable_operator.decide.actions import Plan
from resumable_operator.decide.evidence import IN_FLIGHT_SECONDS
from resumable_operator.decide.observation import Disruption, Node, Observation
from resumable_operator.decide.plan import decide
from resumable_training.contract.events import SILENT_SECONDS

NAME, NODE = "train-1-1", "node-1"


def running(replicas: int = 3, **recovery: object) -> World:
    spec = {"workers": {"replicas": replicas, "min": 1}, "recovery": {"silentSeconds": 10.0, **recovery}}
    world = World(spec, capacity=replicas, steps=100_000)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def see(world: World, change: Callable[[Observation], Observation]) -> Plan:
    return decide(change(world.observation()), world.now)


def worker(**changes: object) -> Callable[[Observation], Observation]:
    def change(seen: Observation) -> Observation:
        workers = tuple(replace(w, **changes) if w.name == NAME else w for w in seen.workers)  # type: ignore[arg-type]
        return replace(seen, workers=workers)

    return change


def gone(seen: Observation) -> Observation:
    return replace(seen, workers=tuple(w for w in seen.workers if w.name != NAME))


def node(**changes: object) -> Callable[[Observation], Observation]:
    return lambda seen: replace(seen, nodes={NODE: Node(NODE, **changes)})  # type: ignore[arg-type]


NOTICE = Disruption("preempted", "TerminationTarget")
CONDEMNED = Disruption("node_lost", "DeletionByTaintManager", 1030.0)
EVICTION = Disruption("evicted", "EvictionByEvictionAPI", 1030.0)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        pytest.param(gone, "node_lost", id="vanished"),
        pytest.param(lambda seen: gone(node()(seen)), "evicted", id="deleted unseen, its node is well"),
        pytest.param(lambda seen: gone(node(ready=False)(seen)), "node_lost", id="vanished, node not ready"),
        pytest.param(lambda seen: gone(node(exists=False)(seen)), "node_lost", id="vanished with its node"),
        pytest.param(worker(phase="failed", exit_code=-9), "node_lost", id="killed with its agent"),
        pytest.param(worker(phase="failed", exit_code=137, reason="OOMKilled"), "oom", id="out of memory"),
        pytest.param(
            worker(phase="failed", exit_code=137, disruption=NOTICE), "preempted", id="conditions first"
        ),
        pytest.param(worker(phase="failed", reason="Evicted"), "evicted", id="evicted"),
        pytest.param(worker(phase="succeeded", exit_code=0), "preempted", id="its agent left: not a success"),
        pytest.param(worker(phase="failed", exit_code=137, deleting=True), "evicted", id="force-deleted"),
        pytest.param(worker(phase="failed", exit_code=143, deleting=True), "evicted", id="deleted"),
        pytest.param(worker(phase="failed", exit_code=3), "unknown", id="the agent itself failed"),
        pytest.param(node(exists=False), "node_lost", id="node deleted"),
        pytest.param(node(out_of_service=True), "node_lost", id="node out of service"),
        pytest.param(node(exists=False, notice_deadline=1030.0), "preempted", id="gone as announced"),
    ],
)
def test_shown_losses(change: Callable[[Observation], Observation], cause: str) -> None:
    """The API says that a worker is lost: the attempt ends in this very pass, with that cause."""
    plan = see(running(), change)
    assert plan.status.attempt.state == "ending"
    assert [(item.cause, item.worker) for item in plan.status.attempt.evidence] == [(cause, NAME)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda seen: seen, id="nothing"),
        pytest.param(node(cordoned=True), id="a cordon is not an ending"),
        pytest.param(node(ready=False), id="not ready but reporting, no fresh checkpoint"),
    ],
)
def test_no_reason_to_end(change: Callable[[Observation], Observation]) -> None:
    """These leave a running attempt alone."""
    world = running()
    made = world.job.status.checkpoint
    assert made is not None
    old = made.model_copy(update={"at": made.at - 100})
    world.job = replace(world.job, status=world.job.status.model_copy(update={"checkpoint": old}))
    world.agents["train-0-1"].shown = 0
    plan = see(world, change)
    assert plan.status.attempt.state == "running"
    assert plan.actions == ()


def test_not_ready_but_reporting_is_replaced_at_a_checkpoint() -> None:
    """A node that is NotReady while its agent reports: a planned end, right after a checkpoint."""
    plan = see(running(), node(ready=False))
    assert plan.status.attempt.state == "draining"
    assert plan.status.attempt.drain_cause == "drained"


@pytest.mark.parametrize(("seconds", "state"), [(0.0, "running"), (9.9, "running"), (10.0, "draining")])
def test_not_ready_for_a_moment(seconds: float, state: str) -> None:
    """It may be the first node of many, or be ready again soon: not replaced at once."""
    world = running()
    plan = see(world, node(ready=False, unready_since=world.now - seconds))
    assert plan.status.attempt.state == state
    assert state == "draining" or (plan.wake_at is not None and plan.wake_at <= world.now - seconds + 10.0)


@pytest.mark.parametrize("told", [{"deleting": True}, {"disruption": CONDEMNED}])
def test_deleted_on_a_node_that_is_not_heard(told: dict[str, Any]) -> None:
    """Nobody is there to carry it out: it trains on until its agent is told, or until a checkpoint."""
    world = running()
    lost = node(ready=False, unready_since=world.now)
    assert see(world, lambda seen: worker(**told)(lost(seen))).status.attempt.state == "running"
    world.sigterm(NAME)
    plan = see(world, lambda seen: worker(**told)(lost(seen)))
    assert (plan.status.attempt.state, plan.status.attempt.drain_cause) == ("draining", "preempted")


def test_not_ready_nodes_everywhere_are_the_control_planes_trouble() -> None:
    """Most nodes NotReady while their agents report: nothing is replaced, there would be nowhere to go."""
    world = running()
    for place in (0, 1):
        world.nodes[f"node-{place}"] = Node(f"node-{place}", ready=False)
    world.run(30.0)
    assert world.job.status.attempt.number == 1
    assert world.job.status.interruptions == ()


def test_goes_on_where_only_the_control_plane_hears_nothing() -> None:
    """Should an attempt end then, the next one takes the same workers: their agents answer."""
    world = running()
    for place in range(3):
        world.nodes[f"node-{place}"] = Node(f"node-{place}", ready=False)
    before = {member.worker for member in world.job.status.attempt.members}
    world.kill_rank(NAME)
    world.run(5.0)
    assert (world.job.status.phase, world.job.status.attempt.number) == ("Running", 2)
    assert {member.worker for member in world.job.status.attempt.members} == before


def test_drain_on_cordon() -> None:
    """With drainOnCordon a cordon is a planned end."""
    plan = see(running(drainOnCordon=True), node(cordoned=True))
    assert plan.status.attempt.state == "draining"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        pytest.param(worker(disruption=NOTICE), "preempted", id="notice"),
        pytest.param(worker(disruption=EVICTION), "evicted", id="eviction"),
        pytest.param(worker(deleting=True), "evicted", id="being deleted, agent alive"),
        pytest.param(node(notice_deadline=1030.0), "preempted", id="spot taint"),
    ],
)
def test_notices_drain(change: Callable[[Observation], Observation], cause: str) -> None:
    """A worker that will be gone but still trains: drain now, with the cause that the notice has."""
    plan = see(running(), change)
    assert plan.status.attempt.state == "draining"
    assert plan.status.attempt.drain_cause == cause
    assert plan.status.attempt.evidence == ()


# ---- silence -----------------------------------------------------------------------------------------


def test_gone_for_operator_and_neighbour_is_lost_at_once() -> None:
    """Its machine refuses connections, to both: lost in the pass that sees it, whatever the API knows."""
    world = running()
    world.kill_agent(NAME)
    plan = world.step()
    assert [(item.cause, item.worker) for item in plan.status.attempt.evidence] == [("node_lost", NAME)]
    assert "train-0-1 can't reach it" in plan.status.attempt.evidence[0].message
    assert plan.status.attempt.state == "ending"


def test_gone_for_the_operator_alone_is_no_loss() -> None:
    """A wall between the operator and one worker that refuses instead of dropping: its neighbour is asked."""
    world = running()
    world.cut(NAME, "operator")
    seen = world.observation()
    refused = replace(seen.agents[NAME], refused=True)
    plan = decide(replace(seen, agents={**seen.agents, NAME: refused}), world.now)
    assert (plan.status.attempt.state, plan.status.attempt.evidence) == ("running", ())


def test_most_gone_at_once_is_our_own_network() -> None:
    """A wall in front of the operator that refuses all of them proves nothing."""
    world = running()
    for name in ("train-0-1", "train-1-1"):
        world.kill_agent(name)
    assert world.step().status.attempt.evidence == ()


def test_a_lost_machine_is_decided_within_three_seconds() -> None:
    """Its packets are dropped: from the last sign of life to the verdict, at whatever step time."""
    world = running()
    world.cut(NAME, "all")
    lost_at = world.now
    while not world.job.status.attempt.evidence:
        world.tick(0.05)
        world.step()
    assert world.now - lost_at <= 3.0


def test_a_pause_of_two_seconds_is_no_loss() -> None:
    """A machine that stands still for 2 s after its last heartbeat, half a second before."""
    world = running()
    world.cut(NAME, "all")
    world.run(2.5, tick=0.05)
    world.heal()
    world.run(5.0)
    assert (world.job.status.attempt.number, world.job.status.interruptions) == (1, ())


def test_silent_and_unreachable_for_its_neighbour_is_lost() -> None:
    """The operator does not hear it and its ring neighbour can't reach it: lost within seconds."""
    world = running()
    world.cut(NAME, "all")
    world.run(SILENT_SECONDS + 1.0)
    assert world.job.status.interruptions[-1].cause == "node_lost"
    assert "train-0-1 can't reach it" in world.job.status.interruptions[-1].message


def test_silent_but_fine_for_its_neighbour_trains_on() -> None:
    """Only the operator can't hear it: nothing is ended, however long it lasts."""
    world = running()
    world.cut(NAME, "operator")
    world.run(60.0)
    assert world.job.status.attempt.number == 1
    assert world.job.status.interruptions == ()
    assert "its peers see nothing wrong" in world.plans[-1].reason


def test_alone_and_silent_is_lost_after_silent_seconds() -> None:
    """Nobody else can be asked: lost after silentSeconds, not before."""
    world = running(replicas=1)
    world.cut("train-0-1", "operator")
    world.run(9.0)
    assert world.job.status.interruptions == ()
    world.run(3.0)
    assert world.job.status.interruptions[-1].cause == "node_lost"
    assert "nobody else can be asked" in world.job.status.interruptions[-1].message


def test_most_silent_at_once_is_our_own_network() -> None:
    """Most agents fall silent together: no verdict, and the reason says so."""
    world = running()
    for name in ("train-0-1", "train-1-1"):
        world.cut(name, "all")
    world.run(60.0)
    assert world.job.status.attempt.number == 1
    assert "operator's own network" in world.plans[-1].reason
    world.heal()
    world.run(1.0)
    assert world.job.status.interruptions == ()
    assert world.job.status.phase == "Running"


def test_silence_without_a_verdict_is_no_busy_loop() -> None:
    """Agents that nobody can judge are looked at now and then: an operator cut off from hundreds of jobs
    must not spend itself on them."""
    world = running()
    for name in ("train-0-1", "train-1-1", "train-2-1"):
        world.cut(name, "all")
    world.run(20.0)
    wake_at = world.plans[-1].wake_at
    assert wake_at is not None
    assert wake_at - world.now >= 1.0


def test_silent_on_a_not_ready_node_is_lost_at_once() -> None:
    """The API's word and silence together need no neighbour."""
    world = running()
    world.cut(NAME, "operator")
    world.run(SILENT_SECONDS)
    assert world.job.status.interruptions == ()
    world.nodes[NODE] = Node(NODE, ready=False)
    plan = world.step()
    assert [item.cause for item in plan.status.attempt.evidence] == ["node_lost"]


def test_silent_while_its_peers_ranks_fail_is_lost() -> None:
    """Its peers' ranks lost their peer, and it is silent: it is the one that is lost."""
    world = running()
    world.cut(NAME, "operator")
    world.run(SILENT_SECONDS)
    world._break_group(world.agents[NAME])
    world.agents[NAME].state = "ended"
    world.run(3.0)
    last = world.job.status.interruptions[-1]
    assert (last.cause, last.worker) == ("node_lost", NAME)


def test_a_status_that_is_ahead_of_the_streams_ends_nothing() -> None:
    """Another operator has just sent the assignments: a state from before proves nothing until a newer word
    of that agent says the same."""
    world = running()
    world.job = replace(
        world.job,
        status=world.job.status.model_copy(
            update={"attempt": world.job.status.attempt.model_copy(update={"running_at": world.now})}
        ),
    )
    agent = world.agents[NAME]
    agent.assignment, agent.state = None, "idle"
    observed = world.observation()
    assert decide(observed, world.now).status.attempt.evidence == ()
    later = replace(observed.agents[NAME], last_heard=world.now + IN_FLIGHT_SECONDS)
    observed = replace(observed, agents={**observed.agents, NAME: later})
    (witness,) = decide(observed, world.now + IN_FLIGHT_SECONDS).status.attempt.evidence
    assert "started anew" in witness.message


def test_an_agent_that_started_anew_has_lost_its_ranks() -> None:
    """A new boot without the assignment means that the ranks are gone."""
    world = running()
    world.run(IN_FLIGHT_SECONDS)
    agent = world.agents[NAME]
    agent.assignment, agent.state, agent.boot_id, agent.log, agent.times = None, "idle", "boot-new", [], []
    world.tick()
    plan = world.step()
    assert plan.status.attempt.state == "ending"
    assert "started anew" in plan.status.attempt.evidence[0].message
