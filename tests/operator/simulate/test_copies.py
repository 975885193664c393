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

from resumable_operator.simulate.account import Outcome
from resumable_operator.simulate.failures import Failure, Trace, failures
from resumable_operator.simulate.job import simulate_job
from resumable_operator.simulate.parameters import (
    Costs,
    Parameters,
    Restart,
    copies_at_most_of,
    make_spec,
)
from resumable_operator.simulate.ranks import Ranks, Timing
from resumable_training import schedule
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
# Its first step is done after 65 s, then 300 steps and a save of 2 s take turns: step 3601 is saved at 3689.
SAVED_AT = 65 + 12 * 302


def life(after: float, every: int, costs: Costs = COSTS, *, in_place: bool = True) -> Outcome:
    """Ranks die, or a machine does, so long after training went on from the save of step 3601."""
    spec = make_spec({"workers": {"replicas": 4, "spares": 1}})
    parameters = Parameters(spec, costs, 300.0, 8, 4 / 24, every)
    trace = Trace((Failure(SAVED_AT + after, (0,), in_place=in_place),))
    return simulate_job(parameters, failures((trace,), parameters.slots, Random), "uid")


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
    """60 s from the death on; detection, set-up and rendezvous take 20 of them."""
    slow = replace(COSTS, durable=60.0)
    with_copies, without = life(161.5, 10, slow), life(161.5, 0, slow)
    assert with_copies.phases["restoring"] - without.phases["restoring"] == pytest.approx(40, abs=0.01)
    assert with_copies.phases["rework"] == 1


def test_a_copy_costs_as_much_as_a_save_stalls_unless_it_is_known() -> None:
    """30 copies between two saves."""
    known, unknown = (life(161.5, 10, replace(COSTS, copy=copy)) for copy in (0.1, None))
    assert known.phases["checkpointing"] / known.phases["productive"] == pytest.approx(5 / 300, rel=0.02)
    assert unknown.phases["checkpointing"] / unknown.phases["productive"] == pytest.approx(62 / 300, rel=0.02)


@given(st.floats(0.001, 100), st.floats(0, 100))
def test_auto_is_what_ranks_do(step: float, copy: float) -> None:
    """As often as copies cost a hundredth of training."""
    measured = schedule.Measured(step_seconds=step, copy_seconds=copy)
    assert copies_at_most_of(step, copy) == schedule.copy_every(CheckpointConfig(memory_auto=True), measured)
