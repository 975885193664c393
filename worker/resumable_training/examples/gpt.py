"""A small GPT on the bytes of Python's standard library: real data that every machine has.

Runs as it is under plain python, torchrun and rtj::

    python -m resumable_training.examples.gpt --steps 50
    torchrun --nproc-per-node 2 -m resumable_training.examples.gpt --steps 50
    rtj run --workers 1:3 -m resumable_training.examples.gpt -- --steps 50

What makes it resumable are the calls of ``run``; the rest is an ordinary training script.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import resumable_training as rt

VOCABULARY = 256
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
_VALIDATION_PART = 20  # one file in so many


class Windows(torch.utils.data.Dataset[torch.Tensor]):
    """Consecutive windows of ``context + 1`` bytes; they overlap by one, so that every byte is predicted."""

    def __init__(self, text: bytes, context: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self._context
        return self._text[start : start + self._context + 1].long()


def read_sources() -> tuple[bytes, bytes]:
    """The standard library's source text, as (training, validation); the split depends on file names only."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not _SKIPPED & set(path.relative_to(root).parts):
            digest = hashlib.sha256(name.encode()).digest()
            parts[int.from_bytes(digest[:4], "big") % _VALIDATION_PART == 0].append(path.read_bytes())
    return b"\n".join(parts[0]), b"\n".join(parts[1])


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and added to its input [batch, time, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.attention(self.norm_1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, time, width))
        forward: torch.Tensor = self.feed_forward(self.norm_2(x))
        return x + forward


class Gpt(nn.Module):
    """Decoder-only transformer over bytes; returns the mean loss of next-byte prediction."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        self.apply(_initialize)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """``windows``: [samples, context + 1] bytes as int64."""
        inputs, targets = windows[:, :-1], windows[:, 1:]
        x = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpt", description="Train a byte-level GPT on Python's own sources."
    )
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps in all")
    parser.add_argument("--batch", type=int, default=24, help="samples per step, over all ranks")
    parser.add_argument("--micro-batch", type=int, default=8, help="most samples per forward on one rank")
    parser.add_argument("--context", type=int, default=64, help="bytes per sample")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps until the learning rate is reached")
    parser.add_argument("--eval-every", type=int, default=50, help="steps between evaluations; 0: never")
    parser.add_argument("--eval-samples", type=int, default=64)
    parser.add_argument("--log-every", type=int, default=10, help="steps between lines of output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-workers", type=int, default=0, help="processes that load samples, per rank")
    parser.add_argument("--fsdp", action="store_true", help="shard the model (FSDP2) instead of DDP")
    parser.add_argument("--checkpoint-dir", help="without rtj: where checkpoints go")
    parser.add_argument("--save-every-steps", type=int, help="without rtj: steps between checkpoints")
    parser.add_argument("--print-digest", action="store_true", help="at the end: a hash of the weights")
    return parser.parse_args(arguments)


def learning_rate_factor(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    part = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.55 + 0.45 * math.cos(math.pi * part)


def wrap(model: Gpt, run: rt.Run, shard: bool) -> nn.Module:
    """DDP, or FSDP2 with one unit per block."""
    if not shard:
        return run.ddp(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


@torch.no_grad()
def evaluate(run: rt.Run, model: nn.Module, windows: Windows, samples: int, shard: bool) -> float | None:
    """Mean validation loss; by rank 0 alone, or by all ranks together when the model is in pieces."""
    batches = [
        torch.stack([windows[index] for index in range(start, min(start + 16, samples))])
        for start in range(0, min(samples, len(windows)), 16)
    ]
    model.eval()
    total = 0.0
    evaluated = (
        model if shard else getattr(model, "module", model)
    )  # rank 0 alone must not enter DDP's forward
    for batch in run.evaluating(batches, main_only=not shard):
        total += float(evaluated(batch.to(run.device))) / len(batches)
    model.train()
    return total if run.is_main else None


def mean_over_ranks(value: torch.Tensor, run: rt.Run) -> torch.Tensor:
    """The loss of the whole global batch: the same at any number of ranks, up to rounding."""
    if run.world_size > 1:
        dist.all_reduce(value)
    return value / run.world_size


def digest(model: nn.Module) -> str:
    """Hash of all weights, the same whether they are sharded or not. Every rank must call it."""
    hashing = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        hashing.update(name.removeprefix("module.").encode() + full.cpu().contiguous().numpy().tobytes())
    return hashing.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    run = rt.start(
        seed=options.seed, checkpoint_dir=options.checkpoint_dir, save_every_steps=options.save_every_steps
    )
    if run.device.type == "cpu":
        torch.set_num_threads(1)
    training, validation = read_sources()
    windows = Windows(validation, options.context)
    model = wrap(
        Gpt(options.layers, options.width, options.heads, options.context).to(run.device), run, options.fsdp
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, options.warmup, options.steps)
    )
    data = run.data(
        Windows(training, options.context),
        global_batch_size=options.batch,
        micro_batch_size=options.micro_batch,
        seed=options.seed,
        num_workers=options.data_workers,
        version=hashlib.sha256(training).hexdigest()[:16],
        sample_rng=False,
    )
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    if run.is_main:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(
            f"attempt {run.attempt}: {run.world_size} ranks, {parameters:,} parameters, from step {run.step}"
        )
    for step in run.steps(data, until=options.steps):
        mean = torch.zeros((), device=run.device)
        for batch in step:
            loss = model(batch.to(run.device))
            step.backward(loss)
            mean += loss.detach() * step.weight
        mean = mean_over_ranks(mean, run)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step.log(loss=mean)
        if run.is_main and step.number % options.log_every == 0:
            print(
                f"step {step.number}/{options.steps}  loss {float(mean):.4f}  epoch {run.epoch}", flush=True
            )
        if options.eval_every and step.number % options.eval_every == 0:
            found = evaluate(run, model, windows, options.eval_samples, options.fsdp)
            if found is not None:
                print(f"step {step.number}/{options.steps}  validation loss {found:.4f}", flush=True)
    if options.print_digest:
        found_digest = digest(model)
        if run.is_main:
            print(f"weights {found_digest}", flush=True)


if __name__ == "__main__":
    main()
