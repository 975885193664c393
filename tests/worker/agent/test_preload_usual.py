"""What is imported once for all ranks is what a rank needs: nothing of weight is left for its restart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess, wait_until

from resumable_training.contract import events

# Saves step 2 and dies in step 3, once that is stored; then resumes, and trains to the end.
TRAIN = """
import sys
before = set(sys.modules)
import json, os, signal, time
from pathlib import Path
import torch
import resumable_training as rt

run = rt.start(checkpoint_dir="store", save_every_steps=2)
model = run.ddp(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
data = run.data(torch.ones(64, 64), global_batch_size=2)
run.track(model=model, optimizer=optimizer)
resumed = run.step

def die():
    while not list(Path("store").glob("step-00000002.*/.metadata")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

for step in run.steps(data, until=4):
    for batch in step:
        step.backward(model(batch).mean())
    optimizer.step()
    if not resumed and run.step == 2 and run.rank == 1:
        die()
print(json.dumps({"resumed": resumed, "loaded": sorted(set(sys.modules) - before)}, separators=(",", ":")))
"""


def resumed(directory: Path) -> tuple[list[dict[str, Any]], int]:
    """What two ranks say who were forked after one had died; bytes of the state that came from memory."""
    work = directory / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    command = (sys.executable, "train.py")
    with AgentProcess(directory / "agent", command, working_directory=str(work)) as agent:
        for number, outcome in ((1, events.FAILED), (2, events.SUCCEEDED)):
            agent.begin(number, ranks=2)
            wait_until(lambda: agent.state().state == "ended", "the end", 90)
            said = agent.rank_log(number) + agent.rank_log(number, 1)
            assert agent.state().outcome == outcome, said
        assert "preloaded" in agent.own_log()
        ranks = [json.loads(agent.rank_log(2, rank).split()[-1]) for rank in (0, 1)]
        restored = agent.wait_event(events.RESTORED, where=lambda event: event.attempt == 2)
    return ranks, restored.data["memory_bytes"]


@pytest.mark.torch
def test_a_rank_finds_all_modules_there(tmp_path: Path) -> None:
    """Of torch, of the library and of all else but the standard library, from its start through the meeting
    of two ranks, DDP and a resume from memory to steps that are saved; and the codec that addresses need."""
    ranks, from_memory = resumed(tmp_path)
    assert [one["resumed"] for one in ranks] == [2, 2]
    assert from_memory > 0
    loaded = {name for one in ranks for name in one["loaded"]}
    assert not [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert "encodings.idna" not in loaded
