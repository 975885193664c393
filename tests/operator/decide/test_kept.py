"""A job that was stopped on purpose says what it has not kept, and promises no more than there is."""

from __future__ import annotations

from typing import Any

import pytest
from world import World

from resumable_operator.cli import exitcodes
from resumable_operator.decide.conditions import condition
from resumable_operator.decide.kept import suspended_text, unsaved
from resumable_operator.model import AttemptStatus, CheckpointStatus, Interruption, JobStatus
from resumable_training.contract import events

CRASH = Interruption(attempt=2, cause="unknown", message="rank 0 exited with code 85\nand more", at=30.0)
DRAIN = Interruption(attempt=2, cause="suspend", planned=True, message="spec.suspend is set", at=30.0)


def stopped(
    step: int = 15,
    made: tuple[int, float] | None = (10, 12.0),
    ending: Interruption = CRASH,
    restored: bool = True,
    **changes: Any,
) -> JobStatus:
    """Attempt 2 of a job went on from step 5 at 10.0 and drained; ``made``: step and time of a checkpoint."""
    attempt = AttemptStatus(
        number=2,
        reserved_at=10.0,
        start_step=5,
        restored=restored,
        drain_cause="suspend",
        drain_reason="spec.suspend is set",
    )
    checkpoint = CheckpointStatus(name="c", step=made[0], samples=1, at=made[1]) if made else None
    fields: dict[str, Any] = {
        "phase": "Suspended",
        "step": step,
        "attempt": attempt,
        "checkpoint": checkpoint,
        "interruptions": (ending,),
        "uses_library": True,
    }
    return JobStatus(**{**fields, **changes})


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (stopped(), "steps 11 to 15 are in no checkpoint: rank 0 exited with code 85"),
        (stopped(11), "step 11 is in no checkpoint: rank 0 exited with code 85"),
        (stopped(made=(15, 20.0), ending=DRAIN), ""),
        (stopped(made=(10, 20.0), ending=DRAIN), "steps 11 to 15 are in no checkpoint"),
        (stopped(made=(15, 3.0), ending=DRAIN), ""),  # by a clock that was set back
        (stopped(5, made=None), ""),  # it did nothing that it had not found
        (stopped(7, made=None), "steps 6 to 7 are in no checkpoint: rank 0 exited with code 85"),
        (stopped(7, made=(40, 3.0)), "steps 6 to 7 are in no checkpoint: rank 0 exited with code 85"),
        (stopped(uses_library=False), ""),
        (stopped(made=(15, 3.0), restored=False), ""),  # it had not begun: the step is of the one before
        (
            stopped(attempt=AttemptStatus(number=2, reserved_at=10.0, start_step=5, restored=True)),
            "",
        ),  # it crashed before
    ],
    ids=[
        "failed",
        "one",
        "all",
        "older landed",
        "clock",
        "none",
        "none made",
        "rolled back",
        "opaque",
        "not begun",
        "crash",
    ],
)
def test_what_is_in_no_checkpoint_is_told(status: JobStatus, said: str) -> None:
    """By step, with the reason; the exit code of `rtj run` and the job's condition follow."""
    assert unsaved(status) == said
    assert exitcodes.for_status(status) == (exitcodes.UNSAVED if said else exitcodes.DRAINED)
    assert suspended_text(status) == "suspended by spec.suspend" + (f"; {said}" if said else "")


@pytest.mark.parametrize("hangs", [False, True])
def test_a_suspended_job_tells_what_it_lost(hangs: bool) -> None:
    """In its condition and reason: nothing where ranks save in time, else which steps, and why."""
    world = World(
        {"workers": {"replicas": 1}, "recovery": {"drainSeconds": 1.0}},
        capacity=1,
        steps=100_000,
        save_every=1000,
    )
    world.run(2.0)
    if hangs:
        world.agents["train-0-1"].hung_since = world.now + 1000
    world.change_spec(suspend=True)
    world.run(4.0)
    status = world.job.status
    assert status.phase == "Suspended"
    told = condition(status, "Suspended")
    assert told is not None
    lost = f" to {status.step} are in no checkpoint: the window of 1.0 s was over"
    assert (lost in told.message, lost in status.reason) == (hangs, hangs)


def test_an_attempt_that_had_not_begun_lost_nothing() -> None:
    """Suspended again while its ranks still load: the checkpoint of the one before has all that was done."""
    world = World({"workers": {"replicas": 1}, "recovery": {"drainSeconds": 1.0}}, capacity=1, steps=100_000)
    world.run(3.0)
    world.change_spec(suspend=True)
    world.run(3.0)
    assert world.job.status.step > 0
    world.change_spec(suspend=False)
    for _ in range(20):  # its ranks come up, and no further
        world.step()
        for agent in world.agents.values():
            agent.hung_since = world.now + 1000
        world.tick()
    assert (world.job.status.attempt.number, world.job.status.attempt.state) == (2, "running")
    world.change_spec(suspend=True)
    world.run(5.0)
    status = world.job.status
    assert (status.phase, status.attempt.restored) == ("Suspended", False)
    assert unsaved(status) == ""


@pytest.mark.parametrize("lands", [True, False])
def test_what_its_dead_ranks_had_copied_is_waited_for(lands: bool) -> None:
    """A rank dies in a drain that stops the job: its copy may still land, and then nothing was lost."""
    world = World({"workers": {"replicas": 1}}, capacity=1, steps=10**6, save_every=10**6)
    world.run(3.0)
    world.write(world.step().status)
    (agent,) = world.agents.values()
    done = world.job.status.step
    assert done > 0
    world.change_spec(suspend=True)
    world.step()
    world._rank_exit(agent, -9)
    agent.state, agent.outcome = "ended", events.FAILED
    world._log(agent, events.ATTEMPT_ENDED, {"outcome": events.FAILED, "storing": True})
    world.run(1.0)
    assert world.job.status.attempt.state == "ending"
    if lands:
        told = {"step": done, "samples": done * 8, "checkpoint": "step-00000099.1"}
        world._log(agent, events.CHECKPOINT, told)
    world.run(1.0 if lands else 6.0, until="Suspended")
    assert world.job.status.phase == "Suspended"
    assert (f"to {done} are in no checkpoint" in unsaved(world.job.status)) is not lands
