"""What the operator is told about a rank."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_training.agent import reports
from resumable_training.agent.rank import Rank
from resumable_training.agent.ranks import StartedRank
from resumable_training.contract.progress import PHASES, Progress

STRETCHES = st.lists(st.tuples(st.sampled_from(PHASES), st.integers(0, 10**11)), max_size=20)


@given(st.integers(0, 10**15), STRETCHES)
def test_phases_add_up_and_never_run_backwards(started_ns: int, stretches: list[tuple[str, int]]) -> None:
    """The sum of phases is settled - started in every report, and every phase only grows."""
    progress = Progress(started_ns=started_ns)
    before = reports.progress_report(0, progress)
    for phase, length in stretches:
        progress.phase_ns[phase] = progress.phase_ns.get(phase, 0) + length
        report = reports.progress_report(0, progress)
        assert sum(report.phase_ms.values()) == report.settled_ms - report.started_ms
        assert all(report.phase_ms.get(name, 0) >= value for name, value in before.phase_ms.items())
        before = report
    total = sum(progress.phase_ns.values())
    assert 0 <= (started_ns + total) / 1e6 - before.settled_ms <= len(PHASES) + 1


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_loss_that_json_cannot_carry(loss: float) -> None:
    """It is told as unknown; the event log must go on."""
    assert reports.progress_report(0, Progress(loss=loss)).loss is None


def test_a_script_without_the_library() -> None:
    """It is said to be one, and its time adds up too."""
    report = reports.opaque_report(2, 1000, 4000)
    assert not report.uses_library
    assert sum(report.phase_ms.values()) == report.settled_ms - report.started_ms


@pytest.mark.parametrize(
    ("progress", "base", "early"),
    [
        (None, 0, True),
        (Progress(phase="setup"), 0, True),
        (Progress(phase="warmup", step=40), 40, True),
        (Progress(phase="evaluating", step=40, phase_ns={"restoring": 5}), 40, True),
        (Progress(phase="productive", step=41, phase_ns={"warmup": 5}), 40, False),
        (Progress(phase="checkpointing", step=50, phase_ns={"productive": 5}), 50, False),
        (Progress(phase="closing", step=50, phase_ns={"rework": 5}), 50, False),
    ],
)
def test_before_the_first_step(progress: Progress | None, base: int, early: bool) -> None:
    """Judged by phase, by time spent in steps, and by steps beyond those that were restored."""
    assert reports.before_first_step(progress, base) is early


@pytest.mark.parametrize(
    ("code", "tail", "suspect"),
    [
        (86, (), True),
        (1, ("RuntimeError: [..] Connection closed by peer [127.0.0.1]:3000",), True),
        (1, ("a", "RuntimeError: Connection reset by peer", "b"), True),
        (1, ("gloo::EnforceNotMet: writev [..] Broken pipe",), True),
        (1, ("ncclRemoteError: A call failed possibly due to a network error; remote process exited",), True),
        (1, ("torch.distributed.DistBackendError: Socket Timeout",), True),
        (-6, ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)",), True),
        (1, ("ZeroDivisionError: division by zero",), False),
        (-9, ("Connection closed by peer",), False),
        (-11, ("Connection closed by peer",), False),
        (0, ("Connection closed by peer",), False),
        (81, ("Connection closed by peer",), False),
        (82, (), False),
    ],
)
def test_peer_suspect(code: int, tail: tuple[str, ...], suspect: bool) -> None:
    """A collective's error is a peer's fault; signals, the library's verdicts and plain errors are not."""
    assert reports.peer_suspect(code, tail) is suspect


@pytest.mark.parametrize(
    ("code", "asked", "clean"),
    [(0, False, True), (80, False, True), (1, True, False), (-15, False, False), (-15, True, True)],
)
def test_clean_exit(code: int, asked: bool, clean: bool) -> None:
    """Dying of a SIGTERM that we sent is an answer to it."""
    assert reports.clean_exit(code, asked) is clean


@pytest.mark.parametrize(
    ("age", "code", "told"), [(29.0, None, False), (29.0, 1, False), (31.0, None, True), (0.5, 0, True)]
)
def test_a_script_is_called_opaque_when_that_is_known(age: float, code: int | None, told: bool) -> None:
    """One that has not connected may still import the library, or have failed on it."""
    nothing: Any = None
    started = StartedRank(1, 2)
    rank = Rank(0, started, nothing, Path("page"), Path("stacks"), nothing, started_at=100.0, code=code)
    report = rank.report(100.0 + age)
    assert (report is not None) is told
    assert report is None or not report.uses_library
