"""Real rank processes for the tests beside this file: a function run by every rank of a gloo group.

The processes are forked from a clean parent that has imported torch (multiprocessing's forkserver), because
importing it in each would take most of the time.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from resumable_training.checkpoint import CheckpointEngine, Reached, SaveReport, TrainingState, lineage
from resumable_training.checkpoint import engine as engine_module
from resumable_training.checkpoint.errors import StoreMisconfigured
from resumable_training.contract.assignment import CheckpointConfig

SECONDS = 120.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "resumable_training.checkpoint.engine"]
)


def run_ranks(world_size: int, program: Callable[..., Any], directory: Path, *arguments: Any) -> list[Any]:
    """Results of ``program(rank, world_size, group, *arguments)`` on every rank, in order."""
    results: Any = _CONTEXT.Queue()
    meeting = directory / f"meeting-{os.urandom(4).hex()}"
    processes = [
        _CONTEXT.Process(target=_rank, args=(rank, world_size, str(meeting), program, arguments, results))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(_collect(results, processes) for _ in processes)
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
    errors = [text for kind, text in found.values() if kind == "error"]
    assert not errors, "\n".join(errors)
    return [pickle.loads(found[rank][1]) for rank in range(world_size)]


def _collect(results: Any, processes: list[Any]) -> tuple[int, tuple[str, Any]]:
    try:
        rank, kind, value = results.get(timeout=SECONDS)
    except queue.Empty:
        raise AssertionError(f"ranks hang: {[process.exitcode for process in processes]}") from None
    return rank, (kind, value)


def _rank(
    rank: int, world_size: int, meeting: str, program: Callable[..., Any], arguments: Any, results: Any
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    group = dist.new_group(backend="gloo") if world_size > 1 else None
    try:
        results.put((rank, "value", pickle.dumps(program(rank, world_size, group, *arguments))))
    except BaseException:  # goes to the test, which fails with it
        results.put((rank, "error", f"rank {rank}:\n{traceback.format_exc()}"))
    finally:
        results.close()
        results.join_thread()  # the result is out before peers may see this rank leave
        dist.destroy_process_group()


class Model(nn.Module):
    """Tied weights, dim 0 smaller than most worlds, scalars, bf16, a buffer, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.narrow = nn.Linear(4, 1)  # dim 0 is 1
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.brain = nn.Linear(2, 3, bias=False, dtype=torch.bfloat16)
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        hidden = torch.tanh(self.middle(self.embedding(tokens)))
        return (
            self.head(hidden).sum()
            + self.narrow(hidden).sum()
            + self.brain(torch.ones(1, 2, dtype=torch.bfloat16)).float().sum()
        )


def make_state(kind: str, seed: int, world_size: int) -> TrainingState:
    """``kind``: plain | ddp | fsdp | compiled. Two groups and one without parameters."""
    torch.manual_seed(seed)
    model: nn.Module = Model()
    if kind == "fsdp":
        mesh = dist.init_device_mesh("cpu", (world_size,))
        fully_shard(model.middle, mesh=mesh)
        fully_shard(model.brain, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "compiled":
        model = torch.compile(model, backend="eager")
    named = dict(model.named_parameters())
    first = [parameter for key, parameter in named.items() if "middle" in key]
    rest = [parameter for key, parameter in named.items() if "middle" not in key]
    optimizer = torch.optim.AdamW(
        [{"params": first, "lr": 0.1}, {"params": []}, {"params": rest, "weight_decay": 0.3}], lr=0.05
    )
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], gamma=0.5)
    return TrainingState({"model": model}, {"optimizer": optimizer}, {"scheduler": scheduler})


def train(state: TrainingState, steps: int) -> None:
    """Every rank has the same batch, so that results do not depend on the world size."""
    optimizer, scheduler = state.optimizers["optimizer"], state.stateful["scheduler"]
    for _ in range(steps):
        state.modules["model"](torch.arange(5)).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def full_values(state: TrainingState) -> dict[str, Any]:
    """Everything tracked, whole, on every rank: what must be equal after a resume."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True)
    model, optimizer = get_state_dict(state.modules["model"], state.optimizers["optimizer"], options=options)
    flat = {f"model.{key}": value.clone() for key, value in model.items()}
    for key, values in optimizer["state"].items():
        flat.update({f"state.{key}.{name}": torch.as_tensor(value).clone() for name, value in values.items()})
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer["param_groups"]]
    scheduler = dict(state.stateful["scheduler"].state_dict())
    return {"tensors": flat, "groups": groups, "scheduler": scheduler}


def make_engine(
    root: str,
    rank: int,
    world_size: int,
    group: Any,
    *,
    attempt: int = 1,
    host: str | None = "127.0.0.1",
    warn: Callable[[str], None] = lambda text: None,
    **config: Any,
) -> CheckpointEngine:
    """An engine that has passed preflight and does not wait long. ``host`` None: saves are synchronous."""
    engine = CheckpointEngine(
        CheckpointConfig(directory=root, **config),
        "local/test",
        "uid",
        attempt,
        group,
        rank,
        world_size,
        warn,
        retry_seconds=(0.05,),
        host=host,
    )
    engine.preflight()
    return engine


def save_run(rank: int, world_size: int, group: Any, root: str, kind: str, steps: int) -> dict[str, Any]:
    """Train and save; what was saved, as values."""
    state = make_state(kind, 1, world_size)
    engine = make_engine(root, rank, world_size, group)
    assert engine.restore(state) is None
    train(state, steps)
    report = save(engine, state, steps, rank)
    assert report.ok, report.message
    engine.close()
    return full_values(state)


def load_run(rank: int, world_size: int, group: Any, root: str, kind: str, attempt: int) -> dict[str, Any]:
    """Restore into a model of another seed; what was loaded."""
    state = make_state(kind, 2, world_size)
    engine = make_engine(root, rank, world_size, group, attempt=attempt)
    report = engine.restore(state)
    assert report is not None
    own = None if report.per_rank is None else report.per_rank["rng"]
    return {**full_values(state), "report": (report.step, report.samples, report.shared, own)}


def save(engine: CheckpointEngine, state: TrainingState, step: int, rank: int) -> SaveReport:
    """Save and wait until it is durable."""
    begin(engine, state, step, rank)
    report = engine.wait()
    assert report is not None
    return report


def begin(
    engine: CheckpointEngine, state: TrainingState, step: int, rank: int, *, anew: bool = False
) -> SaveReport:
    return engine.save(state, reached(step, rank), anew=anew)


def reached(step: int, rank: int) -> Reached:
    shared = {"fingerprint": {"length": 10}, "step": step}
    return Reached(step, step * 64, shared, {"rng": b"rng of %d" % rank, "empty": b""})


def error_of(call: Callable[[], object]) -> str:
    """Class and text of what a call raises; empty when it raises nothing."""
    try:
        call()
    except Exception as error:  # the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def preflight_run(rank: int, world_size: int, group: Any, roots: list[str], known: bool) -> str:
    """Every rank looks at its own directory; what preflight says."""
    return error_of(lambda: make_engine(roots[rank], rank, world_size, group, known_checkpoint=known))


def unlike_machines_run(
    rank: int,
    world_size: int,
    group: Any,
    root: str,
    environment: dict[str, str],
    lacking: list[int],
    refused: list[int],
    known: bool,
) -> str:
    """Some ranks lack the client of object storage, some have other keys; what preflight says."""
    os.environ.update(environment)
    if rank in lacking:
        sys.modules["obstore.store"] = None  # type: ignore[assignment]
    if rank in refused:
        os.environ["AWS_SECRET_ACCESS_KEY"] = "another"
    return error_of(lambda: make_engine(root, rank, world_size, group, known_checkpoint=known))


def full_disk_run(rank: int, world_size: int, group: Any, root: str, ballast: str | None) -> list[Any]:
    """Save onto a full disk, then again after space was made."""
    state = make_state("ddp", 1, world_size)
    host = "127.0.0.1" if ballast else None  # limits of this process are none of its writer's
    engine = make_engine(root, rank, world_size, group, host=host)
    engine.restore(state)
    first = save(engine, state, 1, rank)
    train(state, 1)
    with _no_room(rank, ballast):
        full = save(engine, state, 2, rank)
    left = sorted(path.name for path in Path(root).iterdir() if path.name.startswith("step"))
    train(state, 1)
    again = save(engine, state, 3, rank)
    return [(first.ok, full.ok, again.ok), full.message, left]


@contextmanager
def _no_room(rank: int, ballast: str | None) -> Iterator[None]:
    """Fill the disk that ``ballast`` is on; None: forbid large files instead, without a disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ballast is None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    elif rank == 0:
        _fill(ballast)
    dist.barrier()
    yield
    dist.barrier()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if ballast is not None and rank == 0:
        os.unlink(ballast)
    dist.barrier()


def _fill(path: str) -> None:
    """Take all space but a little."""
    with open(path, "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"\0" * 4096)
        except OSError:
            stream.truncate(max(0, stream.tell() - 24 * 1024))


def one_bad_rank_run(rank: int, world_size: int, group: Any, root: str) -> list[str]:
    """One rank fails while state is collected, while a checkpoint is opened, and while it is loaded."""
    state = make_state("ddp", 1, world_size)
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    good = state.stateful["scheduler"]
    if rank == 1:
        state.stateful["scheduler"] = _Broken()
    saving = error_of(lambda: save(engine, state, 1, rank))
    state.stateful["scheduler"] = good
    assert save(engine, state, 2, rank).ok
    again = make_engine(root, rank, world_size, group, attempt=2)
    recall = engine_module.recall
    if rank == 1:
        engine_module.recall = _fail  # type: ignore[assignment]
    opening = error_of(lambda: again.restore(state))
    engine_module.recall = recall
    if rank == 1:
        state.stateful["scheduler"] = _Broken(saves=True)
    return [saving, opening, error_of(lambda: again.restore(state))]


def unopened_source_run(rank: int, world_size: int, group: Any, root: str, other: str) -> str:
    """One rank can't open the store that is to be resumed from; what the restore raises."""
    state = make_state("ddp", 1, world_size)
    engine = make_engine(root, rank, world_size, group, resume_from=other)
    if rank == 1:
        lineage.open_checkpoint = _no_client
    return error_of(lambda: engine.restore(state))


def _no_client(location: str) -> Any:
    raise StoreMisconfigured(f"{location}: no client for it is installed")


def _fail(*_: Any) -> None:
    raise ZeroDivisionError("mine")


class _Broken:
    def __init__(self, saves: bool = False) -> None:
        self.saves = saves

    def state_dict(self) -> dict[str, Any]:
        if not self.saves:
            raise ZeroDivisionError("mine")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ZeroDivisionError("mine")


def one_bad_reader_run(rank: int, world_size: int, group: Any, root: str) -> list[Any]:
    """One rank reads other bytes than all the others: its machine is at fault, not the checkpoint."""
    from resumable_training.checkpoint.local import LocalStore

    real = LocalStore.read_into

    def lie(self: LocalStore, name: str, offset: int, place: memoryview) -> int:
        came = real(self, name, offset, place)
        place[:came] = b"?" * came
        return came

    if rank == 1:
        LocalStore.read_into = lie  # type: ignore[method-assign]
    state = make_state("ddp", 2, world_size)
    engine = make_engine(root, rank, world_size, group, attempt=2)
    return [error_of(lambda: engine.restore(state))]


def different_replicas_run(rank: int, world_size: int, group: Any, root: str, kind: str) -> Any:
    """What is the same on all ranks in theory differs here; what comes back."""
    state = make_state(kind, 1, world_size)
    engine = make_engine(root, rank, world_size, group)
    engine.restore(state)
    _set_own(state, rank)
    assert save(engine, state, 1, rank).ok
    fresh = make_state(kind, 2, world_size)
    make_engine(root, rank, world_size, group, attempt=2).restore(fresh)
    seen = {name: int(value) for name, value in fresh.modules["model"].named_buffers()}
    rates = [group["lr"] for group in fresh.optimizers["optimizer"].param_groups]
    return [*seen.values(), *rates]


def _set_own(state: TrainingState, rank: int) -> None:
    for buffer in state.modules["model"].buffers():
        buffer.fill_(rank)
    for options in state.optimizers["optimizer"].param_groups:
        options["lr"] = float(rank)
