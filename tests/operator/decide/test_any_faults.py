"""Whatever goes wrong, and in whatever order: the promises of the decisions hold, and the job gets done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.actions import EmitEvent, Plan, SendAssignment, SendRequest
from resumable_operator.decide.observation import Distrust, Node, Problem
from resumable_operator.decide.plan import decide
from resumable_training.contract.metrics import INTERRUPTION_CAUSES, PLANNED_CAUSES

SPEC: dict[str, Any] = {
    "workers": {"replicas": 4, "min": 1, "max": 4, "sizes": [1, 2, 4], "spares": 0},
    "recovery": {
        "growCooldownSeconds": 1.0,
        "silentSeconds": 5.0,
        "drainSeconds": 5.0,
        "shrinkAfterSeconds": 3.0,
        "formingTimeoutSeconds": 20.0,
        "budgets": {"userError": {"limit": 1000}, "withoutProgress": 1000},
    },
}
FAULTS = (
    "kill_worker",
    "kill_rank",
    "hang",
    "preempt",
    "sigterm",
    "cut_all",
    "cut_operator",
    "delay",
    "heal",
    "delete",
)
TROUBLES = (  # of a cluster; they last until another of the same kind, or the end
    "room",
    "quota",
    "bad_spec",
    "good_spec",
    "unknown_key",
    "lies",
    "cannot_start",
    "node_not_ready",
    "node_gone",
    "cordon",
    "edit",
)
BAD = (Problem("spec.template", "TemplateInvalid", "no image"),)
PLACES = st.integers(0, 3)


@dataclass(frozen=True)
class Move:
    """One thing that happens, then some ticks of time."""

    what: str
    place: int
    ticks: int


faults = st.builds(Move, st.sampled_from(FAULTS), PLACES, st.integers(0, 25))
capacities = st.builds(Move, st.just("capacity"), st.integers(0, 5), st.integers(0, 25))
crashes = st.builds(Move, st.just("operator_crash"), st.integers(0, 4), st.integers(0, 5))
troubles = st.builds(Move, st.sampled_from(TROUBLES), st.integers(0, 5), st.integers(0, 40))
moves = st.lists(st.one_of(faults, crashes, capacities, troubles), max_size=14)


def inflict(world: World, move: Move) -> int | None:
    """Do it; returns after how many effects the operator dies in the next pass."""
    if move.what == "operator_crash":
        return move.place
    if move.what == "capacity":
        if world.capacity is not None:
            world.capacity = move.place
        return None
    if move.what == "heal":
        world.heal()
        return None
    if move.what in TROUBLES:
        trouble(world, move)
        return None
    names = sorted(name for name, agent in world.agents.items() if agent.place == move.place)
    if not names:
        return None
    name = names[-1]
    match move.what:
        case "kill_worker":
            world.kill_worker(name)
        case "kill_rank":
            world.kill_rank(name)
        case "hang":
            world.hang(name)
        case "preempt":
            world.preempt(name, 2.0)
        case "sigterm":
            world.sigterm(name)
        case "cut_all":
            world.cut(name, "all")
        case "cut_operator":
            world.cut(name, "operator")
        case "delay":
            world.delay(name)
        case "delete":
            world.kill_worker(name)
            world.agents.pop(name)
    return None


def trouble(world: World, move: Move) -> None:
    """Change what the cluster is like."""
    node, names = f"node-{move.place}", sorted(world.agents)
    name = names[move.place % len(names)] if names else ""
    match move.what:
        case "room":
            world.room = move.place
        case "quota":
            world.quota = move.place
        case "bad_spec":
            world.problems = BAD
            world.change_spec(recovery={**SPEC["recovery"], "hangSeconds": 100.0 + move.place})
        case "good_spec":
            world.problems = ()
        case "unknown_key" | "lies" if name:
            kind: Literal["key", "words"] = "key" if move.what == "unknown_key" else "words"
            world.distrust[name] = Distrust(kind, "not believed")
        case "cannot_start" if name:
            world.pending_reasons[name] = ("ImagePullBackOff", "no such image")
        case "node_not_ready":
            world.nodes[node] = Node(node, ready=False)
        case "node_gone":
            world.nodes[node] = Node(node, exists=False)
        case "cordon":
            world.nodes[node] = Node(node, cordoned=True)
        case "edit":
            attempt = world.job.status.attempt
            members = attempt.members[: move.place % 3]
            edited = attempt.model_copy(update={"members": members})
            world.job = replace(world.job, status=world.job.status.model_copy(update={"attempt": edited}))


def end_all_trouble(world: World) -> None:
    """Everything is as it should be from now on."""
    world.heal()
    world.room = world.quota = None
    world.problems = ()
    world.distrust.clear()
    world.pending_reasons.clear()
    world.nodes.clear()


class Watch:
    """Holds one pass after another against the promises."""

    def __init__(self, world: World) -> None:
        self.world, self.number = world, 0

    def check(self, plan: Plan) -> None:
        status, spec = plan.status, self.world.job.spec
        stored = self.world.job.status
        assert stored.attempt.number >= self.number, "attempt numbers only grow"
        self.number = stored.attempt.number
        if status.attempt.members:
            assert len(status.attempt.members) in spec.workers.allowed_sizes(), "size is an allowed one"
            ranks = [member.first_rank for member in status.attempt.members]
            assert ranks == list(range(len(ranks))), "ranks are 0..n-1 in order of place"
        ended = [ending.attempt for ending in status.interruptions]
        assert ended == sorted(set(ended)), "every ending has exactly one cause"
        assert all(ending.cause in (*INTERRUPTION_CAUSES, *PLANNED_CAUSES) for ending in status.interruptions)
        self._check_agents()
        ledger = status.ledger
        assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at, "no time is lost"
        assert all(value >= 0 for value in ledger.phases.values())
        assert all(at <= self.world.now for at in status.budgets.infrastructure)
        assert status.budgets.without_progress >= 0
        if status.phase in ("Succeeded", "Failed"):
            assert not any(isinstance(action, SendAssignment) for action in plan.actions)

    def _check_agents(self) -> None:
        """Nobody is ahead of what is written, and members of a running attempt run nothing older."""
        attempt = self.world.job.status.attempt
        members = {member.worker for member in attempt.members}
        for agent in self.world.agents.values():
            if agent.assignment is None:
                continue
            assert agent.assignment.attempt <= attempt.number, "reserved before it is sent"
            if attempt.state == "running" and agent.name in members and agent.training:
                assert agent.assignment.attempt == attempt.number
                assert agent.assignment.digest == attempt.digest


@pytest.mark.parametrize("capacity", [4, None], ids=["room known", "room unknown"])
@given(moves=moves, duplicates=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_promises_hold_and_the_job_ends(capacity: int | None, moves: list[Move], duplicates: bool) -> None:
    """Any sequence of faults and operator crashes keeps the promises, and the job succeeds when they stop."""
    world = World(SPEC, capacity=capacity, steps=60)
    watch = Watch(world)
    for move in moves:
        crash_after = inflict(world, move)
        watch.check(world.step(duplicates, crash_after))
        for _ in range(move.ticks):
            world.tick()
            watch.check(world.step(duplicates))
    end_all_trouble(world)
    world.capacity = capacity
    for _ in range(4000):
        watch.check(world.step(duplicates))
        if world.job.status.phase == "Succeeded":
            break
        world.tick()
    assert world.job.status.phase == "Succeeded", (world.job.status.phase, world.job.status.reason)
    assert world.final_step == world.steps
    assert world.job.status.high_water_step == world.steps


@given(moves=moves)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_deciding_twice_changes_nothing(moves: list[Move]) -> None:
    """On the same world with the written status, a second decision only repeats what is not acknowledged."""
    world = World(SPEC, capacity=4, steps=60)
    for move in moves:
        inflict(world, move)
        for _ in range(1 + move.ticks % 7):
            first = decide(world.observation(), world.now)
            world.write(first.status)
            second = decide(world.observation(duplicates=True), world.now)
            assert second.status.plain() == first.status.plain()
            assert not second.must_write
            assert not [action for action in second.actions if isinstance(action, EmitEvent)]
            assert all(action in first.actions for action in second.actions)
            world.step()
            world.tick()


@given(moves=moves)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_reservation_written_by_a_dead_operator_is_carried_out(moves: list[Move]) -> None:
    """What was written and not done is derived again from the status by the next operator."""
    world = World(SPEC, capacity=4, steps=60)
    for move in moves:
        inflict(world, move)
        plan = decide(world.observation(), world.now)
        world.write(plan.status)
        again = decide(world.observation(), world.now)
        for action in plan.actions:
            if not isinstance(action, EmitEvent | SendRequest):
                assert action in again.actions
        for _ in range(1 + move.ticks):
            world.step()
            world.tick()
