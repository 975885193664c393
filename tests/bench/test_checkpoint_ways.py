"""What the checkpoint benchmark compares is what a training would do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from checkpoint_ways import Ours

from resumable_training.checkpoint import TrainingState
from resumable_training.checkpoint.writer import WriterProcess

pytestmark = pytest.mark.torch


def test_our_first_save_starts_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a training, where it comes long after the first step: the start is not in what is measured."""
    started: list[int] = []
    begin = WriterProcess.__init__

    def noted(self: WriterProcess, *arguments: int) -> None:
        started.append(len(started))
        begin(self, *arguments)

    monkeypatch.setattr(WriterProcess, "__init__", noted)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    model = torch.nn.Linear(4, 4)
    state = TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters())})
    way = Ours(state, tmp_path, 0, None)
    way.ready()
    try:
        assert way._engine.standing
        assert len(started) == 1
        way.begin(1)
        assert len(started) == 1
    finally:
        way.close()
