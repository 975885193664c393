"""Rank programs for checkpoints of other programs, and for what a resume reads. See ``rank_programs``."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import engine_job
import rank_programs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from resumable_training.checkpoint import CheckpointEngine, Reached, TrainingState, moments, shelf
from resumable_training.checkpoint.blocks import Blocks
from resumable_training.checkpoint.catalog import Catalog
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.marker import load_real
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.read import Reader
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import MARKER_FILE

STEPS = 3


def plain_save(rank: int, world_size: int, group: Any, path: str, kind: str, layout: str) -> dict[str, Any]:
    """What other programs do: a ``dcp.save`` in one of the usual layouts; the values that it saved."""
    state = rank_programs.make_state(kind, 1, world_size)
    rank_programs.train(state, STEPS)
    dcp.save(laid_out(state, layout), checkpoint_id=path)
    return rank_programs.full_values(state)


def laid_out(state: TrainingState, layout: str) -> dict[str, Any]:
    model, optimizer = state.modules["model"], state.optimizers["optimizer"]
    options = StateDictOptions(flatten_optimizer_state_dict=layout == "torchtitan")
    weights, averages = get_state_dict(model, optimizer, options=options)
    if layout == "torchtitan":
        return {
            **weights,
            "optimizer": averages,
            "lr_scheduler": state.stateful["scheduler"].state_dict(),
            "dataloader": {"dp_rank_0": pickle.dumps({"at": 7})},
            "train_state": {"step": torch.tensor(STEPS), "losses": b"..."},
        }
    if layout == "application":
        return {"app": {"model": weights, "optim": averages}, "iteration": STEPS}
    if layout == "weights":
        return {"state": weights}
    assert layout == "numbered"  # without any of DCP's helpers
    return {"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 1}


def resume(rank: int, world_size: int, group: Any, root: str, path: str, kind: str) -> dict[str, Any]:
    """Resume from there into a model of another seed; what was loaded and said."""
    said: list[str] = []
    state = rank_programs.make_state(kind, 2, world_size)
    engine = CheckpointEngine(
        CheckpointConfig(directory=root, resume_from=path),
        "local/test",
        "uid",
        1,
        group,
        rank,
        world_size,
        said.append,
        retry_seconds=(0.05,),
    )
    engine.preflight()
    report = engine.restore(state)
    assert report is not None
    return {**rank_programs.full_values(state), "said": said}


def wide_state(kind: str, world_size: int, width: int = 1100) -> TrainingState:
    """Enough bytes for several blocks: three matrices, biases, AdamW."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 7))
    if kind == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("r", "s")))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return TrainingState({"model": model}, {"optimizer": optimizer})


def save_wide(rank: int, world_size: int, group: Any, root: str, kind: str) -> dict[str, float]:
    state = wide_state(kind, world_size)
    engine = rank_programs.make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert rank_programs.save(engine, state, 1, rank).ok
    engine.close()
    return digest(state)


def load_wide(
    rank: int, world_size: int, group: Any, root: str, kind: str, attempt: int, where: str = "together"
) -> dict[str, Any]:
    """What this rank reads of the shards, and what it then has.

    ``where``: "together"; "apart", each rank on a machine of its own; "blind", rank 1 sees no other process.
    """
    if where == "apart":
        live_apart(rank)
    if where == "blind" and rank == 1:
        shelf.Neighbours = _no_neighbours  # type: ignore[assignment, misc]
    meter = Meter()
    meter.install()
    state = wide_state(kind, world_size)
    with torch.no_grad():
        for parameter in state.modules["model"].parameters():
            parameter.zero_()
    report = rank_programs.make_engine(root, rank, world_size, group, attempt=attempt).restore(state)
    assert report is not None
    return {"bytes": meter.bytes, "ranges": meter.ranges, "values": digest(state)}


def _no_neighbours(addresses: Any) -> Any:
    raise PermissionError("/proc is hidden")


def live_apart(rank: int) -> None:
    """As if each rank were on a machine of its own."""
    shelf.machine = lambda: f"machine of rank {rank}"


def count_exchanges(
    rank: int, world_size: int, group: Any, root: str, kind: str, apart: bool
) -> tuple[int, ...]:
    """Collectives of a preflight and of a restore, and those of both on the default group."""
    if apart:
        live_apart(rank)
    state = rank_programs.make_state(kind, 2, world_size)
    begun = [_done(group), _done(dist.group.WORLD)]
    engine = rank_programs.make_engine(root, rank, world_size, group, attempt=2)
    proven = _done(group)
    assert engine.restore(state) is not None
    return proven - begun[0], _done(group) - proven, _done(dist.group.WORLD) - begun[1]


def _done(group: Any) -> int:
    """Collectives that this rank has begun on it, by the group's own count."""
    return int(group._get_sequence_number_for_group())


def forget_peak() -> None:
    """This process's highest memory use counts from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory(what: str) -> int:
    """Bytes of a line of this process's status, such as VmHWM."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{what}:"))


class Bulky(nn.Module):
    """160 MB in 20 parameters; each is filled with its number."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(20):
            self.register_parameter(f"p{number}", nn.Parameter(torch.full((1 << 21,), float(number))))


def bulky_state(kind: str, world_size: int) -> TrainingState:
    model = Bulky()
    if kind == "fsdp":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world_size,)))
    return TrainingState({"model": model}, {})


def save_bulky(rank: int, world_size: int, group: Any, root: str) -> None:
    state = bulky_state("plain", world_size)
    engine = rank_programs.make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert rank_programs.save(engine, state, 1, rank).ok
    engine.close()


def load_bulky(
    rank: int, world_size: int, group: Any, root: str, kind: str, attempt: int, apart: bool
) -> dict[str, int]:
    """Bytes beyond those of the loaded state that this rank had at once."""
    if apart:
        live_apart(rank)
    state = bulky_state(kind, world_size)
    for parameter in state.modules["model"].parameters():
        nn.init.zeros_(parameter)
    engine = rank_programs.make_engine(root, rank, world_size, group, attempt=attempt)
    before = memory("VmRSS")
    forget_peak()
    assert engine.restore(state) is not None
    peak = memory("VmHWM") - before
    values = [float(_local(parameter).mean()) for parameter in state.modules["model"].parameters()]
    assert values == [float(number) for number in range(20)]
    return {"peak": peak}


def _local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def digest(state: TrainingState) -> dict[str, float]:
    """Sums of all whole tensors: as good as the tensors to see that they are the same, and small."""
    options = StateDictOptions(full_state_dict=True)
    model, optimizer = get_state_dict(state.modules["model"], state.optimizers["optimizer"], options=options)
    flat = {**model, **{f"{k}.{n}": v for k, each in optimizer["state"].items() for n, v in each.items()}}
    scale = {key: torch.arange(1, value.numel() + 1, dtype=torch.float64) for key, value in flat.items()}
    return {key: float((value.double().flatten() * scale[key]).sum()) for key, value in flat.items()}


class Meter:
    """Counts what is read of shards."""

    def __init__(self) -> None:
        self.bytes = 0
        self.ranges: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def install(self) -> None:
        real, real_into = LocalStore.read, LocalStore.read_into

        def read(store: LocalStore, name: str, offset: int = 0, length: int | None = None) -> bytes:
            data = real(store, name, offset, length)
            self._count(name, offset, len(data))
            return data

        def read_into(store: LocalStore, name: str, offset: int, place: memoryview) -> int:
            came = real_into(store, name, offset, place)
            self._count(name, offset, came)
            return came

        LocalStore.read = read  # type: ignore[method-assign]
        LocalStore.read_into = read_into  # type: ignore[method-assign]

    def _count(self, name: str, offset: int, length: int) -> None:
        if name.endswith(".distcp"):
            with self._lock:
                self.bytes += length
                self.ranges.append((Path(name).name, offset, length))


def read_sharded(
    rank: int, world_size: int, group: Any, path: str, block_bytes: int
) -> tuple[dict[str, torch.Tensor], int]:
    """Read ``odd_tensors`` into shards of all kinds; whole again, and how many bytes this rank has read."""
    mesh = dist.init_device_mesh("cpu", (world_size,))
    wanted = {
        key: distribute_tensor(
            torch.zeros_like(value), mesh, [Shard(int(key[-1])) if "shard" in key else Replicate()]
        )
        for key, value in odd_tensors().items()
    }
    meter = Meter()
    meter.install()
    found = read_into(wanted, Path(path), block_bytes, Ranks(group, rank, world_size))
    return {key: value.full_tensor() for key, value in found.items()}, meter.bytes


def read_into(
    places: dict[str, torch.Tensor], path: Path, block_bytes: int, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """The places, filled from a checkpoint of DCP's."""
    catalog = Catalog(load_real((path / MARKER_FILE).read_bytes()))
    blocks = Blocks(catalog.needed_bytes(), block_bytes)
    found: dict[str, Any] = {}
    Reader(LocalStore(path.parent), path.name, catalog, blocks, ranks).read(lambda: places, found.update)
    return found


def odd_tensors() -> dict[str, torch.Tensor]:
    """Types and orders of memory; the number at a key's end is the dimension that it is sharded in."""
    generator = torch.Generator().manual_seed(3)
    square = torch.randn(37, 41, generator=generator)
    return {
        "rows shard 0": square,
        "columns shard 1": square + 1,
        "transposed shard 0": (square + 2).t(),
        "last channels shard 1": torch.randn(2, 5, 3, 4, generator=generator).to(
            memory_format=torch.channels_last
        ),
        "half shard 0": square.bfloat16(),
        "small shard 0": torch.arange(2.0),
        "number": torch.tensor(7),
        "bytes": torch.arange(255, dtype=torch.uint8),
        "empty": torch.empty(0, 3),
        "large": torch.arange(5000.0),
    }


def late_damage(rank: int, world_size: int, group: Any, root: str) -> list[Any]:
    """Of two checkpoints the newer one's end is damaged: what a wish for it, and a resume, make of that."""
    state = wide_state("ddp", world_size)
    engine = rank_programs.make_engine(root, rank, world_size, group)
    engine.restore(state)
    assert rank_programs.save(engine, state, 1, rank).ok
    older = digest(state)
    with torch.no_grad():
        state.modules["model"].module[0].weight.add_(1.0)
    assert rank_programs.save(engine, state, 2, rank).ok
    engine.close()
    if rank == 0:
        _flip_end(Path(root) / "step-00000002.1")
    dist.barrier()
    with torch.no_grad():
        state.modules["model"].module[0].weight.fill_(0.5)
    before = digest(state)
    wish = rank_programs.make_engine(root, rank, world_size, group, attempt=2, resume_from="step-00000002.1")
    error = rank_programs.error_of(lambda: wish.restore(state))
    untouched = digest(state) == before
    report = rank_programs.make_engine(root, rank, world_size, group, attempt=3).restore(state)
    assert report is not None
    return [error, untouched, report.step, digest(state) == older]


def _flip_end(checkpoint: Path) -> None:
    """In the last file, in the last values of it."""
    shard = max(checkpoint.glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[-5000] ^= 1
    shard.write_bytes(data)


def save_own_values(rank: int, world_size: int, group: Any, root: str) -> None:
    """Each rank has 20 MB of its own; with fewer ranks nobody needs those of the last."""
    state = rank_programs.make_state("ddp", 1, world_size)
    engine = rank_programs.make_engine(root, rank, world_size, group)
    engine.restore(state)
    for step in (1, 2):
        own = {"rng": bytes([rank]) * 20_000_000}
        assert engine.save(state, Reached(step, step, {}, own)).ok
        rank_programs.train(state, 1)
    engine.close()


def resume_until(root: Path, name: str) -> None:
    """A process of one rank that dies at a moment of its second attempt's restore."""
    os.environ[moments.WISH] = name
    engine_job.Job(root).engine(2).restore(engine_job.make_state())
