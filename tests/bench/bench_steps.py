"""What ``run.steps`` costs per step, in microseconds, beside a bare loop; ``make bench`` runs it.

Three loops without any training in them: steps alone, steps with data that draw no random numbers, and steps
with data whose samples may draw (the global generators are seeded for each sample and put back). The bare
loop fetches and collates the same samples by hand.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROUNDS = 5


class Samples:
    """A dataset in memory."""

    def __init__(self) -> None:
        import torch

        self._values = torch.randn(4096, 16)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> object:
        return self._values[index]


def bare(steps: int, batch: int) -> float:
    from torch.utils.data import default_collate

    samples = Samples()
    began = time.perf_counter()
    for step in range(steps):
        default_collate([samples[(step * batch + offset) % 4096] for offset in range(batch)])
    return (time.perf_counter() - began) / steps * 1e6


def measure(kind: str, steps: int, batch: int) -> dict[str, float]:
    """The fastest of ``ROUNDS`` stretches of ``steps``: what else the machine does only adds to it."""
    from resumable_training.contract.env import PROGRESS
    from resumable_training.contract.progress import ProgressPage

    with tempfile.TemporaryDirectory() as directory:
        os.environ[PROGRESS] = os.path.join(directory, "page")
        ProgressPage(os.environ[PROGRESS], create=True).close()
        import torch

        import resumable_training as rt

        torch.set_num_threads(1)
        run = rt.start()
        data = None
        if kind != "steps":
            data = run.data(
                Samples(),
                global_batch_size=batch,
                sample_rng=kind == "steps, data with randomness",
            )
        run.track(model=torch.nn.Linear(1, 1))
        found, began = [], 0.0
        for step in run.steps(data, until=1 + steps * ROUNDS):
            if step.number % steps == 1:
                if step.number > 1:
                    found.append((time.perf_counter() - began) / steps * 1e6)
                began = time.perf_counter()
            if data is not None:
                for _ in step:
                    assert step.weight == 1.0
            step.log(loss=1.0)
    bare_us = min(bare(steps, batch) for _ in range(ROUNDS)) if data is not None else 0.0
    return {"step_us": min(found), "bare_us": bare_us}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="steps per stretch")
    parser.add_argument("--batch", type=int, default=8, help="samples per step")
    parser.add_argument("--kind", help="measure one kind in this process and print JSON")
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(measure(options.kind, options.steps, options.batch)))
        return
    for kind in ("steps", "steps, data", "steps, data with randomness"):
        command = [sys.executable, __file__, "--kind", kind, "--steps", str(options.steps)]
        result = subprocess.run([*command, "--batch", str(options.batch)], capture_output=True, check=True)
        found = json.loads(result.stdout)
        over = found["step_us"] - found["bare_us"]
        print(f"{kind:28} {found['step_us']:7.1f} us a step, bare {found['bare_us']:6.1f}, more {over:6.1f}")


if __name__ == "__main__":
    main()
