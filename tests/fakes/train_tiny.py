"""A training so small that a step takes milliseconds: random numbers everywhere, all of them to be restored.

Runs under rtj, torchrun and plain python. At the end rank 0 writes its final weights and generators as JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from pathlib import Path

import moments
import numpy
import torch
from torch.distributed.fsdp import fully_shard

import resumable_training as rt


class Samples(torch.utils.data.Dataset):
    """In memory; each sample is augmented with draws from all three global generators."""

    def __init__(self, length: int) -> None:
        self.base = torch.randn(length, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.base[index] + 0.01 * (random.random() + float(numpy.random.rand()) + torch.rand(8))


class Tiny(torch.nn.Module):
    """Layers of several sizes, so that DDP has several buckets; returns the loss of each sample."""

    def __init__(self, width: int, dropout: float, head: str) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.second = torch.nn.Linear(width, width)
        self.head = head
        self.add_module(head, torch.nn.Linear(width, 3))
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            x = self.dropout(torch.tanh(layer(x)))
        return (getattr(self, self.head)(x) - 1).square().mean(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--micro-batch", type=int, default=3)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--wrap", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--head", default="output", help="name of the last layer")
    parser.add_argument("--data-seed", type=int, default=3)
    parser.add_argument("--version", default="1", help="version string of the data")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="sleep in each step")
    parser.add_argument("--first-step-seconds", type=float, default=0.0, help="sleep in an attempt's first")
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--result", help="JSON file for what came of it")
    parser.add_argument("--checkpoint-dir", help="without rtj")
    parser.add_argument("--save-every-steps", type=int, help="without rtj")
    return parser.parse_args()


def wrap(run: rt.Run, model: Tiny, how: str) -> torch.nn.Module:
    if how == "ddp":
        return run.ddp(model, bucket_cap_mb=0.0005)
    for layer in (model.first, model.second):
        fully_shard(layer)
    fully_shard(model)
    return model


def main() -> None:
    options = parse()
    moments.arm()
    moments.settle_saves()
    run = rt.start(seed=7, checkpoint_dir=options.checkpoint_dir, save_every_steps=options.save_every_steps)
    torch.set_num_threads(1)
    model = wrap(run, Tiny(options.width, options.dropout, options.head), options.wrap)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
    data = run.data(
        Samples(options.length),
        global_batch_size=options.batch,
        micro_batch_size=options.micro_batch,
        seed=options.data_seed,
        version=options.version,
    )
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    began = run.step
    for step in run.steps(data, until=options.steps):
        first = step.number == began + 1
        moments.reach(moments.FIRST_STEP if first else moments.STEP)
        time.sleep(options.first_step_seconds if first else options.step_seconds)
        total = 0.0
        for batch in step:
            loss = model(batch).mean()
            step.backward(loss)
            total += loss.item() * step.weight
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.extras["steps"] = run.extras.get("steps", 0) + 1
        step.log(loss=total)
        if options.evaluate_every and step.number % options.evaluate_every == 0:
            for part in run.evaluating(range(3)):
                torch.rand(5)  # undone at its end
                if part == 1:
                    moments.reach(moments.EVALUATION)
    if options.result:
        write_result(run, model, scheduler, Path(options.result))


def write_result(run: rt.Run, model: torch.nn.Module, scheduler: object, path: Path) -> None:
    """Every rank calls it: sharded weights are gathered."""
    weights, hashing = {}, hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        name = name.removeprefix("module.")
        weights[name] = full.flatten().tolist()
        hashing.update(name.encode() + full.contiguous().numpy().tobytes())
    draws = [random.random(), float(numpy.random.rand()), torch.rand(1).item()]
    if run.is_main:
        found = {
            "digest": hashing.hexdigest(),
            "weights": weights,
            "draws": draws,
            "step": run.step,
            "extras": run.extras,
            "world_size": run.world_size,
        }
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        temporary.replace(path)


if __name__ == "__main__":
    main()
