"""What is imported once for all ranks is what a rank needs: nothing of weight is left for its restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# One process for all of it, as in real life: imports, a fork that trains and saves, another one that resumes.
PROGRAM = """
import importlib, json, os, sys
from resumable_training.agent.preload_command import USUAL

for name in USUAL:
    importlib.import_module(name)
before = set(sys.modules)

def train(until):
    import torch
    import resumable_training as rt
    run = rt.start(checkpoint_dir=sys.argv[1], save_every_steps=1)
    model = run.ddp(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = run.data(torch.ones(8, 4), global_batch_size=2)
    run.track(model=model, optimizer=optimizer)
    resumed = run.step
    for step in run.steps(data, until=until):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()
    return resumed

if os.fork() == 0:
    train(1)
    sys.exit()
assert os.wait()[1] == 0
print(json.dumps({"resumed": train(2), "needed": sorted(sys.modules), "before": sorted(before)}))
"""


@pytest.mark.torch
def test_a_rank_finds_all_modules_there(tmp_path: Path) -> None:
    """Of torch and of the library, from its start through a resume to a step that is saved."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["resumed"] == 1
    missing = set(found["needed"]) - set(found["before"])
    assert not [name for name in missing if name.startswith(("torch", "resumable_training", "numpy"))]
