"""Two operators over one job, started by mistake: no attempt twice, no name twice, and the job gets done."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.actions import Action
from resumable_operator.decide.observation import Observation
from resumable_operator.decide.plan import decide

SPEC = {
    "workers": {"replicas": 3, "min": 1, "max": 3},
    "recovery": {
        "growCooldownSeconds": 1.0,
        "budgets": {"userError": {"limit": 1000}, "withoutProgress": 1000},
    },
}


@dataclass
class Operator:
    """One of them: it may be stopped for any time between looking, writing and acting."""

    world: World
    seen: Observation | None = None
    seen_at: float = 0.0
    due: list[Action] = field(default_factory=list)

    def look(self) -> None:
        self.seen, self.seen_at, self.due = self.world.observation(), self.world.now, []

    def write(self) -> None:
        """As ``Reconciler`` does: a conflict means that nothing of this pass is done."""
        if self.seen is None:
            return
        plan, seen = decide(self.seen, self.seen_at), self.seen
        self.seen = None
        if plan.must_write and plan.status != seen.job.status:
            if self.world.job.resource_version != seen.job.resource_version:
                return
            self.world.write(plan.status)
        self.due = list(plan.actions)

    def act(self, most: int) -> None:
        for action in self.due[:most]:
            self.world.do(action)
        self.due = self.due[most:]


@dataclass(frozen=True)
class Move:
    who: int
    what: str
    count: int


moves = st.lists(
    st.builds(
        Move,
        st.integers(0, 1),
        st.sampled_from(["look", "write", "act", "pass", "pass", "kill", "suspend", "resume", "tick"]),
        st.integers(1, 6),
    ),
    max_size=80,
)


class Digests:
    """Every attempt that an agent took, and with which membership."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}

    def check(self, world: World) -> None:
        for agent in world.agents.values():
            if agent.assignment is not None:
                number, digest = agent.assignment.attempt, agent.assignment.digest
                assert self.known.setdefault(number, digest) == digest, "one attempt, two memberships"


def one(world: World, operators: list[Operator], move: Move) -> None:
    operator = operators[move.who]
    match move.what:
        case "look":
            operator.look()
        case "write":
            operator.write()
        case "act":
            operator.act(move.count)
        case "pass":
            operator.look()
            operator.write()
            operator.act(100)
        case "kill":
            names = sorted(name for name, agent in world.agents.items() if agent.alive)
            if names:
                world.kill_worker(names[move.count % len(names)])
        case "suspend" | "resume":
            world.change_spec(suspend=move.what == "suspend")
        case "tick":
            for _ in range(move.count):
                world.tick()


@given(moves=moves)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_interleaved_passes_double_nothing(moves: list[Move]) -> None:
    """Whatever the order of their looks, writes and acts: one membership an attempt, numbers only grow."""
    world = World(SPEC, steps=60)
    operators, digests = [Operator(world), Operator(world)], Digests()
    number = 0
    for move in moves:
        one(world, operators, move)
        digests.check(world)
        assert world.job.status.attempt.number >= number
        number = world.job.status.attempt.number
        if move.what == "pass":
            world.tick()
    world.change_spec(suspend=False)
    for turn in range(3000):
        one(world, operators, Move(turn % 2, "pass", 1))
        digests.check(world)
        if world.job.status.phase == "Succeeded":
            break
        world.tick()
    assert world.job.status.phase == "Succeeded", world.job.status.reason
    assert world.final_step == world.steps


def test_two_in_step_make_one_attempt() -> None:
    """Both look at the same moment, both decide to start: one write wins, the other operator starts over."""
    world = World(SPEC, steps=100_000)
    operators = [Operator(world), Operator(world)]
    while not world.job.status.attempt.number:
        for operator in operators:
            operator.look()
        for operator in operators:
            operator.write()
        for operator in operators:
            operator.act(100)
        world.tick()
    assert world.job.status.attempt.number == 1
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]
    for _ in range(50):
        for operator in operators:
            one(world, operators, Move(operators.index(operator), "pass", 1))
        world.tick()
    assert world.job.status.attempt.number == 1
    assert world.job.status.phase == "Running"


@pytest.mark.parametrize("stale_seconds", [1.0, 10.0])
def test_one_that_slept_ends_no_healthy_attempt(stale_seconds: float) -> None:
    """An operator that was stopped between its look and its write wakes up with an old plan: refused."""
    world = World(SPEC, steps=100_000)
    world.run(2.0)
    world.kill_worker("train-1-1")
    sleeper = Operator(world)
    sleeper.look()
    world.run(stale_seconds)
    number = world.job.status.attempt.number
    sleeper.write()
    sleeper.act(100)
    world.run(3.0)
    assert world.job.status.attempt.number == number == 2
    assert world.job.status.phase == "Running"
