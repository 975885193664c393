"""A script that knows nothing of this library: torchrun's environment, DDP and DCP checkpoints.

Under ``rtj run`` it is restarted and resized like any other. Its checkpoints go below
``RESUMABLE_CHECKPOINT_DIR``, and it resumes from the complete one that ``RESUMABLE_RESUME_FROM`` offers;
under plain torchrun it looks for the newest itself.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

_NAME = re.compile(r"step-(\d+)-\d+")


def newest_checkpoint(directory: Path) -> Path | None:
    """The complete checkpoint (one with ``.metadata``) of the highest step."""
    found = [
        (int(match[1]), path)
        for path in directory.glob("step-*")
        if (match := _NAME.fullmatch(path.name)) and (path / ".metadata").exists()
    ]
    return max(found)[1] if found else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default=os.environ.get("RESUMABLE_CHECKPOINT_DIR", "checkpoints"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    directory = Path(options.checkpoint_dir)
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step = 0
    offered = os.environ.get("RESUMABLE_RESUME_FROM")
    resume_from = Path(offered) if offered else newest_checkpoint(directory)
    if resume_from is not None:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        saved_step = torch.tensor(0)
        state = {"model": model_state, "optimizer": optimizer_state, "step": saved_step}
        state_dict_loader.load(state, checkpoint_id=resume_from)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        step = int(saved_step)  # filled in place
        if rank == 0:
            print(f"resumed step {step} from {resume_from}", flush=True)

    while step < options.steps:
        inputs = torch.randn(
            24 // world_size, 32, generator=torch.Generator().manual_seed(step * 1000 + rank)
        )
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % options.save_every == 0:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            state = {"model": model_state, "optimizer": optimizer_state, "step": torch.tensor(step)}
            state_dict_saver.save(state, checkpoint_id=directory / f"step-{step:08d}-{restart}")
            if rank == 0:
                print(f"step {step}/{options.steps}  loss {float(loss.detach()):.4f}  saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
