"""What recoveries took, by stage; GPU time. Each second is in one place, no counter runs backwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from resumable_operator import metrics
from resumable_operator.decide.ledger import enter, fold_progress, hold, open_ledger
from resumable_operator.decide.stages import (
    STAGE_OF,
    gpu_time_by_cause,
    lost_gpu_time,
    spent,
    stage_times,
)
from resumable_operator.model import Interruption, JobStatus, LedgerStatus
from resumable_operator.stored import from_stored, to_stored
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.metrics import LEDGER_PHASES, RECOVERY_STAGES

GPUS = 8
SPEC: dict[str, Any] = {
    "workers": {"replicas": 3, "min": 1},
    "recovery": {
        "growCooldownSeconds": 1.0,
        "shrinkAfterSeconds": 2.0,
        "drainSeconds": 3.0,
        "budgets": {"userError": {"limit": 1000}, "withoutProgress": 1000},
    },
    "template": {
        "spec": {
            "containers": [
                {"name": "worker", "command": ["x"], "resources": {"limits": {"nvidia.com/gpu": GPUS}}}
            ]
        }
    },
}


def training(**changes: Any) -> World:
    world = World({**SPEC, **changes}, capacity=3, steps=100_000, save_every=15)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def unplanned(world: World) -> list[Interruption]:
    return [ending for ending in world.job.status.interruptions if not ending.planned]


# ---- stages ----------------------------------------------------------------------------------------------


def test_stages_are_of_the_ledger() -> None:
    """Every stage has a phase of the ledger, and work is in none."""
    assert set(STAGE_OF.values()) == set(RECOVERY_STAGES)
    assert set(STAGE_OF) <= set(LEDGER_PHASES)
    assert not {"productive", "rework", "suspended", "unaccounted"} & set(STAGE_OF)
    ledger = LedgerStatus(settled_at=60, phases={"recovering": 10, "queued": 20, "warmup": 30})
    assert stage_times(ledger, 60) == {
        "detect": 0, "reschedule": 30, "rendezvous": 0, "restore": 0, "warmup": 30
    }  # fmt: skip
    assert spent({"reschedule": 10}, {"reschedule": 30, "warmup": 5})["reschedule"] == 20


def test_a_recovery_is_split_and_counted_once_it_is_over() -> None:
    """From the end of the attempt to the first step after it; the interruption shows the same."""
    world = training()
    before = world.job.status.ledger.phases
    world.kill_rank("train-1-1", 1)
    world.run(0.2)
    assert unplanned(world)[0].stages is None, "it goes on"
    assert world.job.status.recovery.stage_ms == {}
    world.run(3.0)
    (ending,) = unplanned(world)
    assert ending.stages is not None
    assert set(ending.stages) == set(RECOVERY_STAGES)
    status = world.job.status
    assert status.recovery.since is None
    assert {stage: ms / 1000 for stage, ms in status.recovery.stage_ms.items()} == ending.stages
    assert status.last_interruption is not None
    assert status.last_interruption.stages == ending.stages
    grown = {phase: time - before.get(phase, 0) for phase, time in status.ledger.phases.items()}
    assert ending.stages["detect"] == grown.get("detecting", 0) / 1000
    assert ending.stages["reschedule"] == grown["recovering"] / 1000
    assert ending.recover_seconds is not None
    after = sum(ending.stages.values()) - ending.stages["detect"]
    assert after == pytest.approx(ending.recover_seconds, abs=0.3)


def test_failing_again_before_the_first_step_begins_another_recovery() -> None:
    """Each second is in one interruption's recovery: the first one's ends where the second begins."""
    world = training()
    world.crash_code = 1
    world.kill_rank("train-1-1", 1)
    world.run(1.0)
    assert len(unplanned(world)) > 1
    world.crash_code = None
    world.run(20.0)
    stages = [ending.stages for ending in unplanned(world)]
    assert all(stage is not None for stage in stages)
    total = world.job.status.recovery.stage_ms
    for name in RECOVERY_STAGES:
        assert sum(stage[name] for stage in stages if stage) * 1000 == pytest.approx(total[name], abs=1)


def test_a_planned_end_is_no_recovery() -> None:
    """Scaling up and down takes time as well, and is told as resizing."""
    world = training(workers={"replicas": 2, "min": 1, "max": 3})
    world.change_spec(workers={"replicas": 3, "min": 1, "max": 3})
    world.run(10.0)
    world.change_spec(workers={"replicas": 1, "min": 1, "max": 3})
    world.run(10.0)
    status = world.job.status
    assert status.recovery.stage_ms == {}
    assert [ending.stages for ending in status.interruptions] == [None] * len(status.interruptions)
    assert status.resizes == {"grow": 1, "shrink": 1}


def test_statuses_without_any_of_it_are_read() -> None:
    """A job whose status an older operator wrote goes on, and its next recovery is counted."""
    world = training()
    stored = to_stored(world.job.status)
    for name in ("recovery", "resizes"):
        stored.pop(name, None)
    for name in ("gpus", "gpuPhases"):
        stored["ledger"].pop(name)
    old = from_stored(stored)
    assert (old.recovery.stage_ms, old.ledger.gpu_phases) == ({}, {})
    world.write(old)
    world.kill_rank("train-1-1", 1)
    world.run(3.0)
    assert unplanned(world)[0].stages is not None


# ---- GPU time --------------------------------------------------------------------------------------------


def report(**phase_ms: int) -> ProgressReport:
    return ProgressReport(0, 0, sum(phase_ms.values()), "productive", 0, 0, phase_ms)


def test_gpu_time_is_that_of_the_size_at_the_time() -> None:
    """What is credited counts once for each GPU held then; a change under running ranks waits."""
    ledger = hold(enter(open_ledger(0), "starting", 1000), 16, 1000)
    ledger = fold_progress(ledger, report(setup=500, productive=2000), 1, 3500)
    assert ledger.gpu_phases == {"starting": 16 * 500, "productive": 16 * 2000}
    assert hold(ledger, 8, 4000) == ledger
    ledger = hold(enter(ledger, "recovering", 4500), 8, 4500)
    ledger = enter(ledger, "suspended", 5000)
    assert ledger.gpu_phases["recovering"] == 8 * 500
    assert "suspended" not in enter(ledger, "queued", 9000).gpu_phases


def test_gpu_time_of_a_job() -> None:
    """Three workers of eight GPUs; without GPUs there is none."""
    world = training()
    ledger = world.job.status.ledger
    assert ledger.gpus == 3 * GPUS
    assert ledger.gpu_phases["productive"] == 3 * GPUS * ledger.phases["productive"]
    assert training(template={}).job.status.ledger.gpu_phases == {}


def test_gpu_time_is_charged_to_the_cause() -> None:
    """Recovery and rework belong to the interruption before them, what a planned end takes to nobody."""
    world = training(workers={"replicas": 3, "min": 1, "max": 3})
    world.kill_rank("train-1-1", 1)
    world.run(4.0)
    world.preempt("train-2-1", 1.0)
    world.run(6.0)
    cost, ledger = gpu_time_by_cause(world.job.status), world.job.status.ledger
    assert set(cost) == {"crash", "preempted"}
    assert min(cost.values()) > 0
    assert sum(cost.values()) <= lost_gpu_time(ledger, ledger.settled_at)
    world.change_spec(workers={"replicas": 1, "min": 1, "max": 3})
    world.run(6.0)
    assert world.job.status.recovery.cause == ""
    assert sum(gpu_time_by_cause(world.job.status).values()) == sum(cost.values())


# ---- whatever happens -------------------------------------------------------------------------------------

FAULTS = ("kill_rank", "kill_worker", "hang", "preempt", "room", "scale", "suspend", "resume", "operator")
moves = st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 3), st.integers(0, 30)), max_size=12)


def inflict(world: World, fault: str, place: int) -> None:
    names = sorted(name for name, agent in world.agents.items() if agent.place == place and agent.alive)
    match fault:
        case "kill_rank" | "kill_worker" | "hang" if names:
            getattr(world, fault)(names[-1])
        case "preempt" if names:
            world.preempt(names[-1], 2.0)
        case "room":
            world.capacity = place
        case "scale":
            world.change_spec(workers={"replicas": 1 + place % 3, "min": 1, "max": 3})
        case "suspend" | "resume":
            world.change_spec(suspend=fault == "suspend")
        case "operator":
            world.restart_operator()


def counters(world: World) -> dict[tuple[str, str], float]:
    """Every counter of the job, as an operator that has just read its status would show it."""
    found = {}
    for family in metrics.JOB_FAMILIES:
        if family.name.endswith("_total"):
            values = family.values(world.job, world.now)
            shown = values if isinstance(values, dict) else {"": values}
            found |= {(family.name, extra): float(value) for extra, value in shown.items()}
    return found


def check(status: JobStatus) -> None:
    ledger = status.ledger
    assert sum(ledger.phases.values()) == ledger.settled_at - ledger.started_at
    for phase, time in ledger.gpu_phases.items():
        assert 0 <= time <= 3 * GPUS * ledger.phases[phase]
        assert time % GPUS == 0
    charged = sum(gpu_time_by_cause(status).values())
    assert charged <= lost_gpu_time(ledger, ledger.settled_at), "each GPU-second has one cause"
    kept = [ending.stages for ending in status.interruptions if ending.stages is not None]
    for stage in RECOVERY_STAGES:
        told = sum(stages[stage] for stages in kept) * 1000
        total = status.recovery.stage_ms.get(stage, 0)
        assert told <= total + 1, "each second is in one recovery"
        assert total <= stage_times(ledger, ledger.settled_at)[stage], "and was spent"


@given(moves=moves, duplicates=st.booleans(), lost=st.integers(0, 3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_counters_never_run_backwards(moves: list[tuple[str, int, int]], duplicates: bool, lost: int) -> None:
    """Whatever fails, is scaled, suspended or restarted: what is stored only grows, and adds up."""
    world = World(SPEC, capacity=3, steps=100_000, save_every=15)
    before = counters(world)
    for fault, place, ticks in moves:
        inflict(world, fault, place)
        for tick in range(1 + ticks):
            world.step(duplicates, crash_after=lost if tick == 0 and fault == "operator" else None)
            world.tick()
            now = counters(world)
            assert [name for name, value in before.items() if now[name] < value] == []
            before = now
            check(world.job.status)
