"""When a job is done, what is cleaned up, and what happens to it later."""

from __future__ import annotations

import pytest
from world import World

from resumable_operator.decide.actions import DeleteWorker, SendRequest
from resumable_training.contract import events, exitcodes


def finishing(capacity: int | None = 2, **spec: object) -> World:
    world = World({"workers": {"replicas": 2, "min": 1}, **spec}, capacity=capacity, steps=15)
    while 1 not in world.groups or world.groups[1].step < 14:
        world.step()
        world.tick()
    return world


def test_all_ranks_returned_zero() -> None:
    """Every rank returned 0: succeeded, workers ended, the ledger closed at the end."""
    world = finishing()
    world.run(5.0)
    status = world.job.status
    assert status.phase == "Succeeded"
    assert all(agent.phase == "succeeded" for agent in world.agents.values())
    assert status.finished_at is not None
    assert status.ledger.settled_at == round(status.finished_at * 1000)
    assert status.interruptions == ()
    assert {c.type for c in status.conditions if c.status == "True"} == {"Succeeded", "Valid"}
    assert world.plans[-1].actions == ()


def test_one_worker_done_is_not_the_job_done() -> None:
    """As long as a rank of the attempt has not returned 0, the job has not succeeded."""
    world = finishing()
    first = world.agents["train-0-1"]
    world._rank_exit(first, 0)
    first.state, first.outcome = "ended", events.SUCCEEDED
    world._log(first, events.ATTEMPT_ENDED, {"outcome": events.SUCCEEDED})
    world.run(3.0)
    assert world.job.status.phase == "Running"


def leave_and_lose(world: World, peer_first: bool, in_loop: bool) -> None:
    """Rank 0 returns 0, and rank 1 loses it as a peer, ``in_loop`` or behind its end."""
    first, second = world.agents["train-0-1"], world.agents["train-1-1"]

    def leave() -> None:
        world._rank_exit(first, 0)
        first.state, first.outcome = "ended", events.SUCCEEDED
        world._log(first, events.ATTEMPT_ENDED, {"outcome": events.SUCCEEDED})

    def lose() -> None:
        world._rank_exit(second, exitcodes.PEER_LOST, peer=True, in_loop=in_loop)
        second.state, second.outcome = "ended", events.FAILED
        world._log(second, events.ATTEMPT_ENDED, {"outcome": events.FAILED})

    for happen in (lose, leave) if peer_first else (leave, lose):
        happen()
        world.step()
        world.tick()


@pytest.mark.parametrize("peer_first", [False, True], ids=["rank 0 first", "peer first"])
def test_a_peer_that_fails_after_rank_zero_left_is_no_crash(peer_first: bool) -> None:
    """Rank 0 returned 0 after the final commit; a rank that lost its peer then does not undo the success."""
    world = finishing()
    leave_and_lose(world, peer_first, in_loop=False)
    world.run(1.0)
    assert world.job.status.phase == "Succeeded"
    assert world.job.status.interruptions == ()


def test_a_rank_that_fails_by_itself_after_rank_zero_left_is_a_crash() -> None:
    """Its own error is not excused."""
    world = finishing()
    first, second = world.agents["train-0-1"], world.agents["train-1-1"]
    world._rank_exit(first, 0)
    first.state, first.outcome = "ended", events.SUCCEEDED
    world._log(first, events.ATTEMPT_ENDED, {"outcome": events.SUCCEEDED})
    world._rank_exit(second, 1)
    second.state, second.outcome = "ended", events.FAILED
    world._log(second, events.ATTEMPT_ENDED, {"outcome": events.FAILED})
    world.run(1.0)
    assert world.job.status.interruption_counts == {"crash": 1}


def test_a_worker_lost_after_rank_zero_left_took_nothing_along() -> None:
    """All ranks met at the barrier before rank 0 returned 0."""
    world = finishing()
    first = world.agents["train-0-1"]
    world._rank_exit(first, 0)
    first.state, first.outcome = "ended", events.SUCCEEDED
    world._log(first, events.ATTEMPT_ENDED, {"outcome": events.SUCCEEDED})
    second = world.agents["train-1-1"]
    second.phase, second.exit_code, second.state = "failed", -9, "ended"
    world.run(1.0)
    assert world.job.status.phase == "Succeeded"


def test_agents_are_asked_to_end_then_deleted() -> None:
    """A finished job's agents get a shutdown; one that does not end is deleted."""
    world = finishing()
    world.run(5.0, until="Succeeded")
    plan = world.plans[-1]
    kinds = {a.request.kind for a in plan.actions if isinstance(a, SendRequest)}
    assert kinds == {"shutdown"}
    deaf = next(iter(world.agents.values()))
    deaf.phase = "running"
    world.tick(11.0)
    plan = world.step()
    assert [a.name for a in plan.actions if isinstance(a, DeleteWorker)] == [deaf.name]


def test_logs_stay_until_the_time_to_live_is_over() -> None:
    """Ended workers keep their logs as long as the job is there; ttlSecondsAfterFinished deletes it."""
    world = finishing(ttlSecondsAfterFinished=30.0)
    world.run(20.0)
    assert len(world.agents) == 2
    plan = world.plans[-1]
    assert plan.wake_at == pytest.approx((world.job.status.finished_at or 0) + 30.0)
    assert not world.job_deleted
    world.run(20.0)
    assert world.job_deleted
    assert len(world.agents) == 2


def test_success_during_a_drain() -> None:
    """The last step is done while a drain is asked for: the job has succeeded, not been suspended."""
    world = finishing()
    world.change_spec(suspend=True)
    world.step()
    world._all_end(list(world.agents.values()), 0, events.SUCCEEDED)
    world.run(1.0)
    assert world.job.status.phase == "Succeeded"


@pytest.mark.parametrize("peer_first", [False, True], ids=["rank 0 first", "peer first"])
def test_rank_zero_that_leaves_while_others_train_has_not_finished(peer_first: bool) -> None:
    """A `break` or an exit of its own in the middle of the loop: the steps that are left must be done."""
    world = finishing()
    leave_and_lose(world, peer_first, in_loop=True)
    world.run(5.0)
    status = world.job.status
    assert status.interruption_counts == {"crash": 1}
    assert "rank 0 on train-0-1 returned 0 while others trained on" in status.interruptions[0].message
    assert status.attempt.number == 2
