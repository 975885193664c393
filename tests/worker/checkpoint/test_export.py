"""Exports of checkpoints that several ranks wrote, or another program: tensors put together from pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rank_programs
import torch
import torch.distributed.checkpoint as dcp
from rank_programs import run_ranks
from safetensors.torch import load_file

from resumable_training.checkpoint.content import read_content
from resumable_training.checkpoint.errors import NoResumePoint
from resumable_training.checkpoint.export import Tensors, write_safetensors
from resumable_training.checkpoint.export_plan import Names, select, split
from resumable_training.checkpoint.files import single_process_is_fine
from resumable_training.checkpoint.listing import survey
from resumable_training.checkpoint.local import LocalStore


def export(store: LocalStore, name: str, out: Path, *, foreign: bool = False) -> dict[str, torch.Tensor]:
    """All weights, in files of one tensor each; read back."""
    out.mkdir()
    kept = select(read_content(store, name, foreign=foreign), Names(), None)
    counts: list[int] = []
    write_safetensors(Tensors(store, name, foreign=foreign), split(kept, 1), out, None, counts.append)
    assert sum(counts) == sum(one.bytes for one in kept)
    return {key: value for file in out.glob("*.safetensors") for key, value in load_file(file).items()}


def test_what_several_ranks_wrote(tmp_path: Path) -> None:
    """Shards become whole tensors, bit for bit."""
    root = tmp_path / "store"
    saved, _ = run_ranks(2, rank_programs.save_run, tmp_path, str(root), "fsdp", 2)
    store = LocalStore(root)
    found = export(store, survey(store).resume_points[0], tmp_path / "out")
    wanted = {
        key.removeprefix("model."): value
        for key, value in saved["tensors"].items()
        if key.startswith("model.")
    }
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)


def test_another_programs_flat_keys(tmp_path: Path) -> None:
    """As torchtitan has them: the model's own names at the top, beside an optimizer and plain values."""
    state = {
        "layers.0.weight": torch.arange(12.0).reshape(4, 3),
        "norm.weight": torch.ones(3, dtype=torch.bfloat16),
        "optimizer.state.layers.0.weight.exp_avg": torch.zeros(4, 3),
        "optimizer.param_groups.layers.0.weight.lr": 0.1,
        "train_state": {"step": 7},
    }
    with single_process_is_fine():
        dcp.save(state, checkpoint_id=tmp_path / "step-7", no_dist=True)
    store = LocalStore(tmp_path)
    found = export(store, "step-7", tmp_path / "out", foreign=True)
    assert sorted(found) == ["layers.0.weight", "norm.weight"]
    assert torch.equal(found["layers.0.weight"], state["layers.0.weight"])


def test_a_damaged_one_is_not_opened(tmp_path: Path) -> None:
    """Without a manifest the structure still tells."""
    with single_process_is_fine():
        dcp.save({"a": torch.zeros(3)}, checkpoint_id=tmp_path / "one", no_dist=True)
    (tmp_path / "one" / "__0_0.distcp").unlink()
    with pytest.raises(NoResumePoint, match="damaged: __0_0"):
        Tensors(LocalStore(tmp_path, visibility_seconds=0.0), "one", foreign=True)


def test_numbers_of_numpy_are_exported_as_plain_ones(tmp_path: Path) -> None:
    """As checkpoints hold them that were saved before such numbers were made plain."""
    with single_process_is_fine():
        dcp.save({"lr": np.float64(0.25)}, checkpoint_id=tmp_path / "one", no_dist=True)
    value = Tensors(LocalStore(tmp_path, visibility_seconds=0.0), "one", foreign=True).value("lr")
    assert (type(value), value) == (float, 0.25)
