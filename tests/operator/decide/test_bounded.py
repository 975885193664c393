"""Whatever ends attempts again and again without progress: a budget ends it, or the tries get ever rarer."""

from __future__ import annotations

from typing import Any, TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import SAMPLES_PER_STEP, FakeAgent, Group, World

from resumable_operator.decide.actions import Action, SendRequest
from resumable_operator.decide.failure import judge, of_leaving
from resumable_operator.model import AttemptStatus
from resumable_training.contract import events, exitcodes
from resumable_training.contract.assignment import ASKED_BY_RANKS, REQUEST_DRAIN
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import RankExit

BUDGETS = {
    "userError": {"limit": 3},
    "infrastructure": {"limit": 5},
    "preemption": {"limit": 5},
    "withoutProgress": 4,
}
MOST = 40  # endings in two minutes; at full speed there are hundreds
SECONDS = 120.0
CODES = (1, 3, *range(80, 90), 137, 143, -6, -9, -15)
FAULTS = ("crash", "kill_rank", "kill_worker", "kill_agent", "sigterm", "forming")


def world_of(workers: int, library: bool = True, kind: type[World] = World, **spec: Any) -> World:
    world = kind(
        {"workers": {"replicas": workers, "min": workers}, "recovery": {"budgets": BUDGETS}, **spec},
        capacity=workers,
        steps=10**6,
        save_every=10**6,
    )
    world.library = library
    return world


def is_drain(action: Action) -> TypeGuard[SendRequest]:
    return isinstance(action, SendRequest) and action.request.kind == REQUEST_DRAIN


def numbers(world: World) -> int:
    """Attempts so far."""
    return world.job.status.attempt.number


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("code", CODES)
def test_one_ending_again_and_again(code: int, library: bool, steps: int) -> None:
    """Each exit code, of a script with and without the library, before its first step and after some."""
    world = world_of(1, library)
    world.crash_code, world.crash_steps = code, steps
    end = world.now + SECONDS
    while world.now < end and not world.job.status.finished_at and numbers(world) <= MOST:
        world.step()
        world.tick()
    assert numbers(world) <= MOST
    slowed = world.job.status.backoff_count > 3
    assert slowed or world.job.status.phase == "Failed"


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(FAULTS), min_size=1, max_size=4),
    st.sampled_from(CODES),
    st.integers(1, 2),
    st.booleans(),
)
def test_any_endings_again_and_again(faults: list[str], code: int, workers: int, library: bool) -> None:
    """Any order of faults, over and over, each as soon as it can strike. (A SIGTERM to ranks with the library
    makes them save what they have done: progress.)"""
    world = world_of(workers, library)
    if library:
        faults = [fault for fault in faults if fault != "sigterm"] or ["crash"]
    struck = 0
    end = world.now + SECONDS
    while world.now < end and not world.job.status.finished_at and numbers(world) <= MOST:
        struck += strike(world, faults[struck % len(faults)], code)
        world.step()
        world.tick()
    assert numbers(world) <= MOST


def strike(world: World, fault: str, code: int) -> bool:
    """Do it, if there is an attempt to do it to."""
    attempt = world.job.status.attempt
    world.crash_code = code if fault == "crash" else None
    if fault == "crash":
        return attempt.state == "ended" and attempt.number > 0
    wanted = ("forming",) if fault == "forming" else ("running",)
    if attempt.state not in wanted:
        return False
    victim = attempt.members[0].worker
    agent = world.agents.get(victim)
    if agent is None or not agent.alive:
        return False
    if fault == "kill_rank":
        world.kill_rank(victim)
    elif fault == "kill_agent":
        world.kill_agent(victim)
    elif fault == "sigterm":
        world.sigterm(victim)
    else:
        world.kill_worker(victim)
    return True


class Restoring(World):
    """Its attempts say what they resumed. ``rolled_back``: the next one finds that a person chose it."""

    rolled_back = False

    def _report(self, first: FakeAgent, group: Group) -> None:
        if group.steps_done == 1:
            begun = group.step - 1
            told = {"step": begun, "samples": begun * SAMPLES_PER_STEP, "deliberate": self.rolled_back}
            name = f"step-{begun}" if begun or self.rolled_back else ""
            self._log(first, events.RESTORED, {"checkpoint": name, **told})
            self.rolled_back = False
        super()._report(first, group)


@pytest.mark.parametrize("word", [None, "startFresh", "rollback"])
@pytest.mark.parametrize("end", [*CODES, "kill_rank", "kill_worker"])
def test_each_new_checkpoint_is_damaged(end: int | str, word: str | None) -> None:
    """Attempts save, now at one step and now at another, and end; what they saved can't be resumed. That is
    no progress, however often; a person's word for where they begin counts once."""
    checkpoint = {"startFresh": word == "startFresh"}
    world = world_of(1, kind=Restoring, checkpoint=checkpoint)
    assert isinstance(world, Restoring)
    world.rolled_back = word == "rollback"
    world.crash_code, world.crash_steps = (end, 5) if isinstance(end, int) else (None, 0)
    until = world.now + SECONDS
    while world.now < until and not world.job.status.finished_at and numbers(world) <= MOST:
        world.save_every = 3 + numbers(world) % 2
        group = world.groups.get(numbers(world))
        if isinstance(end, str) and group is not None and group.steps_done >= 5:
            strike(world, end, 1)
        world.step()
        world.tick()
        world.committed = 0
    assert world.job.status.phase == "Failed"
    assert world.job.status.saved_samples == 4 * SAMPLES_PER_STEP


def test_a_member_lost_while_forming_again_and_again() -> None:
    """It costs nothing, since nothing had begun; the tries get ever rarer."""
    world = world_of(2)
    end = world.now + SECONDS
    while world.now < end and numbers(world) <= MOST:
        world.step()
        if world.job.status.attempt.state == "forming":
            world.kill_worker(world.job.status.attempt.members[0].worker)
        world.tick()
    assert 3 < numbers(world) < MOST
    assert world.job.status.backoff_count > 3


@pytest.mark.parametrize("tells_who_asked", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("library", [True, False])
def test_drained_unasked(workers: int, library: bool, tells_who_asked: bool) -> None:
    """An exit code that says drained, when nobody had asked, is the script's own error, and told as that.

    Other ranks are asked to follow; that is no sign that anybody asked, nor from agents that tell no more.
    """
    world = world_of(workers, library)
    world.tells_who_asked = tells_who_asked
    world.crash_code = exitcodes.DRAINED
    world.run(60.0, until="Failed")
    status = world.job.status
    assert status.interruption_counts == {"crash": 4}
    assert status.failure_class == "user"
    assert "nobody had asked it to drain" in status.reason
    requests = [action.request for plan in world.plans for action in plan.actions if is_drain(action)]
    assert {request.asked_by for request in requests} == ({ASKED_BY_RANKS} if workers > 1 else set())


def test_drained_as_an_operator_before_asked() -> None:
    """Its request is in no status; the agent that got it says so, another worker's ranks were not asked."""
    world = world_of(2)
    world.run(3.0)
    first, second = (member.worker for member in world.job.status.attempt.members)
    agent = world.agents[second]
    world._log(agent, events.DRAIN_REQUESTED, {"reason": "scale", "seconds": 5.0})
    agent.state = "draining"
    world.tick()
    assert world.agents[first].outcome == world.agents[second].outcome == events.DRAINED
    asked = [e.data["asked"] for a in world.agents.values() for e in a.log if e.kind == events.RANK_EXITED]
    assert sorted(asked) == [False, True]
    world.step()
    assert world.job.status.interruptions[-1].planned
    assert world.job.status.interruption_counts == {"drained": 1}


@pytest.mark.parametrize("asked", [None, True])
def test_an_older_agent_does_not_tell(asked: bool | None) -> None:
    """Whether it had asked its ranks is not known of it: they are believed, as before."""
    world = world_of(1)
    world.run(3.0)
    (agent,) = world.agents.values()
    exit_ = to_plain(RankExit(0, exitcodes.DRAINED, own=True, asked=asked))
    if asked is None:
        del exit_["asked"]
    world._log(agent, events.RANK_EXITED, exit_)
    agent.state, agent.outcome = "ended", events.DRAINED
    world._log(agent, events.ATTEMPT_ENDED, {"outcome": events.DRAINED})
    world.step()
    assert world.job.status.interruptions[-1].cause == "drained"


@pytest.mark.parametrize(("asked", "cause"), [(True, "drained"), (False, "crash")])
def test_who_asked_decides(asked: bool, cause: str) -> None:
    """The same exits: a drain if anybody had asked for one, else an error of the script, paid as one."""
    left = of_leaving(RankExit(1, exitcodes.DRAINED, own=True, asked=False), "w", 1.0)
    attempt = AttemptStatus(drain_cause="drained", drain_reason="w began", left=left, asked=asked)
    verdict = judge(attempt, committed=True, trained=True)
    assert verdict.cause == cause
    assert verdict.paying == (None if asked else "user_error")
