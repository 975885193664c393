"""Planned ends and notices: drained with nothing lost, inside the window, whatever the ranks do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import World

from resumable_operator.decide.actions import CreateWorker, Plan, SendRequest
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.observation import Disruption
from resumable_operator.decide.plan import decide
from resumable_operator.model import BudgetStatus
from resumable_training.contract import events, exitcodes
from resumable_training.contract.assignment import ASKED_BY_OPERATOR, REQUEST_DRAIN, REQUEST_STOP
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import RankExit


def running(workers: dict[str, object] | None = None, capacity: int | None = 3, **spec: object) -> World:
    shape = workers or {"replicas": 3, "min": 1}
    world = World({"workers": shape, **spec}, capacity=capacity, steps=100_000, save_every=1000)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def drains(plan: Plan) -> list[SendRequest]:
    return [a for a in plan.actions if isinstance(a, SendRequest) and a.request.kind == REQUEST_DRAIN]


def test_preemption_with_grace_loses_nothing() -> None:
    """A notice drains all members; the rest goes on at the same step, and the cause is preempted."""
    world = running()
    world.preempt("train-1-1", 4.0)
    world.capacity = 2
    plan = world.step()
    assert {send.worker for send in drains(plan)} == {"train-0-1", "train-1-1", "train-2-1"}
    assert all(send.request.seconds == pytest.approx(4.0) for send in drains(plan))
    assert {send.request.asked_by for send in drains(plan)} == {ASKED_BY_OPERATOR}
    world.run(2.0)
    status = world.job.status
    assert (status.phase, status.attempt.number, status.size) == ("Running", 2, 2)
    last = status.last_interruption
    assert last is not None
    assert (last.cause, last.planned, last.rework_steps) == ("preempted", False, 0)
    assert world.groups[2].start == world.groups[1].step
    assert "train-1-1" not in {member.worker for member in status.attempt.members}
    assert status.budgets == BudgetStatus(preemption=status.budgets.preemption)
    assert len(status.budgets.preemption) == 1


@pytest.mark.parametrize(("notice", "configured", "window"), [(4.0, 60.0, 4.0), (100.0, 7.0, 7.0)])
def test_window_is_the_smallest(notice: float, configured: float, window: float) -> None:
    """The window of a drain is the smaller of notice and drainSeconds."""
    world = running(recovery={"drainSeconds": configured})
    world.preempt("train-1-1", notice)
    assert drains(world.step())[0].request.seconds == pytest.approx(window)


def test_sigterm_without_a_notice_is_a_preemption() -> None:
    """An agent that got SIGTERM makes all drain; its worker is replaced under a new name."""
    world = running()
    world.sigterm("train-1-1")
    world.run(3.0)
    status = world.job.status
    assert status.last_interruption is not None
    assert status.last_interruption.cause == "preempted"
    assert {member.worker for member in status.attempt.members} == {"train-0-1", "train-1-2", "train-2-1"}


@pytest.mark.parametrize(
    ("told", "cause", "words"),
    [
        ({"disruption": Disruption("evicted", "EvictionByEvictionAPI", 1030.0)}, "evicted", "EvictionBy"),
        ({"disruption": Disruption("preempted", "PreemptionByScheduler", 1030.0)}, "preempted", "Scheduler"),
        ({"deleting": True}, "evicted", "being deleted"),
        ({}, "preempted", "SIGTERM"),
    ],
)
def test_sigterm_is_explained_later(told: dict[str, Any], cause: str, words: str) -> None:
    """The agent's word of its SIGTERM may come before the API's of who ends the pod, which then counts."""
    world = running()
    world.sigterm("train-1-1")
    assert world.step().status.attempt.drain_cause == "preempted"
    seen = world.observation()
    workers = tuple(replace(item, **told) if item.name == "train-1-1" else item for item in seen.workers)
    plan = decide(replace(seen, workers=workers), world.now)
    assert (plan.status.attempt.state, plan.status.attempt.drain_cause) == ("draining", cause)
    assert words in plan.status.attempt.drain_reason


def test_deleted_jobs_drain_and_get_nothing_new() -> None:
    """Deletion drains; nothing is created or started for the job any more."""
    world = running()
    world.job = replace(world.job, deleting=True)
    before = len(world.plans)
    world.run(3.0)
    assert world.committed == world.groups[1].step
    assert world.job.status.attempt.state == "ended"
    assert world.agents == {}
    assert not any(isinstance(a, CreateWorker) for plan in world.plans[before:] for a in plan.actions)


def suspended(world: World) -> tuple[str, str, str]:
    """The condition: its value, reason and message."""
    (found,) = (item for item in world.job.status.conditions if item.type == "Suspended")
    return found.status, found.reason, found.message


def test_suspend_and_resume() -> None:
    """spec.suspend drains, deletes the workers, and waits; resuming goes on at the same step."""
    world = running()
    world.change_spec(suspend=True)
    shown = []
    for _ in range(30):
        world.step()
        known = condition(world.job.status, "Suspended")
        if known is not None and known.status == "True":
            shown.append(len(world.observation().workers))
        world.tick()
    assert set(shown) == {0}  # whoever waits for the condition finds no pods
    assert world.job.status.phase == "Suspended"
    assert world.agents == {}
    assert world.job.status.ledger.open_phase == "suspended"
    ending = world.job.status.interruptions[-1]
    assert (ending.cause, ending.committed) == ("suspend", True)
    assert suspended(world) == ("True", "SpecSuspend", "suspended by spec.suspend")
    world.change_spec(suspend=False)
    world.run(3.0)
    assert suspended(world) == ("False", "Resolved", "")
    assert world.job.status.phase == "Running"
    assert world.groups[2].start == world.groups[1].step
    assert world.job.status.interruption_counts == {"suspend": 1}
    assert world.job.status.ledger.phases["suspended"] > 2000


def test_what_suspends_a_job_is_told_in_its_own_words() -> None:
    """At a terminal nobody has set spec.suspend: the drain, its ending and the condition say Ctrl-C."""
    world = running()
    world.change_spec(suspend=True)
    world.job = replace(world.job, suspended_by="Ctrl-C")
    world.run(15.0)
    assert world.job.status.attempt.drain_reason == "Ctrl-C"
    assert world.job.status.interruptions[-1].message == "Ctrl-C"
    assert suspended(world) == ("True", "SpecSuspend", "suspended by Ctrl-C")


def test_a_hung_job_cannot_refuse() -> None:
    """When the window is over the ranks are stopped; a suspended job is suspended."""
    world = running(recovery={"drainSeconds": 1.0})
    for agent in world.agents.values():
        agent.hung_since = world.now + 1000
    world.change_spec(suspend=True)
    world.run(4.0)
    assert world.job.status.phase == "Suspended"
    ending = world.job.status.interruptions[-1]
    assert (ending.planned, ending.committed) == (True, False)


def test_a_later_notice_shortens_the_window() -> None:
    """A worker that will be gone sooner than the drain allows makes the drain shorter."""
    world = running()
    for agent in world.agents.values():
        agent.hung_since = world.now + 1000
    world.change_spec(suspend=True)
    world.step()
    world.preempt("train-0-1", 2.0)
    world.step()
    assert world.job.status.attempt.drain_deadline == pytest.approx(world.now + 2.0)


def test_active_deadline() -> None:
    """A job older than activeDeadlineSeconds is drained and fails, class deadline."""
    world = running(activeDeadlineSeconds=3.0)
    world.run(4.0)
    status = world.job.status
    assert (status.phase, status.failure_class) == ("Failed", "deadline")
    assert world.committed == world.groups[1].step
    assert status.interruptions[-1].cause == "deadline"


def test_scale_down_drains_once() -> None:
    """Fewer replicas: one drain, the surplus worker goes, the others are reused in place."""
    world = running()
    world.change_spec(workers={"replicas": 2, "min": 1, "max": 3})
    world.run(3.0)
    status = world.job.status
    assert (status.attempt.number, status.size) == (2, 2)
    assert sorted(world.agents) == ["train-0-1", "train-1-1"]
    assert status.interruption_counts == {"scale": 1}
    told = [event.message for event in world.emitted if event.reason == "Draining"]
    assert len(told) == 1
    assert "spec.workers changed: size 3 to 2" in told[0]


def test_scale_up_obeys_the_cool_down() -> None:
    """More replicas: workers are created now, the attempt grows after the cool-down."""
    world = running({"replicas": 2, "min": 1, "max": 3}, recovery={"growCooldownSeconds": 4.0})
    world.change_spec(workers={"replicas": 3, "min": 1, "max": 3})
    world.run(1.0)
    assert "train-2-1" in world.agents
    assert world.job.status.size == 2
    world.run(12.0)
    assert world.job.status.size == 3
    assert world.job.status.attempt.number == 2


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"template": {"spec": {"containers": [{"command": ["x"]}]}}}, False),
        ({"workers": {"replicas": 3, "min": 1, "processesPerWorker": 2}}, True),
    ],
    ids=["template: new workers", "processesPerWorker: workers kept"],
)
def test_changed_config(change: dict[str, object], kept: bool) -> None:
    """A changed template or number of processes is a drain with cause config."""
    world = running()
    world.change_spec(**change)
    world.run(4.0)
    status = world.job.status
    assert (status.phase, status.attempt.number) == ("Running", 2)
    assert status.interruption_counts == {"config": 1}
    assert ({m.worker for m in status.attempt.members} == {"train-0-1", "train-1-1", "train-2-1"}) is kept
    assert [m.first_rank for m in status.attempt.members] == ([0, 2, 4] if kept else [0, 1, 2])


@pytest.mark.parametrize(
    "change",
    [
        {"recovery": {"hangSeconds": 77.0}},
        {"checkpoint": {"keep": 7}},
        {"checkpoint": {"interval": {"steps": 5}}},
    ],
)
def test_settings_are_pushed_live(change: dict[str, object]) -> None:
    """Limits and save settings reach all members without an end; after that it is quiet again."""
    world = running()
    world.step()
    world.change_spec(**change)
    plan = world.step()
    sent = [action for action in plan.actions if isinstance(action, SendRequest)]
    assert {(send.worker, send.request.kind) for send in sent} == {
        (name, "settings") for name in ("train-0-1", "train-1-1", "train-2-1")
    }
    world.run(7.0)
    assert world.job.status.attempt.number == 1
    assert world.plans[-1].actions == ()


def test_storage_changes_only_while_suspended() -> None:
    """Another directory is refused while running, also for the next attempt, and taken after a suspend."""
    world = running(checkpoint={"directory": {"path": "/a"}})
    world.change_spec(checkpoint={"directory": {"path": "/b"}})
    world.kill_rank("train-0-1")
    world.run(3.0)
    assignment = world.agents["train-0-1"].assignment
    assert assignment is not None
    assert assignment.checkpoint.directory == "/a"
    assert ("StorageChangeIgnored", "True") in {(c.type, c.status) for c in world.job.status.conditions}
    world.change_spec(suspend=True)
    world.run(3.0)
    world.change_spec(suspend=False)
    world.run(3.0)
    directories = {a.assignment.checkpoint.directory for a in world.agents.values() if a.assignment}
    assert directories == {"/b"}


def test_a_script_without_the_library_is_drained_too() -> None:
    """Its ranks end by SIGTERM, which is what was asked: a planned end, not a crash."""
    world = World({"workers": {"replicas": 2, "min": 1}}, capacity=2, steps=100_000)
    world.library = False
    world.run(3.0)
    assert world.job.status.uses_library is False
    assert world.job.status.ledger.open_phase == "running_opaque"
    world.change_spec(suspend=True)
    world.run(3.0)
    assert world.job.status.phase == "Suspended"
    assert world.job.status.interruption_counts == {"suspend": 1}


def test_a_suspended_job_is_no_older_for_it() -> None:
    """activeDeadlineSeconds leaves out the time in which the job was suspended."""
    world = running(activeDeadlineSeconds=20.0)
    world.change_spec(suspend=True)
    world.run(60.0, tick=0.5)
    assert world.job.status.phase == "Suspended"
    world.change_spec(suspend=False)
    world.run(5.0)
    assert world.job.status.phase == "Running"
    world.run(20.0)
    assert (world.job.status.phase, world.job.status.failure_class) == ("Failed", "deadline")


def test_replicas_that_flap_cost_few_restarts() -> None:
    """An autoscaler that changes its mind all the time: growing waits for the cool-down, each time."""
    world = running({"replicas": 3, "min": 1, "max": 3}, recovery={"growCooldownSeconds": 20.0})
    for _ in range(20):
        for replicas in (2, 3):
            world.change_spec(workers={"replicas": replicas, "min": 1, "max": 3})
            world.run(1.0)
    assert world.job.status.attempt.number <= 4


def test_all_spot_nodes_are_taken_at_once() -> None:
    """Every node has a notice: all is saved, the job waits, and goes on at the same step on other nodes."""
    world = running()
    for place in range(3):
        world.preempt(f"train-{place}-1", 8.0)
    world.room = 0
    world.run(15.0)
    done = world.groups[1].step
    assert world.committed == done
    assert world.job.status.size == 0
    world.room = None
    world.run(60.0)
    assert world.job.status.phase == "Running"
    assert world.groups[2].start == done
    assert world.job.status.interruptions[-1].rework_steps == 0


def test_a_new_template_may_be_another_script() -> None:
    """Whether it uses the library is learned anew."""
    world = World({"workers": {"replicas": 2}}, steps=100_000)
    world.run(3.0)
    assert world.job.status.uses_library is True
    world.library = False
    world.change_spec(template={"spec": {"containers": [{"command": ["y"]}]}})
    world.run(20.0)
    assert world.job.status.phase == "Running"
    assert world.job.status.uses_library is False


def end_of_a_start(world: World, name: str) -> None:
    """What an agent tells whose first rank got the drain's SIGTERM before it had connected."""
    agent = world.agents[name]
    world._rank_exit(agent, -15)
    world._end(agent, events.DRAINED)


@pytest.mark.parametrize("library", [True, None])
@pytest.mark.parametrize(
    ("how", "cause"), [("suspend", "suspend"), ("sigterm", "preempted"), ("deleting", "evicted")]
)
def test_a_start_that_a_drain_ends_is_nobodys_crash(how: str, cause: str, library: bool | None) -> None:
    """A rank that died of the drain's SIGTERM before it connected ends by the drain: nobody pays."""
    world = running()
    world.write(world.job.status.model_copy(update={"uses_library": library}))
    for agent in world.agents.values():
        agent.hung_since = world.now + 1000  # neither trains nor answers a drain: it imports
    if how == "suspend":
        world.change_spec(suspend=True)
    else:
        world.agents["train-0-1"].deleting = how == "deleting"
        world.sigterm("train-0-1")
    if how == "suspend":
        world.step()  # else the agents are first, and the operator learns all of it at once
    end_of_a_start(world, "train-0-1")
    for name in ("train-1-1", "train-2-1"):
        world._rank_exit(world.agents[name], exitcodes.PEER_LOST, peer=True)
        world._end(world.agents[name], events.FAILED)
    world.run(12.0)
    ending = world.job.status.interruptions[0]
    assert (ending.cause, ending.attempt, ending.code) == (cause, 1, None)
    budgets = world.job.status.budgets
    assert (budgets.infrastructure, budgets.user_error) == ((), ())
    assert not any(event.reason == "Failed" for event in world.emitted)


@pytest.mark.parametrize(
    ("own", "idle", "stepped", "ends"),
    [
        (False, True, False, True),
        (False, False, False, False),  # an older agent, or one that can't tell
        (True, True, False, False),  # it ended as all agreed to: so do the others
        (False, True, True, False),  # there may be steps to save
    ],
)
def test_a_drain_of_an_attempt_that_has_not_begun(own: bool, idle: bool, stepped: bool, ends: bool) -> None:
    """Ranks that wait for one which the drain has ended are ended too, long before the window is over."""
    world = running()
    seen = world.step().status
    began = seen.attempt.first_step_at if stepped else None
    world.write(seen.model_copy(update={"attempt": seen.attempt.model_copy(update={"first_step_at": began})}))
    world.change_spec(suspend=True)
    world.step()
    agent = world.agents["train-2-1"]
    code = exitcodes.DRAINED if own else -15
    world._log(agent, events.RANK_EXITED, to_plain(RankExit(2, code, own, asked=True, idle=idle)))
    plan = world.step()
    stops = {a.worker for a in plan.actions if isinstance(a, SendRequest) and a.request.kind == REQUEST_STOP}
    assert bool(stops) is ends
    if ends:
        world.run(3.0)
        assert world.job.status.phase == "Suspended"
        assert world.job.status.interruptions[-1].planned
