"""Copies in memory in a simulated life: what they hold when, what they cost, and whose deaths they help.

A step takes 100 ms and a copy 20; the first step of an attempt is its warm-up's, done at 100 ms.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_operator.simulate import landing
from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Failure, Trace, failures
from resumable_operator.simulate.job import simulate_job
from resumable_operator.simulate.landing import Landing
from resumable_operator.simulate.parameters import (
    Costs,
    Parameters,
    Restart,
    auto_memory_every,
    make_spec,
)
from resumable_operator.simulate.ranks import Ranks, Timing
from resumable_training import schedule
from resumable_training.agent import landing as agents
from resumable_training.contract.assignment import CheckpointConfig

TIMING = {"setup": 20, "rendezvous": 10, "restoring": 30, "warmup": 40, "step": 100, "blocking": 50}


def ranks(interval: int = 1000, every: int = 3, **changed: int) -> Ranks:
    timing: dict[str, Any] = {**TIMING, "durable": 50, "copy": 20, "copy_every": every, **changed}
    return Ranks(Timing(**timing, interval=lambda _: interval), 0, 0, 0, has_checkpoint=False)


def live(one: Ranks, until: int) -> Ranks:
    while not one.stopped and one.next_at <= until:
        one.proceed()
    return one


@pytest.mark.parametrize(
    ("at", "held"),
    [
        (90, None),  # warming up
        (300, None),  # step 3 is done, its copy begins
        (319, None),
        (320, 3),
        (620, 3),  # step 6 is done
        (621, None),  # its copy is over the one of step 3
        (640, 6),
        (1159, 9),
        (1160, None),  # step 11 is done, and saved until 1210
        (1310, None),  # step 12 is done
        (1330, 12),
    ],
)
def test_what_is_held_at_which_moment(at: int, held: int | None) -> None:
    """The newest copy that is whole: after steps 3, 6 and 9, which end 20 ms later each; not in a save."""
    assert live(ranks(), at).held(at) == held


@pytest.mark.parametrize(("at", "held"), [(1300, None), (1409, None), (1609, None), (1629, None), (1630, 15)])
def test_nothing_is_copied_while_a_save_is_in_flight(at: int, held: int | None) -> None:
    """From 1160 to 1410: step 12 is done meanwhile, and left out; 15 is done at 1610."""
    assert live(ranks(durable=250), at).held(at) == held


def test_copies_count_as_saves_and_take_their_time() -> None:
    """Ten steps with three copies between them; the eleventh step ends the stretch, with a save."""
    one = live(ranks(), 1159)
    assert one.next_at == 100 + 10 * 100 + 3 * 20
    told = one.report(1159)
    assert (told.step, told.phase_ms["productive"], told.phase_ms["checkpointing"]) == (10, 900, 60)
    assert live(one, 1210).committed == 11


@pytest.mark.parametrize(("asked", "saved", "done"), [(250, 3, 350), (305, 3, 370), (400, 4, 470)])
def test_a_drain_comes_after_the_copy_in_the_making(asked: int, saved: int, done: int) -> None:
    """And after the step in the making, as ever; then it saves for 50 ms."""
    one = live(ranks(), asked)
    one.drain(asked)
    live(one, 2000)
    assert (one.committed, one.stopped, one.report(2000).settled_ms) == (saved, True, done)


@given(
    *(st.integers(1, 900), st.integers(1, 900), st.integers(0, 300), st.integers(0, 3000), st.booleans()),
    *(st.integers(1, 12), st.integers(0, 250)),
)
def test_reports_add_up_at_any_moment(
    interval: int, durable: int, blocking: int, at: int, drains: bool, every: int, copy: int
) -> None:
    """Never ahead of the clock, and at most one stretch behind; what is held was done, and is in no save."""
    one = live(ranks(interval, every, durable=durable, blocking=blocking, copy=copy), at // 2)
    if drains:
        one.drain(at // 2)
    live(one, at)
    report = one.report(at)
    assert report.settled_ms == report.started_ms + sum(report.phase_ms.values()) <= at
    if not one.stopped:
        assert at - report.settled_ms <= max(100, durable, blocking, copy)
    held = one.held(at)
    assert held is None or (held % every == 0 and one.committed <= held <= report.step)


# ---- a job -------------------------------------------------------------------------------------------------

COSTS = Costs(
    step=1.0,
    blocking=2.0,
    durable=10.0,
    copy=0.0,
    reschedule=20.0,
    restart=Restart(detect=5, setup=10, rendezvous=5, restore=20, warmup=10),
)
SLOW = replace(COSTS, durable=60.0)
# Its first step is done after 65 s, then 300 steps and a save of 2 s take turns: step 3601 is saved at 3689.
SAVED_AT = 65 + 12 * 302


def life(after: float, every: int, costs: Costs = COSTS, *, in_place: bool = True) -> Outcome:
    """Ranks die, or a machine does, so long after training went on from the save of step 3601."""
    return life_with([Failure(SAVED_AT + after, (0,), in_place=in_place)], every, costs)


def life_with(bad_luck: list[Failure], every: int, costs: Costs = COSTS, **workers: int) -> Outcome:
    spec = make_spec({"workers": {"replicas": 4, "spares": 1, **workers}})
    parameters = Parameters(spec, costs, 300.0, 8, 4 / 24, every)
    return simulate_job(parameters, failures((Trace(tuple(bad_luck)),), parameters.slots, Random), "uid")


@pytest.mark.parametrize(
    ("after", "every", "in_place", "rework"),
    [
        (161.5, 0, True, 160),  # 161 steps since the save, the first of them in the warm-up
        (161.5, 10, True, 1),  # of step 3762 to 3760
        (161.5, 1, True, 0),
        (161.5, 100, True, 61),  # to 3700
        (161.5, 300, True, 160),  # none since the save: the next were 3900
        (161.5, 10, False, 160),  # a machine takes its memory along
        (15.5, 10, True, 14),  # 3610 is worth 9 s, and takes 10 to be stored
        (5.5, 1, True, 304),  # the save of 3601 is in flight
    ],
)
def test_what_is_done_again(after: float, every: int, in_place: bool, rework: int) -> None:
    """The steps since the last copy where only ranks die, those since the newest checkpoint elsewhere."""
    assert life(after, every, in_place=in_place).phases.get("rework", 0) == rework


def test_the_next_attempt_waits_for_what_is_being_stored() -> None:
    """60 s from when the last rank is dead, which is when the failure is known; set-up and rendezvous take
    15 of them."""
    with_copies, without = life(161.5, 10, SLOW), life(161.5, 0, SLOW)
    assert with_copies.phases["restoring"] - without.phases["restoring"] == pytest.approx(45, abs=0.01)
    assert with_copies.phases["rework"] == 1


DEATH = Failure(SAVED_AT + 161.5, (0,), in_place=True)


def gone(after: float, slot: int = 1) -> Failure:
    """A machine is lost, so long after those ranks have died."""
    return Failure(DEATH.at + after, (slot,))


@pytest.mark.parametrize(
    ("after", "slot", "rework"),
    [
        (3.0, 1, 160),  # before anybody knows that ranks have died
        (10.0, 1, 160),  # the next attempt is at its set-up
        (30.0, 1, 160),  # it waits
        (10.0, 0, 160),  # the machine whose ranks had died
        (65.0, 1, 160),  # at the very moment when it would be stored
        (65.1, 1, 1),  # stored
        (10.0, 4, 1),  # the spare's, which has no writer
    ],
)
def test_a_copy_is_lost_with_a_machine_that_was_storing_it(after: float, slot: int, rework: int) -> None:
    """It takes 60 s from when the death is known, after 5; each worker stores its part."""
    assert life_with([DEATH, gone(after, slot)], 10, SLOW).phases["rework"] == rework


def test_failures_of_one_moment_count_in_any_order() -> None:
    """The memory of a machine that goes is gone, whichever line of a trace comes first; so it is where
    storing takes no time."""
    for costs in (SLOW, replace(COSTS, durable=0.0)):
        lives = [life_with(list(both), 10, costs) for both in ((DEATH, gone(0.0)), (gone(0.0), DEATH))]
        assert [one.phases["rework"] for one in lives] == [160, 160]


def test_nobody_waits_for_what_can_no_longer_come() -> None:
    """The machine went 30 s after the death: all takes as long as without copies."""
    with_copies, without = (life_with([DEATH, gone(30.0)], every, SLOW, spares=2) for every in (10, 0))
    assert with_copies.phases == without.phases


@pytest.mark.parametrize("stage", ["setup", "restoring"])
def test_who_waits_goes_on_without_it(stage: str) -> None:
    """They restore at once, what there was before."""
    one = Ranks(Timing(**TIMING, durable=50, interval=lambda _: 1000), 0, 30, 35, True, restores_at=500)
    live(one, 400 if stage == "restoring" else 5)
    assert (one.stage, one.step) == (stage, 30)
    one.go_back(400 if stage == "restoring" else 5, 12, has_checkpoint=True)
    restored = 430 if stage == "restoring" else 60
    live(one, restored - 1)
    assert one.stage == "restoring"
    live(one, restored)
    assert (one.stage, one.step, one.committed) == ("warmup", 12, 12)


@pytest.mark.parametrize(
    ("before", "worth", "needed", "lands", "until"),
    [
        (0, 60_000, 40_000, True, 41_000),
        (0, 60_000, 60_000, True, 61_000),
        (0, 60_000, 70_000, False, 61_000),  # redoing the steps costs no more
        (0, 600_000, 130_000, False, 121_000),
        (None, 600_000, 4_000, True, 5_000),
        (None, 600_000, 6_000, False, 6_000),  # of a first one nobody knows how long it takes
        (None, 2_000, 4_000, False, 3_000),
    ],
)
def test_how_long_it_may_take(before: int | None, worth: int, needed: int, lands: bool, until: int) -> None:
    """From when the last rank is dead, after one second here."""
    found = Landing.of(before, 700, worth, needed, 1000, frozenset({"a"}))
    assert (found.lands, found.until, found.step) == (lands, until, 700 if lands else before)
    assert (found.needs("a", until), found.needs("a", until + 1), found.needs("b", 0)) == (True, False, False)


def test_the_first_checkpoint_gets_less_time() -> None:
    """There is none before: 150 steps are worth 10 s of storing, but nobody knows that it takes no more."""
    for durable, rework in ((10.0, 149), (4.0, 9)):
        costs = replace(COSTS, durable=durable)
        found = life_with([Failure(65 + 149.5, (0,), in_place=True)], 20, costs)
        assert found.phases["rework"] == rework


def test_limits_are_those_of_agents() -> None:
    """Both are tuned there."""
    assert (landing.MOST_SECONDS, landing.UNKNOWN_SECONDS) == (
        agents.MOST_HELD_SECONDS,
        agents.UNKNOWN_SECONDS,
    )


def test_a_copy_costs_as_much_as_a_save_stalls_unless_it_is_known() -> None:
    """30 copies between two saves."""
    known, unknown = (life(161.5, 10, replace(COSTS, copy=copy)) for copy in (0.1, None))
    assert known.phases["checkpointing"] / known.phases["productive"] == pytest.approx(5 / 300, rel=0.02)
    assert unknown.phases["checkpointing"] / unknown.phases["productive"] == pytest.approx(62 / 300, rel=0.02)


@given(st.floats(0.001, 100), st.floats(0, 100))
def test_auto_is_what_ranks_do(step: float, copy: float) -> None:
    """As often as copies cost a hundredth of training."""
    measured = schedule.Measured(step_seconds=step, copy_seconds=copy)
    assert auto_memory_every(step, copy) == schedule.copy_every(CheckpointConfig(memory_auto=True), measured)
