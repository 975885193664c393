"""When a rank is called hanging, and which one."""

from __future__ import annotations

import pytest

from resumable_training.agent.hang import RankView, find_hang, limit_seconds
from resumable_training.contract.assignment import Limits
from resumable_training.contract.progress import Progress

LIMITS = Limits(hang_seconds=300.0, start_seconds=600.0)
NOW = 10_000.0


def page(phase: str = "productive", beat: float = NOW, step: int = 5, step_seconds: float = 0.0) -> Progress:
    """A page whose last sign of life was at ``beat`` seconds."""
    beat_ns = int(beat * 1e9)
    return Progress(
        phase=phase, beat_ns=beat_ns, phase_since_ns=beat_ns, step=step, step_seconds=step_seconds
    )


@pytest.mark.parametrize(
    ("phase", "step_seconds", "limit"),
    [
        ("setup", 0.0, 600.0),
        ("rendezvous", 0.0, 600.0),
        ("restoring", 1.0, 600.0),
        ("warmup", 1.0, 600.0),
        ("productive", 0.0, 300.0),
        ("productive", 0.1, 20.0),
        ("rework", 5.0, 50.0),
        ("productive", 100.0, 300.0),
        ("checkpointing", 0.1, 300.0),
        ("data_stall", 0.1, 300.0),
        ("closing", 0.1, 300.0),
        ("evaluating", 0.1, 3000.0),
    ],
)
def test_limits(phase: str, step_seconds: float, limit: float) -> None:
    """Measured steps have a limit of their own, declared evaluation a long one, the rest the user's."""
    assert limit_seconds(page(phase, step_seconds=step_seconds), LIMITS) == limit


@pytest.mark.parametrize("phase", ["productive", "checkpointing", "evaluating", "closing"])
def test_silence_beyond_the_limit_is_a_hang(phase: str) -> None:
    """Just below the limit it is not, at the limit it is."""
    limit = limit_seconds(page(phase, step_seconds=1.0), LIMITS)
    below = RankView(0, 0.0, page(phase, NOW - limit + 0.1, step_seconds=1.0))
    beyond = RankView(0, 0.0, page(phase, NOW - limit, step_seconds=1.0))
    assert find_hang([below], LIMITS, NOW) is None
    hang = find_hang([beyond], LIMITS, NOW)
    assert hang is not None
    assert (hang.rank, hang.phase, hang.stopped, hang.limit_seconds) == (0, phase, False, limit)
    assert hang.silent_seconds == pytest.approx(limit)


def test_the_start_counts_as_a_whole() -> None:
    """Beating on in setup for ever is no start."""
    assert find_hang([RankView(0, NOW - 599, page("setup"))], LIMITS, NOW) is None
    assert find_hang([RankView(0, NOW - 600, page("setup"))], LIMITS, NOW) is not None


def test_two_short_stops_are_not_a_long_one() -> None:
    """Seen stopped twice, and it has beaten in between: the second stop alone counts."""
    ran = page(beat=NOW - 1.5)
    assert find_hang([RankView(0, 0.0, ran, stopped_since=NOW - 3.5)], LIMITS, NOW) is None
    hang = find_hang([RankView(0, 0.0, ran, stopped_since=NOW - 3.5)], LIMITS, NOW + 1.5)
    assert hang is not None
    assert (hang.stopped, hang.silent_seconds) == (True, 3.0)


def test_a_stopped_rank_hangs_at_once() -> None:
    """State T for three seconds, whatever its phase, also without the library."""
    assert find_hang([RankView(1, 0.0, None, NOW - 2.9)], LIMITS, NOW) is None
    hang = find_hang([RankView(0, 0.0, page()), RankView(1, 0.0, None, NOW - 3.0)], LIMITS, NOW)
    assert hang is not None
    assert (hang.rank, hang.stopped) == (1, True)


def test_a_script_without_the_library_is_not_judged() -> None:
    """Nobody knows what it does."""
    assert find_hang([RankView(0, 0.0), RankView(1, 0.0)], LIMITS, NOW) is None


def test_a_rank_that_never_connects_while_another_did() -> None:
    """Then it is one that uses the library and hangs before hello."""
    hang = find_hang([RankView(0, 0.0, page("rendezvous")), RankView(1, 0.0)], LIMITS, 601.0)
    assert hang is not None
    assert hang.rank == 1


def test_the_one_that_did_least_is_named() -> None:
    """The others wait for it in a collective."""
    views = [
        RankView(0, 0.0, page(beat=0.0, step=9)),
        RankView(1, 0.0, page(beat=1.0, step=8)),
        RankView(2, 0.0, page(beat=0.0, step=9)),
    ]
    hang = find_hang(views, LIMITS, NOW)
    assert hang is not None
    assert hang.rank == 1


@pytest.mark.parametrize("stopped_since", [None, 1.0])
def test_silence_while_the_agent_slept_proves_nothing(stopped_since: float | None) -> None:
    """After a pause of the machine, time counts from when the agent was awake again."""
    view = RankView(0, 0.0, page(beat=1.0), stopped_since)
    assert find_hang([view], LIMITS, NOW, awake_since=NOW - 1) is None
    assert find_hang([view], LIMITS, NOW, awake_since=NOW - 400) is not None
