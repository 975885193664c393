"""The training that both sides of the recovery benchmark do: model, samples, and a trace of the steps done.

A GPT of about 10 M parameters with a step of a few tenths of a second on two cores. The scripts beside this
differ only in who supervises, saves and restores them.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

GLOBAL_BATCH = 8
MICRO_BATCH = 4
CONTEXT = 64
VOCABULARY = 256
WIDTH, HEADS, LAYERS = 384, 6, 5
SAVE_EVERY = 5
UNTIL = 100_000  # never reached: the benchmark ends the run


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Bytes that depend on nothing but their index."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(VOCABULARY, (CONTEXT + 1,), generator=generator)


class Gpt(nn.Module):
    """A decoder-only transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False
        )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Mean loss of each sample of ``batch`` [samples, CONTEXT + 1]."""
        inputs, targets = batch[:, :-1], batch[:, 1:]
        hidden = self.tokens(inputs) + self.places.weight
        logits = self.head(self.layers(hidden, mask=self.mask, is_causal=True))
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(1)


def trace(**fields: object) -> None:
    """Append one line to the run's trace, with the wall-clock time (seconds); a line is written whole."""
    line = json.dumps({"time": time.time(), **fields}) + "\n"
    descriptor = os.open(os.environ["BENCH_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def trace_start(rank: int | None = None) -> None:
    """Say which process this rank is, so that the benchmark can kill it and no other of the same number."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]  # field 22, in clock ticks
    number = int(os.environ.get("RANK", "0")) if rank is None else rank
    trace(kind="rank", rank=number, pid=os.getpid(), started=started, supervisor=os.getppid())


def trace_step(step: int, rank: int, world: int) -> None:
    """Say that ``step`` is done; rank 0 speaks for all."""
    if rank == 0:
        trace(kind="step", step=step, world=world, pid=os.getpid())
