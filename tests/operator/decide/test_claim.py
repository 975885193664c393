"""Two operators with different keys: one of them looks after a job, the other one keeps its hands off."""

from __future__ import annotations

from itertools import pairwise

import pytest
from world import World

from resumable_operator.decide.claim import RENEW_SECONDS, TAKE_OVER_SECONDS, hands_off_seconds
from resumable_operator.model import JobStatus

NOW = 10_000.0


@pytest.mark.parametrize(
    ("operator", "said_ago", "mine", "wait"),
    [
        pytest.param("theirs", 10.0, ("mine",), TAKE_OVER_SECONDS - 10.0, id="the other one works"),
        pytest.param("theirs", TAKE_OVER_SECONDS, ("mine",), 0.0, id="it has ceased"),
        pytest.param("mine", 10.0, ("mine",), 0.0, id="it is ours"),
        pytest.param("before", 10.0, ("mine", "before"), 0.0, id="by our previous key"),
        pytest.param("", 10.0, ("mine",), 0.0, id="nobody has come yet"),
        pytest.param("theirs", 10.0, (), 0.0, id="there can be no other"),
        pytest.param("theirs", None, ("mine",), 0.0, id="it never said when"),
        pytest.param("theirs", -5.0, ("mine",), TAKE_OVER_SECONDS + 5.0, id="its clock is ahead"),
        pytest.param("theirs", -1e6, ("mine",), 0.0, id="somebody else wrote that"),
    ],
)
def test_hands_off(operator: str, said_ago: float | None, mine: tuple[str, ...], wait: float) -> None:
    """As long as another operator says that it is there, and not for ever."""
    status = JobStatus(operator=operator, operator_at=None if said_ago is None else NOW - said_ago)
    assert hands_off_seconds(status, mine, NOW) == pytest.approx(wait)


def named(**spec: object) -> World:
    world = World({"workers": {"replicas": 1}, **spec}, steps=100_000)
    world.operator = "mine"
    return world


def test_it_names_itself_before_anything_is_done() -> None:
    """The first write, which everything waits for, has the name: of two operators one loses that race."""
    world = named()
    plan = world.step()
    assert plan.must_write
    assert (plan.status.operator, plan.status.operator_at) == ("mine", world.now)


def test_it_says_so_again_while_it_works() -> None:
    """Long before another one would take over, also while nothing else is worth writing."""
    world = named()
    world.save_every = world.steps
    world.run(3.0, until="Running")
    for _ in range(20):
        world.run(RENEW_SECONDS / 2, tick=1.0)
        assert hands_off_seconds(world.job.status, ("theirs",), world.now) > TAKE_OVER_SECONDS / 2
    again = [new for old, new in pairwise(world.plans) if new.status.operator_at != old.status.operator_at]
    assert len(again) >= 8
    assert all(plan.must_write for plan in again)


def test_a_suspended_job_is_nobodys() -> None:
    """It is not written again and again."""
    world = named(suspend=True)
    world.run(5.0)
    before = world.job
    world.run(4 * TAKE_OVER_SECONDS, tick=10.0)
    assert world.job == before
    assert before.status.operator == ""
