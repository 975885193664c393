"""Rank programs for checkpoints of other programs, and for what a resume reads. See ``rank_programs``."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import rank_programs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from resumable_training.checkpoint import CheckpointEngine, TrainingState
from resumable_training.checkpoint.local import LocalStore
from resumable_training.contract.assignment import CheckpointConfig

STEPS = 3


def plain_save(rank: int, world_size: int, group: Any, path: str, kind: str, layout: str) -> dict[str, Any]:
    """What other programs do: a ``dcp.save`` in one of the usual layouts; the values that it saved."""
    state = rank_programs.make_state(kind, 1, world_size)
    rank_programs.train(state, STEPS)
    dcp.save(laid_out(state, layout), checkpoint_id=path)
    return rank_programs.full_values(state)


def laid_out(state: TrainingState, layout: str) -> dict[str, Any]:
    model, optimizer = state.modules["model"], state.optimizers["optimizer"]
    options = StateDictOptions(flatten_optimizer_state_dict=layout == "torchtitan")
    weights, moments = get_state_dict(model, optimizer, options=options)
    if layout == "torchtitan":
        return {
            **weights,
            "optimizer": moments,
            "lr_scheduler": state.stateful["scheduler"].state_dict(),
            "dataloader": {"dp_rank_0": pickle.dumps({"at": 7})},
            "train_state": {"step": torch.tensor(STEPS), "losses": b"..."},
        }
    if layout == "application":
        return {"app": {"model": weights, "optim": moments}, "iteration": STEPS}
    if layout == "weights":
        return {"state": weights}
    assert layout == "numbered"  # without any of DCP's helpers
    return {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 1}


def resume(rank: int, world_size: int, group: Any, root: str, path: str, kind: str) -> dict[str, Any]:
    """Resume from there into a model of another seed; what was loaded and said."""
    said: list[str] = []
    state = rank_programs.make_state(kind, 2, world_size)
    engine = CheckpointEngine(
        CheckpointConfig(directory=root, resume_from=path),
        "local/test",
        "uid",
        1,
        group,
        rank,
        world_size,
        said.append,
        retry_seconds=(0.05,),
    )
    engine.preflight()
    report = engine.restore(state)
    assert report is not None
    return {**rank_programs.full_values(state), "said": said}


def wide_state(kind: str, world_size: int, width: int = 1100) -> TrainingState:
    """Enough bytes for several blocks: three matrices, biases, AdamW."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 7))
    if kind == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("r", "s")))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return TrainingState({"model": model}, {"optimizer": optimizer})


def save_wide(rank: int, world_size: int, group: Any, root: str, kind: str) -> dict[str, float]:
    state = wide_state(kind, world_size)
    engine = rank_programs.make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert rank_programs.save(engine, state, 1, rank).ok
    engine.close()
    return digest(state)


def load_wide(rank: int, world_size: int, group: Any, root: str, kind: str, attempt: int) -> dict[str, Any]:
    """What this rank reads of the shards, and what it then has."""
    meter = Meter()
    meter.install()
    state = wide_state(kind, world_size)
    with torch.no_grad():
        for parameter in state.modules["model"].parameters():
            parameter.zero_()
    report = rank_programs.make_engine(root, rank, world_size, group, attempt=attempt).restore(state)
    assert report is not None
    return {"bytes": meter.bytes, "ranges": meter.ranges, "values": digest(state)}


def digest(state: TrainingState) -> dict[str, float]:
    """Sums of all whole tensors: as good as the tensors to see that they are the same, and small."""
    options = StateDictOptions(full_state_dict=True)
    model, optimizer = get_state_dict(state.modules["model"], state.optimizers["optimizer"], options=options)
    flat = {**model, **{f"{k}.{n}": v for k, each in optimizer["state"].items() for n, v in each.items()}}
    scale = {key: torch.arange(1, value.numel() + 1, dtype=torch.float64) for key, value in flat.items()}
    return {key: float((value.double().flatten() * scale[key]).sum()) for key, value in flat.items()}


class Meter:
    """Counts what is read of shards."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ranges: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        real = LocalStore.read

        def read(store: LocalStore, name: str, offset: int = 0, length: int | None = None) -> bytes:
            data = real(store, name, offset, length)
            if name.endswith(".distcp"):
                with self._lock:
                    self.bytes += len(data)
                    self.ranges.append((Path(name).name, offset, len(data)))
            return data

        LocalStore.read = read  # type: ignore[method-assign]
