"""A drain whose save fails: the exit code, the last lines and the status say that not all was saved."""

from __future__ import annotations

import signal

import moments
import pytest
from moments import WAIT, Wish
from training_run import TrainingRun

from resumable_operator.cli import exitcodes

pytestmark = pytest.mark.timeout(600)


def test_the_store_goes_away_before_ctrl_c(training: TrainingRun) -> None:
    """Steps after the newest checkpoint are named; with the store back, the run goes on from that one."""
    here = Wish(moments.STEP, 1, 0, WAIT, nth=14)
    training.wish(here)
    training.start_tiny("--workers", "1")
    training.await_moment(here)
    training.until(lambda status: status.checkpoint is not None and status.checkpoint.step == 10, "a save")
    away = training.store.with_name("unmounted")
    training.store.rename(away)
    training.signal(signal.SIGINT)
    training.wait(lambda: bool(training.history("drain_requested")), "the drain to be asked for")
    training.let_go(here)
    stopped = training.finish(exitcodes.UNSAVED)
    assert stopped.phase == "Suspended"
    lost = f"to {stopped.step} are in no checkpoint: "
    assert stopped.step > 11
    assert "suspended by Ctrl-C; steps 11 " + lost in stopped.reason
    shown = training.shown()
    assert f"stopped: step {stopped.step}, " in shown
    assert "not everything is saved: steps 11 " + lost in shown
    assert "the same command line continues from checkpoint step-00000010.1" in shown
    assert not training.store.exists()
    away.rename(training.store)
    training.again()
    assert training.finish().attempt.start_step == 10
    training.check()
