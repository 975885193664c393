"""The ledger tells the truth whatever happens: through the real fold and decisions, not the ledger alone.

Workers and ranks fail, streams stall and deliver late, events come twice and in any order across agents, the
operator dies between any two effects, and the next one's clock may stand hours before the last one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from resumable_operator import metrics
from resumable_operator.decide.actions import Plan
from resumable_operator.decide.ledger import age_ms, milliseconds, phases_at
from resumable_operator.decide.observation import Job, Observation, Worker
from resumable_operator.decide.plan import decide
from resumable_training.contract import metrics as names

SPEC: dict[str, Any] = {
    "workers": {"replicas": 3, "min": 1, "max": 3},
    "template": {
        "spec": {"containers": [{"command": ["x"], "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    },
    "recovery": {
        "growCooldownSeconds": 1.0,
        "silentSeconds": 4.0,
        "drainSeconds": 4.0,
        "shrinkAfterSeconds": 2.0,
        "budgets": {"userError": {"limit": 1000}, "withoutProgress": 1000},
    },
}
FAULTS = (
    "kill_worker",
    "kill_rank",
    "hang",
    "preempt",
    "sigterm",
    "cut",
    "delay",
    "heal",
    "suspend",
    "resume",
)


@dataclass(frozen=True)
class Move:
    """A fault of one place (or none), then a life of so many ticks.

    ``crash_after``: the operator dies after so many effects of its next pass; the next one's clock is
    ``step_seconds`` off the last one's, and takes events for ``late_seconds`` later than they were.
    """

    fault: str
    place: int
    ticks: int
    crash_after: int | None
    step_seconds: float
    late_seconds: float
    duplicates: bool


moves = st.lists(
    st.builds(
        Move,
        st.sampled_from(("none", *FAULTS)),
        st.integers(0, 2),
        st.integers(1, 12),
        st.none() | st.integers(0, 4),
        st.sampled_from([0.0, 0.0, -0.5, -20.0, -7200.0, 3.0]),
        st.sampled_from([0.0, 0.05, 0.4, 2.0]),
        st.booleans(),
    ),
    max_size=12,
)


class SteppingWorld(World):
    """The operator's clock is the world's plus ``offset``, and events of several agents come in any order."""

    def __init__(self, chance: Random) -> None:
        super().__init__(SPEC, steps=10_000, save_every=7)
        self.now, self.offset, self.late = 1_000_000.0, 0.0, 0.0
        self._chance = chance

    @property
    def clock(self) -> float:
        return self.now + self.offset

    def observation(self, duplicates: bool = False) -> Observation:
        seen = super().observation(duplicates)
        by = self.offset
        events = [replace(timed, at=min(self.clock, timed.at + by + self.late)) for timed in seen.events]
        self._chance.shuffle(events)
        return replace(
            seen,
            events=tuple(events),
            workers=tuple(self._moved(worker) for worker in seen.workers),
            agents={
                name: replace(agent, last_heard=None if agent.last_heard is None else agent.last_heard + by)
                for name, agent in seen.agents.items()
            },
        )

    def _moved(self, worker: Worker) -> Worker:
        since, told = worker.deleting_since, worker.disruption
        if told is not None and told.deadline is not None:
            told = replace(told, deadline=told.deadline + self.offset)
        return replace(
            worker,
            created_at=worker.created_at + self.offset,
            deleting_since=None if since is None else since + self.offset,
            disruption=told,
        )

    def one_pass(self, move: Move, crash_after: int | None) -> Plan:
        """As ``World.step``, by the operator's clock."""
        plan = decide(self.observation(move.duplicates), self.clock)
        if crash_after == 0:
            self.restart(move)
            return plan
        if plan.status != self.job.status:
            self.write(plan.status)
        for number, action in enumerate(plan.actions, 1):
            if crash_after is not None and number > crash_after:
                self.restart(move)
                return plan
            self.do(action)
        return plan

    def restart(self, move: Move) -> None:
        self.restart_operator()
        self.offset += move.step_seconds
        self.late = move.late_seconds

    def inflict(self, move: Move) -> None:
        names = sorted(name for name, agent in self.agents.items() if agent.place == move.place)
        match move.fault:
            case "none":
                pass
            case "heal":
                self.heal()
            case "suspend" | "resume":
                self.change_spec(suspend=move.fault == "suspend")
            case "cut" if names:
                self.cut(names[-1], "all")
            case "preempt" if names:
                self.preempt(names[-1], 1.5)
            case fault if names:
                getattr(self, fault)(names[-1])


def counters(job: Job, now: float) -> dict[str, float]:
    """Everything that is exported as a counter, and what must not shrink either."""
    found: dict[str, float] = {}
    for family in metrics.JOB_FAMILIES:
        if family.name.endswith("_total"):
            values = family.values(job, now)
            assert values is not None
            by_word = values if isinstance(values, Mapping) else {"": values}
            found |= {f"{family.name} {word}": value for word, value in by_word.items()}
    assert found[f"{names.RECOVERIES_TOTAL} "] <= sum(
        found[f"{names.INTERRUPTIONS_TOTAL} {cause}"] for cause in names.INTERRUPTION_CAUSES
    )
    ledger = job.status.ledger
    return found | {
        "high water": job.status.high_water_samples,
        "age": ledger.settled_at - ledger.started_at,
    }


@given(moves, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_phases_sum_to_the_age_and_counters_never_run_backwards(history: list[Move], seed: int) -> None:
    """To the millisecond, after every write, in every order, over every death of an operator."""
    world = SteppingWorld(Random(seed))
    before = counters(world.job, world.clock)
    for move in history:
        world.inflict(move)
        for tick in range(move.ticks):
            world.one_pass(move, move.crash_after if tick == 0 else None)
            before = check(world, before)
            world.tick()


def check(world: SteppingWorld, before: dict[str, float]) -> dict[str, float]:
    """The promises about what is stored; returns its counters."""
    ledger = world.job.status.ledger
    assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at
    assert all(amount >= 0 for amount in (*ledger.phases.values(), *ledger.gpu_phases.values()))
    now = milliseconds(world.clock)
    shown = phases_at(ledger, now)
    assert sum(shown.values()) == age_ms(ledger, now)
    if world.job.status.started_at is not None:
        assert age_ms(ledger, now) == max(now, ledger.settled_at) - ledger.started_at
    after = counters(world.job, world.clock)
    assert {name: value for name, value in before.items() if after[name] < value} == {}
    for ending in world.job.status.interruptions:
        assert ending.recover_seconds is None or ending.recover_seconds >= 0
        assert all(seconds >= 0 for seconds in (ending.stages or {}).values())
    return after


@given(moves, st.integers(0, 10**6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_events_that_come_again_change_nothing(history: list[Move], seed: int) -> None:
    """A pass over events that are folded already, in whatever order, leaves the ledger as it is."""
    world = SteppingWorld(Random(seed))
    for move in history:
        world.inflict(move)
        for tick in range(move.ticks):
            world.one_pass(move, move.crash_after if tick == 0 else None)
            again = decide(world.observation(duplicates=True), world.clock)
            once = decide(world.observation(), world.clock)
            assert again.status.ledger == once.status.ledger
            world.tick()
