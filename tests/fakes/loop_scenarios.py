"""Small trainings that the tests of the loop run in processes of their own (see ``rank_nursery.py``)."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import moments
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import resumable_training as rt


class Noisy(torch.utils.data.Dataset):
    """Samples with random augmentation, from all three global generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        import random

        import numpy

        base = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return base + 0.01 * (random.random() + float(numpy.random.rand()) + torch.rand(8))


class Model(torch.nn.Module):
    """Several layers of several sizes (so that buckets matter), with dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(8, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 3)]
        )
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.dropout(torch.tanh(layer(x)))
        return (self.layers[-1](x) - 1).square().mean(1)


def digest(model: torch.nn.Module) -> str:
    hashing = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        hashing.update(name.removeprefix("module.").encode() + full.contiguous().numpy().tobytes())
    return hashing.hexdigest()


def touch(path: str | None) -> None:
    if path:
        Path(path).touch()


def train(
    *,
    until: int,
    result: str,
    wrap: str = "ddp",
    width: int = 16,
    dropout: float = 0.1,
    global_batch: int = 10,
    micro_batch: int = 2,
    length: int = 64,
    data_workers: int = 0,
    data_seed: int = 3,
    die: dict | None = None,
    step_seconds: dict | None = None,
    evaluate: dict | None = None,
    signal_file: str | None = None,
    signal_step: int = 1,
    nonfinite: dict | None = None,
    torch_optimizer_lr: float = 1e-2,
    settle: bool = True,
) -> None:
    """A training; its outcome goes to ``result`` + rank as JSON.

    ``die`` {step, rank}: SIGKILL itself in that step, before the optimizer. ``step_seconds``: extra seconds
    by step number, spent before the backward. ``evaluate`` {every, batches, seconds, how}; every 0: before
    the loop, -1: after it. ``signal_file``: made by rank 0 when step ``signal_step`` has begun. ``settle``:
    each save is stored before the next step.
    """
    if settle:
        moments.settle_saves()
    run = rt.start(seed=7)
    torch.set_num_threads(1)
    model: torch.nn.Module = Model(width, dropout)
    if wrap == "ddp":
        model = run.ddp(model, bucket_cap_mb=0.002)
    elif wrap == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch_optimizer_lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    data = run.data(
        Noisy(length),
        global_batch_size=global_batch,
        micro_batch_size=micro_batch,
        seed=data_seed,
        num_workers=data_workers,
    )
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    began = run.step
    losses = []
    if evaluate and "waits" in evaluate and not run.is_main:
        tell_of_waiting(run, evaluate)
    if evaluate and not evaluate["every"]:
        evaluation(run, model, evaluate)
    for step in run.steps(data, until=until, stop_on_nonfinite=nonfinite is not None):
        if run.is_main and step.number == signal_step:
            touch(signal_file)
        time.sleep((step_seconds or {}).get(str(step.number), 0))
        total = 0.0
        for batch in step:
            loss = model(batch).mean()
            if nonfinite and (nonfinite["step"], nonfinite["rank"]) == (step.number, run.rank):
                loss = loss * float("nan")
            if die and (die["step"], die["rank"]) == (step.number, run.rank):
                os.kill(os.getpid(), signal.SIGKILL)
            step.backward(loss)
            total += loss.item() * step.weight
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total)
        run.extras["steps_seen"] = run.extras.get("steps_seen", 0) + 1
        step.log(loss=total)
        if evaluate and evaluate["every"] > 0 and step.number % evaluate["every"] == 0:
            evaluation(run, model, evaluate)
    if evaluate and evaluate["every"] < 0:
        evaluation(run, model, evaluate)
    found = {
        "began": began,
        "evaluation_cut": run.evaluation_cut,
        "step": run.step,
        "epoch": run.epoch,
        "digest": digest(model),
        "losses": losses,
        "rates": scheduler.get_last_lr(),
        "extras": run.extras,
        "phases": run._session.clock.progress.phase_ns,
    }
    Path(f"{result}-{run.rank}.json").write_text(json.dumps(found))


def tell_of_waiting(run: rt.Run, evaluate: dict) -> None:
    """Make the file ``waits`` when this rank waits for rank 0's word while that evaluates."""
    saver = run._session.saver
    announce = saver._announce

    def heard(**words: Any) -> bool:
        if run.step == evaluate["every"]:
            touch(evaluate["waits"])
        return announce(**words)

    saver._announce = heard


def evaluation(run: rt.Run, model: torch.nn.Module, how: dict) -> None:
    """``how["how"]``: all | main_only (declared by all) | rank_0 (the others run into the next step) |
    until_drain (rank_0, and it leaves when it knows for some time where to stop)."""
    alone = how["how"] in ("rank_0", "until_drain")
    if alone and not run.is_main:
        return
    torch.rand(1)  # draws before it stay, draws inside are undone
    known = 0
    batches = range(how["batches"])
    for number in run.evaluating(batches, main_only=how["how"] == "main_only"):
        known += run._session.agreement.stops_before((run.step + 1000, 0))
        if number == how.get("break_at") or (how["how"] == "until_drain" and known > 3):
            break
        torch.rand(5)
        if run.is_main and number == 1:
            touch(how.get("signal_file"))
        time.sleep(how["seconds"])


def gradients(
    *, result: str, global_batch: int, micro_batch: int, wrap: str, reduction: str, mesh: bool = False
) -> None:
    """One step's gradient; ``mesh``: the ranks' places come from one dimension of a mesh."""
    run = rt.start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: torch.nn.Module = Model(16, 0.0)
    if wrap == "ddp":
        model = run.ddp(model)
    elif wrap == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    places = None
    if mesh:
        names = ("tensor", "data")
        places = init_device_mesh("cpu", (1, run.world_size), mesh_dim_names=names)["data"]
    data = run.data(
        Noisy(1000), global_batch_size=global_batch, micro_batch_size=micro_batch, seed=5, mesh=places
    )
    run.track(model=model)
    for step in run.steps(data, until=1):
        for batch in step:
            losses = model(batch)
            step.backward(losses.mean() if reduction == "mean" else losses.sum(), reduction=reduction)
        found = {}
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            found[name.removeprefix("module.")] = gradient.double().flatten().tolist()
        count = step.micro_batches
    Path(f"{result}-{run.rank}.json").write_text(json.dumps({"gradients": found, "micro_batches": count}))


def start_only(*, result: str, start_timeout_seconds: float = 60.0, fail: str = "") -> None:
    """Form the group, and nothing else, or raise ``fail``."""
    run = rt.start(start_timeout_seconds=start_timeout_seconds)
    if fail and run.rank == 1:
        raise ValueError(fail)
    torch.distributed.barrier()
    Path(f"{result}-{run.rank}.json").write_text(json.dumps({"world": run.world_size}))


def odd_script(*, result: str, stop_by_break_at: int) -> None:
    """Legal, but unusual: data after track, ``break`` and ``save``, a second loop, steps without data."""
    run = rt.start()
    model = run.ddp(Model(4, 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    data = run.data(Noisy(30), global_batch_size=6, seed=1, epochs=2)
    began = data.position
    for step in run.steps(data):
        for batch in step:
            step.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        if step.number == stop_by_break_at:
            break
    run.save()
    for step in run.steps(until=run.step + 2):
        step.log(loss=0.0)
    found = {"began": began, "position": data.position, "step": run.step}
    Path(f"{result}-{run.rank}.json").write_text(json.dumps(found))


def misuse(*, result: str, how: str) -> None:
    """Mistakes that end in a clear error."""
    run = rt.start()
    model = torch.nn.Linear(8, 1)
    data = run.data(Noisy(30), global_batch_size=6, micro_batch_size=2)
    run.track(model=model)
    if how == "extras" and run.is_main:
        run.extras["best"] = model
    for step in run.steps(data, until=2):
        assert how != "extras"
        if how == "poll":
            run.poll()
        for batch in step:
            step.backward(model(batch).mean(), reduction="max" if how == "reduction" else "mean")
            if how == "left early":
                break
        if how == "twice":
            list(step)
        if how == "save":
            run.save()
    if how == "second track":
        run.track(model=model)
    if how == "second start":
        rt.start()
    if how == "second data":
        run.data(Noisy(30), global_batch_size=6)
    if how == "option":
        run.data(Noisy(30), global_batch_size=6, name="b", workers=3)
    if how == "iterable":
        run.data(iter([1]), global_batch_size=6, name="b")
