"""What people do with checkpoints, on a run that really trains: roll it back, hold, prune, copy, export."""

from __future__ import annotations

import json
from pathlib import Path

import moments
import pytest
import torch
from local_run import rtj
from moments import Wish
from training_run import TrainingRun, assert_same

from resumable_training.contract.manifest import checkpoint_name as name
from resumable_training.data.audit import read_records

pytestmark = pytest.mark.timeout(600)


def test_roll_back_copy_and_export(training: TrainingRun, tmp_path: Path) -> None:
    """It is stopped, goes back to step 6 and trains each sample once from there; its weights can be had."""
    run = str(training.directory)
    held = Wish(moments.EVALUATION, 1, 0, moments.DRAIN)
    training.wish(held)
    training.start_tiny(save_every=3, tiny=("--evaluate-every", "12"))
    training.await_moment(held)  # in step 12
    training.wait(lambda: (training.store / name(9, 1) / ".metadata").exists(), "the save of step 9")
    refused = rtj("checkpoints", "rollback", run, "--to", "6")
    assert refused.returncode == 2
    assert "--suspend" in refused.stderr
    pruned = json.loads(rtj("checkpoints", "prune", run, "--keep", "2", "--yes", "--json").stdout)
    assert pruned["gone"] == [name(3, 1)]  # beside the running job
    back = rtj("checkpoints", "rollback", run, "--to", "6", "--suspend")
    assert back.returncode == 0, back.stderr + training.text()
    assert f"the next attempt resumes {name(6, 1)}" in back.stdout
    training.finish(5)
    training.again()
    training.finish()
    training.check()
    assert [record.parent for record in read_records(training.store)] == [None, *[name(6, 1)] * 2]
    told = [event["data"].get("deliberate") for event in training.history("restored")]
    assert told == [None, True]  # as the operator is to know

    copied = rtj("checkpoints", "copy", run, str(tmp_path / "kept"))
    assert copied.returncode == 0, copied.stderr
    exported = rtj(
        "checkpoints", "export", str(tmp_path / "kept"), str(tmp_path / "m.pt"), "--format", "torch"
    )
    assert exported.returncode == 0, exported.stderr
    weights = torch.load(tmp_path / "m.pt", weights_only=True)
    wanted = training.result()["weights"]
    assert {name: value.flatten().tolist() for name, value in weights.items()} == wanted


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_fork_goes_on_as_its_source_did(training: TrainingRun, tmp_path: Path) -> None:
    """`rtj run --resume-from`: bit for bit, into a store of its own; the source is only read.

    The same command line is granted the wish once, and a slip is told before anything starts.
    """
    training.start_tiny(steps=12, save_every=6)
    training.finish()
    before = files(training.store)
    (tmp_path / "fork").mkdir()
    with TrainingRun(tmp_path / "fork") as fork:
        for _ in range(2):
            fork.start_tiny("--resume-from", str(training.store / name(6, 1)), steps=12, save_every=3)
            fork.finish()
        assert_same(fork.result(), training.result())
        parents = [record.parent for record in read_records(fork.store)]
        assert parents == [str(training.store / name(6, 1))]
    assert files(training.store) == before
    slip = rtj("run", "--dir", str(tmp_path / "none"), "--resume-from", str(tmp_path), "train.py")
    assert (slip.returncode, "is neither a checkpoint nor a job's store" in slip.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
