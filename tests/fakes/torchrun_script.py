"""A training script that knows only torchrun's variables and plain DCP: nothing of this project is imported.

It resumes from the directory that RESUMABLE_RESUME_FROM names, if any, as a user would write it in two lines.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

steps, crash_at = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
state = {"step": torch.zeros(1, dtype=torch.int64)}
resume_from = os.environ.get("RESUMABLE_RESUME_FROM")
if resume_from:
    dcp.load(state, checkpoint_id=resume_from)
print(f"rank {rank} of {world} starts at {int(state['step'])}", flush=True)
for step in range(int(state["step"]) + 1, steps + 1):
    time.sleep(0.05)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == world
    state["step"].fill_(step)
    if step % 5 == 0:
        dcp.save(state, checkpoint_id=Path(os.environ["RESUMABLE_CHECKPOINT_DIR"], f"ckpt-{step}"))
    if step == crash_at and not resume_from and rank == 1:
        sys.exit(7)
dist.destroy_process_group()
