"""What ends an attempt beyond doubt, before a pass has been made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World

from resumable_operator.decide.membership import choose_members
from resumable_operator.decide.observation import TimedEvent, Worker
from resumable_operator.decide.plan import decide
from resumable_operator.decide.reflex import begins_to_end, to_stop
from resumable_operator.model import AttemptStatus
from resumable_training.contract import events, exitcodes
from resumable_training.contract.codec import to_plain
from resumable_training.contract.events import Event, RankExit

WORKERS = [
    Worker(f"w-{place}-1", place, 1, "running", address="10.0.0.1", agent_port=1) for place in range(3)
]
RUNNING = AttemptStatus(number=4, state="running", members=choose_members(WORKERS, 3, (), 1))
PEERS = ("w-0-1", "w-2-1")


def exited(code: int = 1, attempt: int = 4, **changes: Any) -> Event:
    data = to_plain(replace(RankExit(rank=1, code=code, own=True), **changes))
    return Event(7, 1000, events.RANK_EXITED, attempt, "boot", data)


@pytest.mark.parametrize("code", [1, 3, -9, -11, 137, exitcodes.NUMERIC, exitcodes.STORAGE])
def test_a_rank_that_failed_by_itself(code: int) -> None:
    """The ranks of all other members are ended at once."""
    assert to_stop(RUNNING, "w-1-1", exited(code)) == PEERS


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(exited(0), id="it returned 0"),
        pytest.param(exited(exitcodes.DRAINED), id="it drained"),
        pytest.param(exited(-9, own=False), id="its agent killed it"),
        pytest.param(exited(1, peer_suspect=True), id="a peer was the cause"),
        pytest.param(exited(exitcodes.PEER_LOST), id="it lost its peer"),
        pytest.param(exited(-15), id="somebody asked it to end"),
        pytest.param(exited(143), id="somebody asked its shell to end"),
        pytest.param(exited(attempt=3), id="of an older attempt"),
        pytest.param(replace(exited(), kind=events.HANG), id="a hang, whose stacks are wanted first"),
        pytest.param(replace(exited(), data={"rank": "x"}), id="nonsense"),
    ],
)
def test_what_is_left_to_a_pass(event: Event) -> None:
    """Anything that a pass might see otherwise."""
    assert to_stop(RUNNING, "w-1-1", event) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "forming"},
        {"state": "draining"},
        {"state": "ending"},
        {"drain_cause": "scale"},
        {"doomed": ("w-0-1",)},
        {"rank0_returned_at": 5.0},
    ],
)
def test_attempts_that_are_not_simply_running(changes: dict[str, Any]) -> None:
    """A drain, an end or a success may explain the exit."""
    assert to_stop(RUNNING.model_copy(update=changes), "w-1-1", exited()) == ()


@pytest.mark.parametrize("state", ["forming", "running", "draining", "ending", "ended"])
def test_an_end_begins_once(state: str) -> None:
    """In the pass that goes from an attempt that lives to its end; not in those that wait for it."""
    before = RUNNING.model_copy(update={"state": state})
    ending = RUNNING.model_copy(update={"state": "ending"})
    assert begins_to_end(before, ending) == (state in ("forming", "running", "draining"))
    assert not begins_to_end(before, RUNNING.model_copy(update={"state": "ended"}))
    assert not begins_to_end(before, ending.model_copy(update={"number": 5}))


def test_a_stranger_ends_nothing() -> None:
    """Only members witness."""
    assert to_stop(RUNNING, "w-9-1", exited()) == ()


@given(
    st.integers(-20, 160),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["train-0-1", "train-1-1", "train-2-1"]),
)
def test_a_pass_comes_to_the_same(code: int, own: bool, suspect: bool, worker: str) -> None:
    """Whatever is stopped at once is ended by the next pass, too, as an interruption."""
    world = World({"workers": {"replicas": 3}}, steps=100_000)
    world.run(2.0)
    attempt = world.job.status.attempt
    rank = next(member.first_rank for member in attempt.members if member.worker == worker)
    exit_ = RankExit(rank, code, own=own, peer_suspect=suspect)
    agent = world.agents[worker]
    event = Event(len(agent.log) + 1, 0, events.RANK_EXITED, attempt.number, agent.boot_id, to_plain(exit_))
    seen = world.observation()
    seen = replace(seen, events=(*seen.events, TimedEvent(worker, world.now, event)))
    after = decide(seen, world.now).status.attempt
    if to_stop(attempt, worker, event):
        assert (after.state, after.drain_cause) == ("ending", None)
