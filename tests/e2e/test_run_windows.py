"""Notices whose window is too short for ranks to save and end: killed at its end, said, little lost.

Ranks are fakes that ignore a drain and save on, as ranks whose last save takes too long would.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_run import FAKE_RANK, LocalRun, rtj

from resumable_operator.cli import exitcodes

EVERY = 10
FAKE = ("--steps", "250", "--step-seconds", "0.02", "--checkpoint-every", str(EVERY), "--ignore-drain")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def test_no_more_is_lost_than_since_the_last_save(run: LocalRun) -> None:
    """The job goes on smaller when the window is over, from what was saved in it, and says so."""
    run.start_fake("--workers", "1:2", fake=FAKE)
    before = run.until_step(15, size=2)
    run.fault("preempt", "--grace", "1.5")
    status = run.finish()
    (ending,) = status.interruptions
    assert (ending.cause, ending.size_after, status.attempt.number) == ("preempted", 1, 2)
    assert "the window of 1.5 s was over before all ranks had saved and ended" in ending.message
    assert ending.resumed_step is not None
    assert ending.resumed_step >= before.step
    assert ending.rework_steps <= EVERY
    assert "window" in rtj("report", str(run.directory)).stdout


def test_a_suspension_whose_window_is_too_short(run: LocalRun) -> None:
    """Ctrl-C with a short window: ranks that do not end are killed, and the same command line continues."""
    run.start_fake("--workers", "2", "--drain-seconds", "1", fake=(*FAKE, "--steps", str(2 * EVERY - 2)))
    run.until_step(EVERY + 5)
    assert run.process is not None
    run.process.terminate()
    status = run.finish(code=exitcodes.UNSAVED)
    ending = status.interruptions[-1]
    assert (ending.cause, ending.planned) == ("suspend", True)
    assert "the window of 1.0 s was over" in ending.message
    run.again()
    assert run.finish().step == 2 * EVERY - 2


def test_ctrl_c_while_one_rank_has_yet_to_connect(run: LocalRun, tmp_path: Path) -> None:
    """The other waits for it and has done nothing: both end long before the window of an hour is over."""
    starting = tmp_path / "starting.py"
    starting.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': time.sleep(1000)\n"
        f"os.execv(sys.executable, [sys.executable, {str(FAKE_RANK)!r}, '--meet', '--ignore-drain'])\n"
    )
    run.start("--workers", "2", "--drain-seconds", "3600", str(starting))
    run.until(lambda status: status.uses_library is True, "a rank that has connected")
    run.signal(signal.SIGINT)
    status = run.finish(exitcodes.DRAINED)
    assert status.phase == "Suspended"
    assert status.interruptions[-1].planned
    assert status.step == 0
