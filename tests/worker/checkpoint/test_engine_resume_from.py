"""The engine with one rank: a resume point that the user chose, also one that others wrote."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from engine_job import Job, flip, make_state, start, weight

from resumable_training.checkpoint import TrainingState
from resumable_training.checkpoint.errors import NoResumePoint, NotPlain
from resumable_training.contract.manifest import MARKER_FILE


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "store")


# Deliberate resume points -----------------------------------------------------------------------------------


def test_resume_from_is_obeyed_once(job: Job) -> None:
    """A roll-back by name: later attempts of the job go on from what followed it."""
    start(job, 1, 10, 20)
    rolled = start(job, 2, 15, resume_from="step-00000010.1")
    assert rolled.record is not None
    assert rolled.record.deliberate
    assert job.resume_points == ["step-00000015.2", "step-00000010.1"]
    third = job.engine(3, resume_from="step-00000010.1")
    assert third.restore(make_state()).step == 15  # type: ignore[union-attr]


def test_resume_from_another_store(job: Job, tmp_path: Path) -> None:
    """A path into another job's store is verified in full and brings step and position along."""
    other = Job(tmp_path / "other", job="local/other")
    start(other, 1, 60, 70)
    path = str(other.root / "step-00000070.1")
    state = make_state()
    report = job.engine(1, resume_from=path).restore(state)
    assert report is not None
    assert (report.checkpoint, report.step, report.samples) == (path, 70, 560)
    assert weight(state) == 70
    # It died before its first save: the next attempt returns to the same place.
    assert job.engine(2, resume_from=path).restore(make_state()).checkpoint == path  # type: ignore[union-attr]
    flip(other.root / "step-00000070.1" / "__0_0.distcp")
    fresh = Job(tmp_path / "fresh")
    older = other.root / "step-00000060.1"
    with pytest.raises(NoResumePoint, match=rf"resumeFrom: .* The next older one is {older}$"):
        fresh.engine(1, resume_from=path).restore(make_state())
    flip(older / "__0_0.distcp")
    with pytest.raises(NoResumePoint, match=r"resumeFrom: (?!.*next older)"):
        fresh.engine(1, resume_from=str(older)).restore(make_state())


def foreign_checkpoint(path: Path, **extra: Any) -> TrainingState:
    """A plain `dcp.save` of model and optimizer by another program."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state = make_state(5.0)
    state.modules["model"](torch.ones(1, 3)).sum().backward()
    state.optimizers["optimizer"].step()
    model, optimizer = get_state_dict(state.modules["model"], state.optimizers["optimizer"])
    dcp.save({"model": model, "optimizer": optimizer, **extra}, checkpoint_id=path, no_dist=True)
    return state


def test_resume_from_another_program(job: Job, tmp_path: Path) -> None:
    """A DCP directory without manifest: loaded, what it lacks or has too much is said."""
    saved = foreign_checkpoint(tmp_path / "ckpt", iteration=7)
    state = make_state()
    state.stateful["scheduler"] = torch.optim.lr_scheduler.StepLR(state.optimizers["optimizer"], 5)
    report = job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(state)
    assert report is not None
    assert (report.step, report.samples, report.shared, report.saved_world_size) == (0, 0, {}, 0)
    assert weight(state) == weight(saved)
    assert state.optimizers["optimizer"].state_dict()["state"][0]["step"] == 1
    (warning,) = [text for text in job.warnings if "another program" in text]
    assert "iteration" in warning
    assert "scheduler" in warning


def test_resume_from_something_that_is_no_checkpoint(job: Job, tmp_path: Path) -> None:
    """A path that does not exist, or lacks a shard, is the user's to mend."""
    foreign_checkpoint(tmp_path / "ckpt")
    next((tmp_path / "ckpt").glob("*.distcp")).unlink()
    for path in (tmp_path / "nowhere", tmp_path / "ckpt"):
        engine = job.engine(1, resume_from=str(path))
        with pytest.raises(NoResumePoint, match="resumeFrom"):
            engine.restore(make_state())


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


def test_malicious_values_are_not_run(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer option that is a pickle bomb is refused by the weights-only reader."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ckpt"
    groups = [{"params": ["weight", "bias"], "lr": Evil()}]
    model = make_state().modules["model"].state_dict()
    dcp.save(
        {"model": model, "optimizer": {"state": {}, "param_groups": groups}}, checkpoint_id=path, no_dist=True
    )
    engine = job.engine(1, resume_from=str(path))
    with pytest.raises(NotPlain, match=r"optimizer.param_groups.0.lr .*posix.system"):
        engine.restore(make_state())
    assert not (tmp_path / "evil").exists()


def test_malicious_marker_is_not_run(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory whose marker is a pickle bomb is refused before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    foreign_checkpoint(tmp_path / "ckpt")
    (tmp_path / "ckpt" / MARKER_FILE).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(NoResumePoint, match="system"):
        job.engine(1, resume_from=str(tmp_path / "ckpt")).restore(make_state())
    assert not (tmp_path / "evil").exists()
