"""The loop: status before actions, actions about one worker in order, nothing lost when one fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from one_job import KEY, STOP, VALID, World, plan, running, until

from resumable_operator.cluster.port import Change
from resumable_operator.decide.actions import (
    CreateWorker,
    DeleteJob,
    DeleteWorker,
    EmitEvent,
    Plan,
    SendAssignment,
    SendRequest,
)
from resumable_operator.decide.claim import TAKE_OVER_SECONDS
from resumable_operator.decide.observation import Problem
from resumable_operator.errors import (
    ClusterRefused,
    ConflictError,
    FatalError,
    RetryableError,
    SpecError,
)
from resumable_operator.model import AttemptStatus, JobStatus, MemberStatus
from resumable_operator.status_times import share_of_interval
from resumable_training.contract import events
from resumable_training.contract.assignment import Assignment, Request
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import Event, RankExit

MOVING = AttemptStatus(number=1, state="running", first_step_at=1.0)


@pytest.fixture
def world() -> World:
    return World()


async def test_status_is_written_before_anything_is_done(world: World) -> None:
    """Reserve, then act."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), step=1, must_write=True)]
    await world.reconciler().step(KEY)
    assert world.cluster.done == ["write step 1", "create w-0-1"]


async def test_a_job_of_another_operator_is_left_alone(world: World) -> None:
    """Nothing is decided, written or done for it, which is said once; until that operator has ceased."""
    world.cluster.names = ("mine",)
    theirs = JobStatus(operator="theirs", operator_at=world.clock.now())
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, status=theirs)
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), step=1, must_write=True)]
    reconciler = world.reconciler()
    for _ in range(3):
        assert await reconciler.step(KEY) is None
    assert world.cluster.done == ["tell OtherOperator"]
    world.clock.time += TAKE_OVER_SECONDS
    await reconciler.step(KEY)
    assert world.cluster.done[1:] == ["write step 1", "create w-0-1"]
    assert world.seen[0].operator == "mine"


async def test_conflict_stops_the_pass(world: World) -> None:
    """When somebody else wrote first nothing is done: the world is looked at again."""
    world.cluster.conflicts = 1
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), step=1, must_write=True)]
    with pytest.raises(ConflictError):
        await world.reconciler().step(KEY)
    assert world.cluster.done == []


async def test_conflict_is_observed_again(world: World) -> None:
    """The loop looks again after a conflict, without being asked."""
    world.cluster.conflicts = 2
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), step=1, must_write=True)]
    await running(world.reconciler(), world, 3)
    assert world.cluster.done[:2] == ["write step 1", "create w-0-1"]


async def test_small_changes_wait(world: World) -> None:
    """A changed status that reserves nothing is written when the interval is over, the newest one."""
    reconciler = world.reconciler(status_seconds=30.0)
    world.plans = [plan(step=1), plan(step=2), plan(step=3)]
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    world.clock.time += 30.0
    await reconciler.step(KEY)
    assert world.cluster.done == ["write step 1", "write step 3"]


async def test_first_small_change_waits_a_share(world: World) -> None:
    """After a write for a reason, jobs differ in when they write what has none; later it is the interval."""
    reconciler = world.reconciler(status_seconds=40.0)
    world.plans = [plan(step=1, must_write=True), *(plan(step=step) for step in range(2, 6))]
    await reconciler.step(KEY)
    world.clock.time += 40.0 * share_of_interval(KEY) - 0.1
    await reconciler.step(KEY)
    assert world.cluster.done == ["write step 1"]
    world.clock.time += 0.2
    await reconciler.step(KEY)
    world.clock.time += 39.9
    await reconciler.step(KEY)
    assert world.cluster.done[1:] == ["write step 3"]
    world.clock.time += 0.2
    await reconciler.step(KEY)
    assert world.cluster.done[2:] == ["write step 5"]


async def test_how_often_is_written_follows_from_the_jobs_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that train; here one is very many."""
    monkeypatch.setattr("resumable_operator.status_times.ROUTINE_WRITES_A_SECOND", 0.01)
    reconciler = world.reconciler(status_seconds=30.0)
    waits = [Plan(JobStatus(step=step), (), "it waits", False) for step in (1, 2)]
    trains = [Plan(JobStatus(step=step, attempt=MOVING), (), "it trains", False) for step in range(3, 7)]
    world.plans = waits + trains
    for _ in range(5):
        await reconciler.step(KEY)
        world.clock.time += 60.0
    assert world.cluster.done == ["write step 1", "write step 2", "write step 3", "write step 4"]
    await reconciler.step(KEY)
    assert world.cluster.done[4:] == ["write step 6"]
    reconciler.queue.close()


async def test_a_first_step_is_told_early_in_any_fleet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many other jobs train."""
    monkeypatch.setattr("resumable_operator.status_times.ROUTINE_WRITES_A_SECOND", 0.001)
    reconciler = world.reconciler(status_seconds=0.06)
    reconciler._moving.update(f"ns/other-{number}" for number in range(10))
    world.agents._on_progress(KEY)
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    reconciler.queue.close()


def test_some_of_those_who_work_do_routines_beside_news(world: World) -> None:
    """A part of them, and two at least."""
    parts = [world.reconciler(jobs_at_once=number).queue.routines_beside_news for number in (4, 16, 40)]
    assert parts == [2, 4, 10]


async def test_unchanged_status_is_not_written(world: World) -> None:
    """A pass in which nothing happened writes nothing, must or not."""
    world.plans = [plan(must_write=True)]
    await world.reconciler().step(KEY)
    assert world.cluster.done == []


async def test_waiting_change_is_written_in_time(world: World) -> None:
    """Nothing else has to happen for a change to be written in the end."""
    world.plans = [plan(step=1, must_write=True), plan(step=2)]
    reconciler = world.reconciler(status_seconds=0.05)
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    assert world.cluster.done == ["write step 1"]
    world.clock.time += 0.05
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    reconciler.queue.close()


async def test_wake_up(world: World) -> None:
    """The job is looked at again when the plan says so, also when that time is just past."""
    for wake_at in (100.02, 99.0):
        world.plans = [plan(wake_at=wake_at)]
        reconciler = world.reconciler()
        await reconciler.step(KEY)
        assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
        reconciler.queue.close()


async def test_actions_about_one_worker_keep_their_order(world: World) -> None:
    """A request to a worker is sent before its deletion; a failed one holds back those behind it."""
    stop, delete = SendRequest("w-0-1", Request("stop")), DeleteWorker("w-0-1", 5.0, "lost")
    world.plans = [plan(stop, delete, DeleteWorker("w-1-1", 5.0, "lost"))]
    world.agents.unreachable = {"w-0-1"}
    await world.reconciler().step(KEY)
    assert world.cluster.done == ["delete w-1-1"]
    world.agents.unreachable = set()
    await world.reconciler().step(KEY)
    assert set(world.cluster.done[1:]) == {"delete w-0-1", "delete w-1-1"}


async def test_ranks_are_stopped_while_the_status_is_being_written(world: World) -> None:
    """Nothing has to be reserved to stop what is over: an API server that takes its time costs no time."""
    world.plans = [plan(STOP, CreateWorker("w-1-2", 1, 2), step=1, must_write=True)]
    order = world.cluster.done

    async def moment(name: str) -> None:
        if name == "write":
            await until(lambda: ("w-0-1", "stop") in world.agents.sent)
            order.append("stopped before the write")

    await world.reconciler(moment=moment).step(KEY)
    assert order == ["stopped before the write", "write step 1", "create w-1-2"]


async def test_assignments_wait_for_the_status(world: World) -> None:
    """Reserve, then act: what starts ranks is sent when it is written."""
    assignment = Assignment("ns/train", "uid", 1, "d", "w-0-1", (), "127.0.0.1", 1)
    world.plans = [plan(SendAssignment(assignment), step=1, must_write=True)]
    world.cluster.conflicts = 1
    reconciler = world.reconciler()
    with pytest.raises(ConflictError):
        await reconciler.step(KEY)
    assert world.agents.assigned == []
    await reconciler.step(KEY)
    assert world.agents.assigned == [assignment]


async def test_an_agent_that_does_not_answer_holds_up_no_pass(world: World) -> None:
    """Its job is decided upon meanwhile, without a second call; and looked at when the call has ended."""
    world.agents.mute["w-0-1"] = asyncio.Event()
    world.plans = [plan(STOP), plan(STOP, SendRequest("w-1-1", Request("stop", attempt=1))), plan()]
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    assert world.agents.sent == [("w-0-1", "stop"), ("w-1-1", "stop")]
    assert len(reconciler.queue) == 0
    world.agents.mute["w-0-1"].set()
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    reconciler.queue.close()


def member(place: int) -> MemberStatus:
    name = f"w-{place}-1"
    return MemberStatus(
        worker=name, place=place, incarnation=1, address="a", agent_port=1, first_rank=place, ranks=1
    )


async def test_a_failed_rank_ends_the_others_without_a_pass(world: World) -> None:
    """The agent's event alone does, as the attempt was left by the last pass; an older attempt's does not."""
    attempt = AttemptStatus(number=2, state="running", members=(member(0), member(1), member(2)))
    world.plans = [Plan(JobStatus(attempt=attempt), (), "", must_write=True)]
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    for number in (1, 2):
        exit_ = to_plain(RankExit(rank=1, code=-9, own=True))
        world.agents._on_event(KEY, "w-1-1", Event(number, 1, events.RANK_EXITED, number, "boot", exit_))
    await until(lambda: len(world.agents.sent) == 2)
    assert world.agents.sent == [("w-0-1", "stop"), ("w-2-1", "stop")]
    assert len(world.seen) == 1
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    reconciler.queue.close()


async def test_failed_action_is_tried_again(world: World) -> None:
    """A failing action does not stop others, and the next pass comes by itself."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), EmitEvent("Normal", "Started", "go"))]
    world.cluster.failures["create w-0-1"] = RetryableError("busy")
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    assert sorted(world.cluster.done) == ["create w-0-1", "tell Started"]
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    reconciler.queue.close()


async def test_changes_are_looked_at(world: World) -> None:
    """A change from the watch leads to a pass."""
    world.plans = [plan()]
    world.cluster.changes.put_nowait(Change(KEY, "worker"))
    await running(world.reconciler(), world, 1)
    assert world.seen[0].job.key == KEY


async def test_lost_changes_are_found_by_listing(world: World) -> None:
    """With a watch that says nothing every job is looked at again and again."""
    world.plans = [plan()]
    await running(world.reconciler(relist_seconds=0.01), world, 3)


async def test_job_that_is_gone(world: World) -> None:
    """A pass over a deleted job does nothing and forgets it."""
    world.cluster.stored = None
    assert await world.reconciler().step(KEY) is None


async def test_fatal_error_ends_the_loop(world: World) -> None:
    """What only a person can mend is raised out of ``run``, as itself."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1))]
    world.cluster.failures["create w-0-1"] = FatalError("broken installation")
    with pytest.raises(FatalError, match="broken installation"):
        await running(world.reconciler(), world, 100)


async def test_one_jobs_bug_does_not_end_all(world: World) -> None:
    """In a cluster an unexpected error is logged and the loop goes on; on one machine it is raised."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1))]
    world.cluster.failures["create w-0-1"] = ZeroDivisionError("a bug")
    await running(world.reconciler(isolate_jobs=True), world, 2)
    world.cluster.failures["create w-0-1"] = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        await running(world.reconciler(), world, 100)


# ---- what only a cluster has ----------------------------------------------------------------------------


async def test_the_spec_is_checked_when_that_is_due(world: World) -> None:
    """The decision sees what the cluster said of an unchecked spec; a checked one is not asked about."""
    problem = Problem("spec.template", "TemplateInvalid", "no image")
    world.cluster.problems = (problem,)
    checked = JobStatus(checked_generation=1, checked_at=100.0, conditions=(VALID,))
    world.plans = [Plan(checked, (), "", must_write=True)]
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    assert [seen.problems for seen in world.seen] == [(problem,), None]
    assert world.cluster.checks == 1


@pytest.mark.parametrize("error", [RetryableError("500"), ClusterRefused("Forbidden", "no rights")])
async def test_a_check_that_fails_stops_no_pass(world: World, error: Exception) -> None:
    """What can't be checked now is asked again later, not in every pass; the job is decided upon anyway."""
    world.cluster.problems = error
    world.plans = [plan(step=1, must_write=True)]
    reconciler = world.reconciler()
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    assert [seen.problems for seen in world.seen] == [None, None]
    assert world.cluster.checks == 1
    world.clock.time += 3.0
    world.cluster.problems = ()
    await reconciler.step(KEY)
    assert world.seen[-1].problems == ()


async def test_an_unreadable_job_is_told_and_harms_nobody(world: World) -> None:
    """A spec that can't be read is said on the job; nothing is decided and the loop goes on."""
    world.cluster.unreadable = SpecError("spec.workers.min", "must be a number")
    reconciler = world.reconciler()
    assert await reconciler.step(KEY) is None
    assert world.cluster.done == [f"invalid {KEY}"]
    world.cluster.unreadable = None
    world.plans = [plan()]
    assert await reconciler.step(KEY) is not None


async def test_a_refusal_is_seen_by_the_next_pass(world: World) -> None:
    """A refused creation stops the others of the pass; it is no failure, and the next pass sees it."""
    creates = [CreateWorker(f"w-{place}-1", place, 1) for place in range(3)]
    world.plans = [plan(*creates), plan(), plan(creates[0]), plan()]
    world.cluster.failures["create w-0-1"] = ClusterRefused("QuotaExceeded", "pods=0")
    reconciler = world.reconciler(actions_at_once=1)
    await reconciler.step(KEY)
    assert world.cluster.done == ["create w-0-1"]
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    await reconciler.step(KEY)
    refusal = world.seen[-1].refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message, refusal.at) == ("QuotaExceeded", "pods=0", 100.0)
    await reconciler.step(KEY)
    await reconciler.step(KEY)
    assert world.seen[-1].refusal is None, "a creation has worked since"
    reconciler.queue.close()


async def test_nodes_to_avoid_reach_the_cluster(world: World) -> None:
    """What is to be avoided is part of the request."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1, ("node-7",)))]
    await world.reconciler().step(KEY)
    assert world.cluster.done == ["create w-0-1 not on node-7"]


async def test_a_job_whose_time_is_over_is_deleted(world: World) -> None:
    """The job itself, through the cluster."""
    world.plans = [plan(DeleteJob("its time is over"))]
    await world.reconciler().step(KEY)
    assert world.cluster.done == ["delete job"]


async def test_progress_waits_for_the_next_write(world: World) -> None:
    """Reports of progress do not make a pass each: status is written now and then anyway."""
    world.plans = [plan()]
    reconciler = world.reconciler(status_seconds=0.06)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(50):
        world.agents._on_progress(KEY)
    assert len(reconciler.queue) == 0
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    assert loop.time() - began >= 0.009
    assert len(reconciler.queue) == 0
    reconciler.queue.close()


async def test_progress_of_a_job_that_moves_waits_for_its_status(world: World) -> None:
    """After an attempt's first step, which is told soon, a pass for progress before the next write is for
    nothing; it is a routine, too."""
    world.plans = [Plan(JobStatus(attempt=MOVING), (), "because", must_write=True)]
    reconciler = world.reconciler(status_seconds=0.5)
    await reconciler.step(KEY)
    loop = asyncio.get_running_loop()
    began = loop.time()
    world.agents._on_progress(KEY)
    eager = asyncio.create_task(reconciler.queue.get(news_only=True))
    assert await asyncio.wait_for(reconciler.queue.get(), 5) == KEY
    assert loop.time() - began >= 0.9 * 0.5 * share_of_interval(KEY)
    assert not eager.done()
    eager.cancel()
    reconciler.queue.close()


async def test_jobs_are_looked_at_one_after_the_other(world: World) -> None:
    """All at the start; then each once in the time, and never all together."""
    looked: list[float] = []
    world.plans = [plan()] * 100
    reconciler = world.reconciler(relist_seconds=0.2)
    world.cluster.jobs_to_list = ("ns/a", "ns/b", KEY)
    loop = asyncio.get_running_loop()
    add = reconciler.queue.add

    def note(key: str, *, routine: bool = False) -> None:
        if routine and key == "ns/a":
            looked.append(loop.time())
        add(key, routine=routine)

    reconciler.queue.add = note  # type: ignore[method-assign]
    task = asyncio.create_task(reconciler.run())
    async with asyncio.timeout(10):
        while len(looked) < 3:
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert looked[2] - looked[1] >= 0.15


async def test_another_job_of_the_same_name_inherits_nothing(world: World) -> None:
    """Deleted and made again before anybody looked: it was refused nothing, and its status is written."""
    world.plans = [plan(CreateWorker("w-0-1", 0, 1), step=1, must_write=True), plan(step=2)]
    world.cluster.failures["create w-0-1"] = ClusterRefused("QuotaExceeded", "pods=0")
    reconciler = world.reconciler(status_seconds=1000.0)
    await reconciler.step(KEY)
    assert world.cluster.stored is not None
    world.cluster.stored = replace(world.cluster.stored, uid="another")
    await reconciler.step(KEY)
    assert world.seen[-1].refusal is None
    assert world.cluster.done[-1] == "write step 2"
    reconciler.queue.close()


async def test_what_was_looked_at_is_not_looked_at_for_the_list(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed job gets a pass of its own only when it has had none for as long as lists are apart."""
    world.plans = [plan()]
    world.cluster.jobs_to_list = (KEY, "ns/other")
    reconciler = world.reconciler(relist_seconds=3600.0)
    await reconciler.step(KEY)
    routines: list[str] = []
    add = reconciler.queue.add

    def noted(key: str, *, routine: bool = False) -> None:
        routines.extend([key] if routine else [])
        add(key, routine=routine)

    monkeypatch.setattr(reconciler.queue, "add", noted)
    task = asyncio.create_task(reconciler.run())
    try:
        async with asyncio.timeout(10):
            while not routines:
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert routines == ["ns/other"]
