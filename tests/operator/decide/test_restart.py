"""What a restart costs: estimated from the first start, then measured; and for how long room is awaited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.restart import learnt, weighed
from resumable_operator.model import AttemptStatus, JobStatus, LedgerStatus

OWN = {"setup": 200, "rendezvous": 300, "restoring": 0, "warmup": 700, "productive": 5000}


def started(
    number: int, own: dict[str, int] | None = None, uses_library: bool | None = True, known: float = 10.0
) -> JobStatus:
    """Reserved at 100 s; ``own``: what rank 0 of this attempt has told."""
    told = LedgerStatus(attempt=number if own else 0, folded=own or {})
    attempt = AttemptStatus(number=number, reserved_at=100.0)
    return JobStatus(attempt=attempt, ledger=told, uses_library=uses_library, restart_seconds=known)


@pytest.mark.parametrize(
    ("status", "at", "seconds"),
    [
        pytest.param(started(1, OWN), 106.0, 1.2, id="a first start: what rank 0 did before its first step"),
        pytest.param(started(1, OWN), 101.0, 1.0, id="at most what all of it took"),
        pytest.param(started(1), 106.0, 6.0, id="rank 0 has told nothing"),
        pytest.param(started(1), 99.0, 0.0, id="clocks disagree"),
        pytest.param(started(2, OWN), 106.0, 8.0, id="a restart counts half, whatever was known"),
        pytest.param(started(2, OWN, known=1.2), 102.0, 1.6, id="and so after a first start"),
        pytest.param(started(1, OWN, uses_library=False), 106.0, 10.0, id="no steps are told: the prior"),
        pytest.param(started(3, uses_library=None), 101.0, 10.0, id="nor may they ever be"),
    ],
)
def test_learnt(status: JobStatus, at: float, seconds: float) -> None:
    """The first start stands in for a restart until one was measured."""
    assert learnt(status, at) == pytest.approx(seconds)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=20), st.floats(0, 1000))
def test_an_estimate_is_soon_forgotten(costs: list[float], known: float) -> None:
    """However wrong it was, the mean lies among the measurements, but for what halves with each of them."""
    seconds = known
    for cost in costs:
        seconds = learnt(started(2, known=seconds), 100.0 + cost)
    left = 0.5 ** len(costs) * 1000 + 1e-6
    assert min(costs) - left <= seconds <= max(costs) + left


def test_nothing_runs_yet() -> None:
    """A job that never ran has nothing to go on with, so that a restart is no measure for it."""
    assert weighed(JobStatus(restart_seconds=3.0)) == float("inf")
    assert weighed(started(1, known=3.0)) == 3.0


def test_a_first_loss_waits_for_no_room_longer_than_a_start_took() -> None:
    """The first worker that is lost, with no machine to come: on at the smaller size after a restart's time,
    not after the prior."""
    world = World({"workers": {"replicas": 3, "min": 2}}, steps=100_000)
    world.run(3.0)
    assert world.job.status.restart_seconds < 2.0
    world.room = 2
    world.kill_worker("train-1-1")
    world.run(4.0)
    status = world.job.status
    assert (status.attempt.number, status.size) == (2, 2)
