"""A script with loader processes ends by itself, however it ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import os, signal, sys
    import torch
    import resumable_training as rt

    run = rt.start(checkpoint_dir=sys.argv[1], save_every_steps=5)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data([torch.ones(2)] * 64, global_batch_size=4, seed=0, num_workers=2)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=6):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        if sys.argv[2] == "break" and step.number == 3:
            break
        if sys.argv[2] == "drain" and step.number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        if sys.argv[2] == "error" and step.number == 3:
            raise RuntimeError("mine")
    print("script done")
"""


@pytest.mark.parametrize(
    ("how", "code"), [("finish", 0), ("break", 0), ("drain", 80), ("error", 1)]
)  # the iterator stays alive in the script's globals
def test_loader_processes_do_not_keep_the_script(tmp_path: Path, how: str, code: int) -> None:
    """At its end, by break, by a drain and by an error: the process ends and takes its loaders along."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "checkpoints"), how],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert ("script done" in done.stdout) == (how in ("finish", "break"))
