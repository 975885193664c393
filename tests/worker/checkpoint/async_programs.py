"""What ranks do in the tests of asynchronous saves beside this file; run by ``rank_programs.run_ranks``."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from rank_programs import begin, full_values, make_engine, reached, save
from test_writer_start import MUTE
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from resumable_training.checkpoint import (
    CheckpointEngine,
    SaveReport,
    TrainingState,
    arena,
    async_save,
    writer,
)
from resumable_training.contract import env


class Odd(nn.Module):
    """One tensor is most of the bytes; prime dimensions, 4-D, bf16, int64, tiny, empty and 0-d ones."""

    def __init__(self, *, sharded: bool) -> None:
        super().__init__()
        self.fat = nn.Parameter(torch.randn(1009, 331))
        self.conv = nn.Parameter(torch.randn(64, 16, 3, 3))
        self.brain = nn.Parameter(torch.randn(4099).bfloat16())
        self.few_rows = nn.Parameter(torch.randn(2, 20011))
        self.tiny = nn.Parameter(torch.randn(7))
        self.frozen = nn.Parameter(torch.arange(5003), requires_grad=False)
        if not sharded:  # which FSDP2 does not take
            self.scalar = nn.Parameter(torch.tensor(3.5))
            self.empty = nn.Parameter(torch.zeros(0, 5))
        self.register_buffer("seen", torch.arange(3000))


def odd_state(kind: str, world_size: int, seed: int = 1) -> TrainingState:
    """``kind``: ddp | fsdp | hsdp."""
    torch.manual_seed(seed)
    model: nn.Module = Odd(sharded=kind != "ddp")
    if kind == "ddp" and world_size > 1:
        model = DistributedDataParallel(model)
    if kind == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    if kind == "hsdp":
        mesh = dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh)
    return TrainingState({"model": model}, {"optimizer": torch.optim.AdamW(model.parameters(), lr=0.1)})


def step(state: TrainingState) -> None:
    """The same on all ranks, without a backward."""
    for parameter in state.modules["model"].parameters():
        if parameter.requires_grad:
            parameter.grad = parameter.detach() * 0.1
    state.optimizers["optimizer"].step()
    state.optimizers["optimizer"].zero_grad()


def saved_run(rank: int, world_size: int, group: Any, root: str, kind: str) -> dict[str, Any]:
    """Save steps 1 and 2, each overwritten at once by more training; the values at step 2."""
    state = odd_state(kind, world_size)
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    for number in (1, 2):
        step(state)
        values = full(state)
        assert not begin(engine, state, number, rank).durable
        step(state)
        assert engine.wait().ok  # type: ignore[union-attr]
    engine.close()
    return values


def full(state: TrainingState) -> dict[str, Any]:
    """As ``full_values``, without a schedule."""
    return full_values(TrainingState(state.modules, state.optimizers, {"scheduler": _NoSchedule()}))


class _NoSchedule:
    def state_dict(self) -> dict[str, Any]:
        return {}


def loaded_run(rank: int, world_size: int, group: Any, root: str, kind: str) -> dict[str, Any]:
    """Restore into a model of another seed."""
    state = odd_state(kind, world_size, seed=2)
    engine = make_engine(root, rank, world_size, group, attempt=2, host=None)
    assert engine.restore(state) is not None
    return full(state)


def writer_of(engine: CheckpointEngine) -> int:
    return int(engine._saver._process.pid)  # type: ignore[attr-defined]


def killed_writer_run(rank: int, world_size: int, group: Any, root: str, victim: int) -> list[Any]:
    """One rank's writer is stopped, and killed while a save is in flight; the next save."""
    state = odd_state("ddp", world_size)
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert save(engine, state, 1, rank).ok
    dist.barrier()
    if rank == victim:
        os.kill(writer_of(engine), signal.SIGSTOP)
    begin(engine, state, 2, rank)
    if rank == victim:
        os.kill(writer_of(engine), signal.SIGKILL)
    failed = engine.wait()
    assert failed is not None
    step(state)
    again = save(engine, state, 3, rank)
    engine.close()
    return [failed.ok, failed.message, again.ok]


def unlike_run(rank: int, world_size: int, group: Any, root: str) -> dict[str, Any]:
    """Each rank has a parameter of its own besides what all have."""
    model = nn.ParameterDict({"common": torch.ones(3000), f"own-{rank}": torch.full((2000,), float(rank))})
    state = TrainingState({"model": model})
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    report: SaveReport = save(engine, state, 1, rank)
    engine.close()
    return {"ok": report.ok, "message": report.message}


def hung_writer_run(rank: int, world_size: int, group: Any, root: str) -> list[Any]:
    """Rank 1's writer hangs in a save that rank 0 has given up; then the next one is due."""
    async_save._OVERLAP_SECONDS = 0.5
    state = odd_state("ddp", world_size)
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert save(engine, state, 1, rank).ok
    dist.barrier()
    hung = writer_of(engine)
    os.kill(hung, signal.SIGSTOP)
    begin(engine, state, 2, rank)
    if rank == 0:
        os.kill(hung, signal.SIGKILL)
        while engine.busy:  # as at its boundaries
            engine.poll()
    dist.barrier()
    again = save(engine, state, 3, rank)
    other = writer_of(engine) != hung
    engine.close()
    return [again.ok, other]


class Lazy(nn.Module):
    """``lazy`` gets optimizer state only where it is used."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.common = nn.Parameter(torch.ones(3000))
        self.lazy = nn.Parameter(torch.ones(elements))


def lazy_run(
    rank: int, world_size: int, group: Any, root: str, elements: int, user: int, steps: tuple[int, ...]
) -> Any:
    """After the first save rank ``user`` alone uses what none did before; (step, ok, message) of each save,
    what was said, and the values in the end. A save that asks for it is followed by one that plans anew."""
    said: list[str] = []
    state = lazy_state(elements)
    engine = make_engine(root, rank, world_size, group, warn=said.append)
    engine.restore(state)
    found: list[SaveReport] = []
    for number in steps:
        model, optimizer = state.modules["model"], state.optimizers["optimizer"]
        assert isinstance(model, Lazy)
        for parameter in (model.common, model.lazy) if number > 1 and rank == user else (model.common,):
            parameter.grad = torch.full_like(parameter, float(number))
        optimizer.step()
        optimizer.zero_grad()
        begin(engine, state, number, rank, anew=bool(found) and found[-1].unlike)
        report = engine.wait()
        assert report is not None
        found.append(report)
    engine.close()
    momenta = [one["momentum_buffer"].clone() for one in state.optimizers["optimizer"].state.values()]
    return [(one.step, one.ok, one.message) for one in found], said, momenta


def lazy_state(elements: int) -> TrainingState:
    model = Lazy(elements)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return TrainingState({"model": model}, {"optimizer": optimizer})


def short_run(rank: int, world_size: int, group: Any, root: str) -> Any:
    """Save with memory for two copies of what a rank stores, then for one; was it durable at once?"""
    durable, said = [], list[str]()
    for attempt, free in enumerate((3 << 20, (1 << 20) + (1 << 19)), 1):
        arena.free_bytes = lambda free=free: arena.SPARE_BYTES + free
        state = lazy_state(7)
        engine = make_engine(root, rank, world_size, group, attempt=attempt, warn=said.append)
        engine.restore(state)
        durable.append(begin(engine, state, attempt, rank).durable)
        engine.close()
    return durable, said


PLACED = {  # name -> shape, mesh, placement
    "sharded": ((640, 500), "tp", Shard(0)),
    "rows": ((301, 999), "dp", Shard(0)),
    "columns": ((7, 60_001), "tp", Shard(1)),
    "same": ((300, 401), "tp", Replicate()),
    "small": ((9,), "tp", Replicate()),
    "smaller": ((3,), "dp", Replicate()),
    "empty": ((0, 5), "dp", Replicate()),
}


def placed_values() -> dict[str, torch.Tensor]:
    """Whole, the same on all ranks."""
    numbers = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=numbers) for name, (shape, _, _) in PLACED.items()}


def part_of_a_mesh_run(rank: int, world_size: int, group: Any, root: str) -> Any:
    """Tensor parallel by two in each of two replicas: each mesh knows nothing of the other one. Save, and
    restore into other values: the report of the save, and whether all came back."""
    mesh = dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    values = placed_values()

    def placed(name: str) -> nn.Parameter:
        _, dimension, placement = PLACED[name]
        return nn.Parameter(distribute_tensor(values[name], mesh[dimension], [placement]))

    parts = {name: placed(name) for name in values}
    state = TrainingState({"model": nn.ParameterDict({**parts, "plain": nn.Parameter(torch.ones(400, 300))})})
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    report = save(engine, state, 1, rank)
    engine.close()
    for parameter in state.modules["model"].parameters():
        nn.init.zeros_(parameter)
    make_engine(root, rank, world_size, group, attempt=2, host=None).restore(state)
    restored = [torch.equal(parts[name].full_tensor(), values[name]) for name in values]
    return report.ok, report.message, all(restored)


def plain_dcp_run(rank: int, world_size: int, group: Any, directory: str) -> bool:
    """Whether plain DCP restores all of it into DTensors on a mesh of all ranks."""
    mesh, values = dist.init_device_mesh("cpu", (world_size,)), placed_values()
    parts = {
        name: distribute_tensor(torch.zeros_like(value), mesh, [PLACED[name][2]])
        for name, value in values.items()
    }
    dcp.load({"model": parts}, checkpoint_id=directory, process_group=group)
    return all(torch.equal(parts[name].full_tensor(), value) for name, value in values.items())


APART = {"plain": (300, 300), "small": (7,), "placed": (500, 90)}  # parameters of ``apart_run``


class Own(nn.ParameterDict):
    """Besides parameters, what each rank has for itself: a large buffer, and extra state."""

    def __init__(self, parameters: dict[str, nn.Parameter], rank: int) -> None:
        super().__init__(parameters)
        self.rank = rank
        self.register_buffer("seen", torch.full((5000,), float(rank)))

    def get_extra_state(self) -> torch.Tensor:
        return torch.full((4000,), float(self.rank))

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Nothing is kept."""


def apart_run(rank: int, world_size: int, group: Any, root: str, differ: bool, asynchronous: bool) -> Any:
    """Two saves, the values of step s all 10 s on rank 0, and on others one more if they ``differ``; whether
    they were done, and what was said."""
    mesh = dist.init_device_mesh("cpu", (world_size,))
    parts = {name: nn.Parameter(torch.zeros(shape)) for name, shape in APART.items()}
    local = torch.zeros(APART["placed"])
    placed = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
    model = Own({**parts, "placed": nn.Parameter(placed)}, rank)
    state = TrainingState({"model": model})
    if not asynchronous:
        arena.free_bytes = lambda: 0
    said: list[str] = []
    engine = make_engine(root, rank, world_size, group, warn=said.append)
    engine.restore(state)
    done = []
    for number in (1, 2):
        value = 10.0 * number + (rank if differ else 0)
        with torch.no_grad():
            for part in (*(parts[name] for name in ("plain", "small")), model["placed"]._local_tensor):
                part.fill_(value)
        report = save(engine, state, number, rank)
        done.append(report.ok)
    engine.close()
    return done, said


def unlike_writers_run(rank: int, world_size: int, group: Any, root: str, how: str) -> Any:
    """Copies and a save where rank 1's writer can't be started, or says nothing; what came of them."""
    os.environ[env.KEEPER] = f"{root}-nobody"
    if rank == 1:
        writer.PROGRAM = {"ends": "raise SystemExit(3)", "mute": MUTE}[how]
    engine = make_engine(root, rank, world_size, group)
    state = odd_state("ddp", world_size)
    engine.restore(state)
    engine.poll()
    copied = [engine.copy(state, reached(number, rank)) for number in (1, 2, 3)]
    async_save._START_SECONDS = 1.0 if how == "mute" and rank == 1 else 30.0
    report = save(engine, state, 4, rank)
    engine.close()
    return copied, report.ok, engine.can_copy
