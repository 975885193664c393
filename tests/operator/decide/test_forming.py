"""From ready workers to a running attempt: who takes part, and what happens when one stays mute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.actions import Plan, SendAssignment
from resumable_operator.decide.membership import choose_members
from resumable_operator.decide.observation import Worker
from resumable_operator.model import MemberStatus
from resumable_training.contract import env


def ready(place: int, incarnation: int = 1) -> Worker:
    name = f"w-{place}-{incarnation}"
    return Worker(name, place, incarnation, "running", address=f"10.0.0.{place}", agent_port=9000)


def member(place: int, incarnation: int = 1) -> MemberStatus:
    return choose_members([ready(place, incarnation)], 1, (), 1)[0]


def test_warm_workers_first() -> None:
    """Who took part before takes part again; ranks still go by place."""
    chosen = choose_members([ready(0), ready(1), ready(2)], 2, (member(1), member(2)), 1)
    assert [(m.worker, m.first_rank) for m in chosen] == [("w-1-1", 0), ("w-2-1", 1)]


def test_a_new_incarnation_is_not_warm() -> None:
    """A replacement has nothing of its predecessor."""
    chosen = choose_members([ready(0, 2), ready(1), ready(2)], 2, (member(0), member(1), member(2)), 1)
    assert [m.worker for m in chosen] == ["w-1-1", "w-2-1"]


@given(places=st.sets(st.integers(0, 20), min_size=1), ranks=st.integers(1, 8), data=st.data())
def test_ranks_are_a_partition(places: set[int], ranks: int, data: st.DataObject) -> None:
    """Ranks 0..n-1, each once, in order of place, whatever order the workers come in."""
    workers = data.draw(st.permutations([ready(place) for place in places]))
    size = data.draw(st.integers(1, len(places)))
    chosen = choose_members(workers, size, (), ranks)
    assert len(chosen) == size
    assert [m.first_rank for m in chosen] == [ranks * n for n in range(size)]
    assert [m.place for m in chosen] == sorted(m.place for m in chosen)


# ---- who is told when ------------------------------------------------------------------------------------


def sent(plan: Plan) -> list[tuple[str, int]]:
    """To whom, with which master port."""
    actions = [action for action in plan.actions if isinstance(action, SendAssignment)]
    return [(action.assignment.worker, action.assignment.master_port) for action in actions]


def recovering(world: World) -> Plan:
    """The plan that reserves attempt 2, after a rank of a running attempt 1 was killed."""
    world.run(2.0)
    assert world.job.status.phase == "Running"
    world.kill_rank("train-1-1")
    for _ in range(50):
        plan = world.step()
        if plan.status.attempt.number == 2:
            return plan
        world.tick()
    raise AssertionError("no attempt 2")


def test_all_are_told_at_once() -> None:
    """Rank 0's agent holds a port ready: it is reserved with the attempt, and the same pass tells all."""
    world = World({"workers": {"replicas": 3}}, steps=100_000)
    before = world.job.status.attempt.master_port
    plan = recovering(world)
    port = plan.status.attempt.master_port
    assert port not in (0, before)
    assert sent(plan) == [("train-0-1", port), ("train-1-1", port), ("train-2-1", port)]
    assert plan.must_write


def test_without_a_held_port_rank_zeros_agent_is_asked_first() -> None:
    """An agent of an older version says nothing of a port: it chooses one, and with its answer the others are
    told."""
    world = World({"workers": {"replicas": 3}}, steps=100_000)
    world.holds_ports = False
    plan = recovering(world)
    assert sent(plan) == [("train-0-1", 0)]
    world.tick()
    plan = world.step()
    port = world.agents["train-0-1"].master_port
    assert sent(plan) == [("train-1-1", port), ("train-2-1", port)]


@pytest.mark.parametrize("told", ["the same as before", -1, 65536])
def test_a_port_that_can_be_no_fresh_one_is_not_used(told: str | int) -> None:
    """Each attempt gets a fresh port: a state from before, or nonsense, is not relied on."""
    world = World({"workers": {"replicas": 2}}, steps=100_000)
    world.run(2.0)
    used = world.job.status.attempt.master_port
    world.agents["train-0-1"].next_port = used if isinstance(told, str) else told
    assert sent(recovering(world)) == [("train-0-1", 0)]


def test_what_scripts_without_the_library_are_offered_is_looked_for_first() -> None:
    """All ranks resume from one checkpoint: rank 0's agent finds it, though the port is known before."""
    world = World({"workers": {"replicas": 2}, "checkpoint": {"directory": {"path": "/store"}}})
    world.library = False
    plan = recovering(world)
    port = plan.status.attempt.master_port
    assert port
    assert sent(plan) == [("train-0-1", port)]
    world.agents["train-0-1"].resume_from = "/store/step-3"
    world.tick()
    (action,) = [a for a in world.step().actions if isinstance(a, SendAssignment)]
    assert action.assignment.worker == "train-1-1"
    assert action.assignment.env == {env.RESUME_FROM: "/store/step-3"}


def test_a_restarted_operator_tells_the_port_that_was_reserved() -> None:
    """Killed between the reservation and its sending: the port is in status, everybody gets the same."""
    world = World({"workers": {"replicas": 2}}, steps=100_000)
    world.run(2.0)
    world.kill_rank("train-1-1")
    while world.job.status.attempt.number == 1:
        world.tick()
        world.step(crash_after=1)
    port = world.job.status.attempt.master_port
    world.agents["train-0-1"].next_port += 7  # it has let go of that one meanwhile
    world.tick()
    assert [told for _, told in sent(world.step())] == [port, port]


def test_a_mute_member_is_given_up() -> None:
    """A member that does not take its assignment for a minute is replaced; the attempt costs nothing."""
    world = World({"workers": {"replicas": 2, "min": 1}}, capacity=2, steps=100_000)
    world.run(0.4)
    deaf = world.agents["train-1-1"]
    deaf.terminating = True  # refuses assignments, without telling
    deaf.shown, deaf.shown_state = 0, world._state(deaf)
    deaf.shown_state = type(deaf.shown_state)(**{**vars(deaf.shown_state), "terminating": False})
    deaf.state = "running"
    world.run(30.0)
    assert world.job.status.attempt.state == "forming"
    world.run(40.0)
    status = world.job.status
    assert "did not take its assignment" in status.interruptions[0].message
    assert status.budgets.infrastructure == ()
    assert status.attempt.number == 2
    assert "train-1-1" not in {m.worker for m in status.attempt.members}


def test_an_operator_that_was_away_has_not_asked(world_in_forming: World) -> None:
    """Killed between the reservation and its sending, and back after minutes: the same attempt is completed,
    nobody is called lost for the operator's absence."""
    world = world_in_forming
    world.now += 300.0
    world.restart_operator()
    world.run(10.0)
    status = world.job.status
    assert (status.attempt.number, status.attempt.state) == (1, "running")
    assert status.interruptions == ()


def test_an_operator_that_is_slow_has_not_asked() -> None:
    """So busy that its next pass over the job comes minutes later: nobody is given up for that."""
    world = World({"workers": {"replicas": 3}}, steps=100_000)
    world.holds_ports = False
    for _ in range(100):
        world.step()
        if world.job.status.attempt.state == "forming":
            break
        world.tick()
    world.now += 300.0  # rank 0's agent was asked, the others not yet
    world.run(10.0)
    status = world.job.status
    assert (status.attempt.number, status.attempt.state) == (1, "running")
    assert status.interruptions == ()


@pytest.fixture
def world_in_forming() -> World:
    """The operator has died right after it reserved attempt 1."""
    world = World({"workers": {"replicas": 2}}, steps=100_000)
    for _ in range(100):
        world.step(crash_after=1)
        if world.job.status.attempt.state == "forming":
            return world
        world.tick()
    raise AssertionError("nothing is reserved")
