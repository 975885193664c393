"""Tensors that a killed script shared through files in memory go with it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from agent_process import AgentProcess, wait_until

from resumable_training.contract import events

SHARES = """
import os, time
import torch

torch.multiprocessing.set_sharing_strategy("file_system")
tensor = torch.zeros(1000).share_memory_()
print("file", tensor.untyped_storage()._share_filename_cpu_()[1].decode(), flush=True)
time.sleep(1000)
"""


def test_torch_unlinks_what_a_killed_rank_shared(tmp_path: Path) -> None:
    """Its manager notices that the rank is gone; it is not killed before."""
    with AgentProcess(tmp_path, (sys.executable, "-c", SHARES)) as agent:
        agent.begin(ranks=1)
        found = wait_until(lambda: re.findall(r"file /(\S+)\n", agent.rank_log()), "its file", 60.0)
        file = Path("/dev/shm", found[0])
        assert file.exists()
        agent.request("stop")
        assert agent.ended() == events.STOPPED
        wait_until(lambda: not file.exists(), "the end of the file")
