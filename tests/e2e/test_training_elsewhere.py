"""The same script without ``rtj``, and ``rtj`` with a script that knows nothing of the library."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import moments
import pytest
from local_run import carriers
from moments import DRAIN, KILL, Wish
from training_run import TINY, TrainingRun, assert_same, causes

from resumable_training.contract import exitcodes

pytestmark = pytest.mark.timeout(900)
Undisturbed = Callable[..., dict[str, Any]]
PATIENCE_SECONDS = 240


class Alone:
    """Starts the tiny training directly; ends and finds what is left of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.result_path = directory / "result.json"
        self.options = ["--checkpoint-dir", str(directory / "checkpoints"), "--save-every-steps", "10"]
        self.options += ["--result", str(self.result_path)]

    def start(self, *launcher: str, wishes: tuple[Wish, ...] = ()) -> subprocess.Popen[bytes]:
        environment = os.environ | moments.environment_for(self.directory / "moments", *wishes)
        environment["RESUMABLE_CHECKPOINT_DIR"] = str(self.directory / "checkpoints")
        with (self.directory / "output.txt").open("ab") as output:
            command = [sys.executable, *launcher, str(TINY), *self.options]
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def await_moment(self, wish: Wish, process: subprocess.Popen[bytes]) -> None:
        """Until the rank is there and waits."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not wish.note(self.directory / "moments").exists():
            assert process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def text(self) -> str:
        return (self.directory / "output.txt").read_text()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    yield Alone(tmp_path)
    assert list(carriers(str(tmp_path))) == []


def test_plain_python(alone: Alone, undisturbed: Undisturbed) -> None:
    """Killed in mid-save, then ended by SIGTERM, then finished: the weights of an undisturbed run."""
    killed = alone.start(wishes=(Wish(moments.BEFORE_MARKER, nth=2, action=KILL),))
    assert killed.wait(PATIENCE_SECONDS) == -9, alone.text()
    assert len(moments.half_checkpoints(alone.directory / "moments")) == 1
    here = Wish(moments.STEP, nth=3, action=DRAIN)
    drained = alone.start(wishes=(here,))
    alone.await_moment(here, drained)
    drained.send_signal(signal.SIGTERM)
    assert drained.wait(PATIENCE_SECONDS) == exitcodes.DRAINED, alone.text()
    assert alone.start().wait(PATIENCE_SECONDS) == 0, alone.text()
    assert "restored step 10 from" in alone.text()
    assert "restored step 14 from" in alone.text()
    assert_same(json.loads(alone.result_path.read_text()), undisturbed(1))


def test_torchrun(alone: Alone, undisturbed: Undisturbed) -> None:
    """torchrun restarts it after a kill and it resumes; a second call of torchrun resumes too."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    wishes = (Wish(moments.STEP, 1, 1, KILL, nth=13), Wish(moments.AFTER_MARKER, 2, 0, KILL, nth=1))
    assert alone.start(*torchrun, wishes=wishes).wait(PATIENCE_SECONDS) == 1, alone.text()
    assert alone.start(*torchrun).wait(PATIENCE_SECONDS) == 0, alone.text()
    assert "restored step 10 from" in alone.text()
    assert "restored step 20 from" in alone.text()
    assert_same(json.loads(alone.result_path.read_text()), undisturbed(2))


def test_script_without_the_library(training: TrainingRun) -> None:
    """DDP and DCP as for torchrun, unmodified: after a kill it is offered its newest complete checkpoint."""
    module = ("-m", "resumable_training.examples.torchrun_dcp")
    training.start("--workers", "2", *module, "--", "--steps", "1500", "--save-every", "50")
    saved = training.store / "step-00000100-0" / ".metadata"
    training.wait(saved.exists, "its second checkpoint")
    ranks = json.loads((training.directory / "workers" / training.worker_of(1) / "ranks.json").read_text())
    os.kill(ranks["ranks"]["1"]["pid"], signal.SIGKILL)
    status = training.finish()
    assert causes(status) == ["crash"]
    assert training.processes() == []
    (line,) = [line for line in training.log(2).splitlines() if line.startswith("resumed step")]
    step = int(line.split()[2])
    assert step >= 100
    assert line.endswith(f"from {training.store}/step-{step:08d}-0")
    assert "step 1500/1500" in training.log(2)
    assert status.ledger.phases["running_opaque"] > 0
