"""Scripts that are less tidy than the examples, for ``rank_nursery.py``; see ``loop_scenarios.py``."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard

import resumable_training as rt


class Points(torch.utils.data.Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(index))


def answer(result: str, run: rt.Run, **found: object) -> None:
    Path(f"{result}-{run.rank}.json").write_text(json.dumps(found))


def apply(step: rt.Step, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in step:
        step.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def batch_norm(*, result: str, until: int, wrap: str) -> None:
    """Running statistics differ between ranks; a moving average of the model beside it."""
    run = rt.start(seed=1, save_every_steps=100)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)
    )
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    inner = model
    if wrap == "fsdp":
        fully_shard(model)
    else:
        model = run.ddp(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = run.data(Points(50), global_batch_size=12, micro_batch_size=2)
    tracked = {} if wrap == "fsdp" else {"average": average}
    run.track(model=model, optimizer=optimizer, **tracked)
    for step in run.steps(data, until=until):
        apply(step, model, optimizer)
        if tracked:
            average.update_parameters(inner)
    hashing = hashlib.sha256()
    for module in (model, average):
        for value in module.state_dict().values():
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            hashing.update(full.contiguous().numpy().tobytes())
    answer(result, run, digest=hashing.hexdigest(), step=run.step)


def two_sets(*, result: str, until: int) -> None:
    """One data set for two steps, then another; sizes as NumPy gives them."""
    run = rt.start(save_every_steps=100)
    first = run.data(
        Points(30), global_batch_size=np.int64(8), micro_batch_size=np.int64(4), seed=np.int64(1)
    )
    second = run.data(Points(20), global_batch_size=4, seed=-(2**80), name="second")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    samples = []
    for data, last in ((first, min(2, until)), (second, until)):
        for step in run.steps(data, until=last):
            apply(step, model, optimizer)
            step.log(loss=0.0)
            samples.append(run._session.samples)
    answer(result, run, samples=[*samples, run._session.samples], at=[first.position, second.position])


def failed_evaluation(*, result: str) -> None:
    """Rank 0's evaluation raises, and the script goes on."""
    run = rt.start()
    model = run.ddp(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(Points(30), global_batch_size=6)
    run.track(model=model, optimizer=optimizer)
    caught = 0
    for step in run.steps(data, until=4):
        apply(step, model, optimizer)
        try:
            with run.evaluating(main_only=True) as mine:
                if mine and step.number == 2:
                    raise RuntimeError("no such metric")
        except RuntimeError:
            caught += 1
    answer(result, run, step=run.step, caught=caught)


def left_before_optimizer(*, result: str, how: str) -> None:
    """The third step's gradients are never applied, and the script saves what there is."""
    run = rt.start()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(Points(30), global_batch_size=6)
    run.track(model=model, optimizer=optimizer)
    try:
        for step in run.steps(data, until=5):
            for batch in step:
                step.backward(model(batch).square().mean())
            if step.number == 3 and how == "error":
                raise OverflowError
            if step.number == 3:
                break
            optimizer.step()
            optimizer.zero_grad()
    except OverflowError:
        pass
    run.save()
    answer(result, run, step=run.step, position=data.position)


def fails_with_a_save_in_flight(*, result: str, how: str) -> None:
    """The writer stands still from step 2 on, whose save is begun; it goes on when the script has failed."""
    run = rt.start(save_every_steps=1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(Points(30), global_batch_size=6)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=9, stop_on_nonfinite=True):
        engine: Any = run._session.saver._engine  # type: ignore[union-attr]
        if step.number == 2:
            while engine.busy:  # also with retention
                engine.poll()
                time.sleep(0.01)
            writer = engine._saver._process.pid
            os.kill(writer, signal.SIGSTOP)
        apply(step, model, optimizer)
        if step.number == 3:
            end = f"while kill -0 {os.getpid()} && ! grep -q Traceback {result}-failed; do sleep 0.1; done"
            subprocess.Popen(["sh", "-c", f"{end} 2>/dev/null; kill -CONT {writer}"])
            sys.stderr = Tee(sys.stderr, open(f"{result}-failed", "w"))  # noqa: SIM115
            if how == "nan":
                step.log(loss=float("nan"))
            raise ValueError("a mistake in the script")


class Tee:
    """What is written goes to both."""

    def __init__(self, *streams: Any) -> None:
        self._streams = streams

    def write(self, text: str) -> None:
        for stream in self._streams:
            stream.write(text)
            stream.flush()

    def flush(self) -> None:
        return None


def short(*, result: str) -> None:
    """A training that is done after two steps more than before."""
    run = rt.start()
    model = run.ddp(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(Points(30), global_batch_size=6)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=run.step + 2):
        apply(step, model, optimizer)
    answer(result, run, step=run.step)


def more_misuse(*, result: str, how: str) -> None:
    """Mistakes that end in a clear error."""
    run = rt.start()
    if how == "fraction":
        run.data(Points(30), global_batch_size=6.5)
    if how == "no micro-batch":
        run.data(Points(30), global_batch_size=6, micro_batch_size=0)
    if how == "version":
        run.data(Points(30), global_batch_size=6, version=3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = run.data(Points(30), global_batch_size=6)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(data, until=3):
        apply(step, model, optimizer)
        if how == "nested":
            for inner in run.steps(data, until=3):
                apply(inner, model, optimizer)
