"""A script that leaves its loop early, on two real ranks: an end without an error is exit code 0."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from loop_ranks import free_port

SCRIPT = """
    import sys
    import torch
    import resumable_training as rt
    from resumable_training import drain

    drain.POLL_SECONDS, drain.RANKS_PER_SECOND = 0.0, 1e9  # the watcher is in the store's client all the time
    run = rt.start(checkpoint_dir=sys.argv[1])
    model = torch.nn.Linear(2, 1)
    run.track(model=model)
    for step in run.steps(until=6):
        torch.distributed.barrier()
        if step.number == 3:
            break
"""


def test_ranks_that_leave_by_break_end_well(tmp_path: Path) -> None:
    """Nothing of the library is at work in the interpreter's last moments, which would abort the process."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "checkpoints")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
