"""The benchmark's training as people write it for torchrun: DDP, plain DCP, newest finished directory."""

import os
import shutil
from datetime import timedelta
from pathlib import Path

import body
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

KEEP = 3


def newest(root: Path) -> Path | None:
    """The newest directory that has DCP's marker."""
    finished = [path for path in root.glob("step-*") if (path / ".metadata").exists()]
    return max(finished, key=lambda path: int(path.name.split("-")[1]), default=None)


def main() -> None:
    body.trace_start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ["BENCH_GROUP_TIMEOUT"])))
    rank, world = dist.get_rank(), dist.get_world_size()
    root = Path(os.environ["BENCH_CHECKPOINTS"])
    model = DistributedDataParallel(body.Gpt())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    samples, done = body.Samples(), restore(root, model, optimizer)
    share = body.GLOBAL_BATCH // world
    for step in range(done + 1, body.UNTIL):
        first = (step - 1) * body.GLOBAL_BATCH + rank * share
        for start in range(first, first + share, body.MICRO_BATCH):
            batch = torch.stack(
                [samples[i] for i in range(start, min(start + body.MICRO_BATCH, first + share))]
            )
            (model(batch).sum() / share).backward()
        optimizer.step()
        optimizer.zero_grad()
        body.trace_step(step, rank, world)
        if step % body.SAVE_EVERY == 0:
            save(root, model, optimizer, step)


def restore(root: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the newest checkpoint; returns the steps that it has done."""
    directory = newest(root)
    if directory is None:
        return 0
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


def save(root: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Save into a directory of its own and keep the last few."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": step}
    dcp.save(state, checkpoint_id=root / f"step-{step}")
    if dist.get_rank() == 0:
        finished = sorted(root.glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
        for old in finished[:-KEEP]:
            shutil.rmtree(old)


if __name__ == "__main__":
    main()
