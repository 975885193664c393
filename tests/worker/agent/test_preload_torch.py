"""Training in ranks that were forked from a parent with torch: the same numbers as in cold ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess, wait_until

from resumable_training.contract import events

pytestmark = pytest.mark.torch

TRAIN = """
import sys
preloaded = "torch._dynamo" in sys.modules
import json, os, pathlib
import numpy, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index * index

def batches(way):
    loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=way)
    return [batch.tolist() for batch in loader]

def main():
    same = {"threads": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}
    chance = [torch.initial_seed(), torch.rand(1).item(), numpy.random.rand()]
    torch.manual_seed(0)
    same["product"] = (torch.rand(300, 300) @ torch.rand(300, 300)).sum().item()  # in several threads
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4) * (dist.get_rank() + 1)).sum().backward()
    same["gradient"] = model.module.weight.grad.tolist()
    for way in ("fork", "spawn", "forkserver") if dist.get_rank() == 0 else ():
        same[way] = batches(way)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    same["compiled"] = compiled(torch.ones(2)).tolist()
    same["environment"] = sorted(os.environ)  # with what imports have set
    dist.barrier()
    dist.destroy_process_group()
    name = f"{os.environ['RESUMABLE_ATTEMPT']}-{os.environ['RANK']}.json"
    mine = {"preloaded": preloaded, "chance": chance, "same": same}
    pathlib.Path(name).write_text(json.dumps(mine))

if __name__ == "__main__":
    main()
"""


def seen(root: Path, attempts: int, **changes: Any) -> list[dict[str, Any]]:
    """What the two ranks of each attempt wrote."""
    work = root / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(TRAIN)
    changes["environment"] = {"OMP_NUM_THREADS": "2"}
    command = (sys.executable, "train.py")
    with AgentProcess(root / "agent", command, working_directory=str(work), **changes) as agent:
        for number in range(1, attempts + 1):
            agent.begin(number)
            wait_until(lambda: agent.state().state == "ended", "the end", 90)
            said = agent.rank_log(number) + agent.rank_log(number, 1)
            assert agent.state().outcome == events.SUCCEEDED, said
        assert not [event for event in agent.events() if event.kind == events.WARNING]
    names = [f"{number}-{rank}.json" for number in range(1, attempts + 1) for rank in (0, 1)]
    return [json.loads((work / name).read_text()) for name in names]


def test_forked_ranks_train_as_cold_ones_do(tmp_path: Path) -> None:
    """Threads, seeds, groups, gradients, loaders and compiled functions; chance is each one's own."""
    cold = seen(tmp_path / "cold", 1, preload=False)
    forked = seen(tmp_path / "forked", 2)
    assert [one["preloaded"] for one in cold + forked] == [False] * 2 + [True] * 4
    assert cold[0]["same"]["threads"] == 2
    assert [one["same"] for one in forked] == [one["same"] for one in cold] * 2
    assert [len(set(drawn)) for drawn in zip(*(one["chance"] for one in cold + forked), strict=True)] == [
        6
    ] * 3
