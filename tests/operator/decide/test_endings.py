"""Unplanned ends: one cause each, survivors reused, the right budget charged, and when a job gives up."""

from __future__ import annotations

import pytest
from world import World

from resumable_operator.decide.actions import SendRequest
from resumable_training.contract import exitcodes
from resumable_training.contract.metrics import INTERRUPTION_CAUSES


def running(capacity: int | None = 3, **recovery: object) -> World:
    spec = {"workers": {"replicas": 3, "min": 1}, "recovery": recovery}
    world = World(spec, capacity=capacity, steps=100_000, save_every=15)
    world.run(2.0)
    assert world.job.status.phase == "Running"
    return world


def last(world: World) -> tuple[str, str, int | None, int | None]:
    ending = world.job.status.last_interruption
    assert ending is not None
    return ending.cause, ending.worker, ending.rank, ending.code


def test_a_killed_rank_restarts_in_place() -> None:
    """A rank dies: the same workers go on in the next attempt, and the first failure is kept."""
    world = running()
    world.kill_rank("train-1-1", 1, tail=("Traceback", "ValueError: bad"))
    world.run(1.0)
    status = world.job.status
    assert last(world) == ("crash", "train-1-1", 1, 1)
    assert status.last_interruption is not None
    assert status.last_interruption.tail == ("Traceback", "ValueError: bad")
    assert sorted(world.agents) == ["train-0-1", "train-1-1", "train-2-1"]
    assert status.attempt.number == 2
    assert len(status.budgets.user_error) == 1


def test_a_killed_worker_is_replaced_under_a_new_name() -> None:
    """A lost worker's place gets a new incarnation; the others keep theirs."""
    world = running()
    world.kill_worker("train-1-1")
    world.run(3.0)
    assert last(world)[0] == "node_lost"
    assert {member.worker for member in world.job.status.attempt.members} == {
        "train-0-1",
        "train-1-2",
        "train-2-1",
    }
    assert world.job.status.incarnations == {"0": 1, "1": 2, "2": 1}


def test_without_room_it_goes_on_smaller_at_once_and_grows_later() -> None:
    """No replacement can exist: smaller now; when there is room again, one growth after the cool-down."""
    world = running(growCooldownSeconds=3.0)
    world.kill_worker("train-1-1")
    world.capacity = 2
    died = world.now
    world.run(1.0)
    reserved = world.job.status.attempt
    assert (reserved.number, len(reserved.members)) == (2, 2)
    assert reserved.reserved_at - died < 0.5
    world.capacity = 3
    world.run(1.5)
    assert world.job.status.size == 2, "not before the cool-down"
    world.run(6.0)
    assert world.job.status.size == 3
    assert world.job.status.attempt.number == 3
    ending = world.job.status.interruptions[0]
    assert (ending.size_before, ending.size_after) == (3, 2)
    assert ending.recover_seconds is not None
    assert world.job.status.interruptions[1].cause == "scale"
    assert world.job.status.interruptions[1].planned


def test_what_keeps_a_job_small_is_told() -> None:
    """Workers for a larger size are ready: where the job stands is why it does not take them yet."""
    world = running(growCooldownSeconds=30.0)
    world.kill_worker("train-1-1")
    world.capacity = 2
    world.run(3.0)
    assert world.job.status.reason == "attempt 2 is running with 2 workers"
    world.capacity = 3
    world.run(3.0)
    why = "cooling down for 30 s since the last restart"
    assert world.job.status.reason == f"could grow from 2 to 3 workers: {why}"


def test_a_job_that_started_small_cools_down_since_its_start() -> None:
    """It has not restarted yet."""
    world = running(capacity=2, growCooldownSeconds=60.0, shrinkAfterSeconds=0.0)
    world.capacity = 3
    world.run(3.0)
    assert world.job.status.attempt.number == 1
    assert world.job.status.reason == "could grow from 2 to 3 workers: cooling down for 60 s since the start"


def test_any_restart_begins_the_cool_down_anew() -> None:
    """The time counts from when the ranks were last started, not from the last growth."""
    world = running(capacity=2, growCooldownSeconds=20.0, shrinkAfterSeconds=0.0)
    world.run(15.0)
    world.kill_rank("train-1-1", 1)
    world.capacity = 3
    world.run(15.0)
    assert (world.job.status.attempt.number, world.job.status.size) == (2, 2)
    world.run(15.0)
    assert world.job.status.size == 3


def test_a_recovery_that_was_suspended_did_not_take_that_long() -> None:
    """Interrupted, and suspended before it trained again: the suspended time is no part of any recovery."""
    world = running()
    world.kill_worker("train-1-1")
    world.step()
    world.change_spec(suspend=True)
    world.run(60.0)
    assert world.job.status.phase == "Suspended"
    world.change_spec(suspend=False)
    world.run(5.0)
    assert world.job.status.phase == "Running"
    (lost, *_) = world.job.status.interruptions
    assert lost.cause == "node_lost"
    assert lost.recover_seconds is not None
    assert lost.recover_seconds < 10.0
    suspended = world.job.status.ledger.phases["suspended"]
    assert suspended > 50_000
    restarts = [ending.recover_seconds for ending in world.job.status.interruptions]
    assert max(second or 0.0 for second in restarts) < 10.0


def test_growing_takes_all_at_once() -> None:
    """Workers that come one after the other cause one growth."""
    world = running(growCooldownSeconds=5.0)
    world.capacity = 1
    world.kill_worker("train-1-1")
    world.kill_worker("train-2-1")
    world.run(2.0)
    assert world.job.status.size == 1
    world.capacity = 2
    world.run(2.0)
    world.capacity = 3
    world.run(15.0)
    assert world.job.status.size == 3
    assert world.job.status.interruption_counts == {"node_lost": 1, "scale": 1}


def test_a_hang_is_found_and_its_time_is_detection() -> None:
    """All of the wait before a hang is declared counts as detecting."""
    world = running()
    world.hang("train-2-1")
    world.run(5.0)
    assert last(world)[0] == "hang"
    detected = world.job.status.last_interruption
    assert detected is not None
    assert detected.detect_seconds == pytest.approx(2.0, abs=0.3)
    assert world.job.status.ledger.phases["detecting"] == pytest.approx(2000, abs=300)


@pytest.mark.parametrize(("fault", "explained"), [("hang", True), ("kill_rank", False)])
def test_ranks_that_waited_for_a_hang_say_where(fault: str, explained: bool) -> None:
    """The members that are stopped after a hang write their ranks' stacks first; after a crash they don't."""
    world = running()
    getattr(world, fault)("train-2-1")
    world.run(5.0)
    stops = [
        action.request
        for plan in world.plans
        for action in plan.actions
        if isinstance(action, SendRequest) and action.request.kind == "stop"
    ]
    assert stops
    assert {request.with_stacks for request in stops} == {explained}


def test_a_user_error_fails_at_once() -> None:
    """USER_ERROR: retrying is pointless; the message is the rank's own."""
    world = World({"workers": {"replicas": 1}}, capacity=1)
    world.crash_code = exitcodes.USER_ERROR
    world.run(5.0)
    status = world.job.status
    assert (status.phase, status.failure_class, status.attempt.number) == ("Failed", "user", 1)
    assert "ValueError: boom" in status.reason


def test_a_script_that_fails_at_import_ends_after_its_budget() -> None:
    """Four identical crashes with limit 3: failed as a user error, with the traceback once."""
    world = World({"workers": {"replicas": 1}}, capacity=1)
    world.crash_code = 1
    world.run(20.0)
    status = world.job.status
    assert (status.phase, status.failure_class) == ("Failed", "user")
    assert status.attempt.number == 4
    assert status.reason.count("ValueError: boom") == 1
    assert "limit 3" in status.reason
    failed = [event for event in world.emitted if event.reason == "Failed"]
    assert len(failed) == 1


def test_endings_without_progress_end_the_job() -> None:
    """Crashes at the same step with no new checkpoint stop the job although no budget is spent."""
    world = World(
        {
            "workers": {"replicas": 1},
            "recovery": {"budgets": {"userError": {"limit": 100}, "withoutProgress": 3}},
        },
        capacity=1,
    )
    world.crash_code = 1
    world.run(20.0)
    assert world.job.status.failure_class == "budget"
    assert "without a new checkpoint" in world.job.status.reason
    assert world.job.status.attempt.number == 3


def test_months_of_preemptions_do_not_end_a_job_that_gets_on() -> None:
    """Progress gives budgets back."""
    world = running(budgets={"preemption": {"limit": 1}})
    for _ in range(4):
        victim = world.job.status.attempt.members[0].worker
        world.sigterm(victim)
        world.run(6.0)
    assert world.job.status.phase == "Running"
    assert world.job.status.interruption_counts == {"preempted": 4}


def test_a_taken_port_repeats_for_free() -> None:
    """MASTER_BIND costs nothing; the first repeat is immediate, later ones ever slower."""
    world = World({"workers": {"replicas": 1}}, capacity=1, steps=20)
    world.crash_code = exitcodes.MASTER_BIND
    world.run(1.0)
    assert world.job.status.attempt.number == 2
    world.run(20.0)
    assert 3 < world.job.status.attempt.number < 10
    assert world.job.status.budgets.infrastructure == ()
    world.crash_code = None
    world.run(60.0, until="Succeeded")
    assert world.job.status.phase == "Succeeded"
    assert world.job.status.backoff_count == 0


def test_storage_trouble_backs_off_and_is_infrastructure() -> None:
    """A store that can't be read is nobody's fault: retried ever more slowly, charged to infrastructure."""
    world = World({"workers": {"replicas": 1}}, capacity=1)
    world.crash_code = exitcodes.STORAGE
    world.run(30.0)
    status = world.job.status
    assert status.attempt.number < 10
    assert len(status.budgets.infrastructure) == status.interruption_counts["unknown"]


def test_a_store_that_takes_nothing_more_slows_its_job_down() -> None:
    """Each attempt does its steps and can't save them: with pauses that grow, until a checkpoint lands."""
    world = World({"workers": {"replicas": 1}}, capacity=1, steps=10_000, save_every=1000)
    world.crash_code, world.crash_steps = exitcodes.STORAGE, 5
    world.run(120.0)
    status = world.job.status
    assert status.attempt.first_step_at is not None
    assert 5 <= status.attempt.number <= 12
    world.save_every = 3
    world.run(70.0)
    number = world.job.status.attempt.number
    world.run(10.0)
    assert world.job.status.attempt.number > number + 3  # it gets on: nothing slows it down


def test_two_faults_in_a_row_are_two_endings() -> None:
    """A worker lost while the next attempt forms ends that one too, free of charge."""
    world = running()
    world.kill_worker("train-1-1")
    world.capacity = 2
    world.step()
    while world.job.status.attempt.number < 2:
        world.tick()
        world.step()
    assert world.job.status.attempt.state == "forming"
    world.kill_worker("train-0-1")
    world.run(1.4)
    status = world.job.status
    assert [ending.attempt for ending in status.interruptions] == [1, 2]
    assert {ending.cause for ending in status.interruptions} == {"node_lost"}
    assert len(status.budgets.infrastructure) == 1
    assert status.phase == "Running"


def test_all_workers_at_once() -> None:
    """Everything dies: one ending, everything is replaced, the job goes on from its checkpoint."""
    world = running()
    saved = world.committed
    for name in list(world.agents):
        world.kill_worker(name)
    world.run(4.0)
    status = world.job.status
    assert (status.phase, status.attempt.number) == ("Running", 2)
    assert status.interruption_counts == {"node_lost": 1}
    assert world.groups[2].start == saved


def test_every_cause_is_a_known_word() -> None:
    """Metrics export closed enumerations."""
    world = running()
    world.kill_rank("train-0-1", exitcodes.SUPERSEDED)
    world.run(2.0)
    world.kill_rank("train-0-1", exitcodes.START_TIMEOUT)
    world.run(4.0)
    assert set(world.job.status.interruption_counts) <= set(INTERRUPTION_CAUSES)
