"""What is saved, in PyTorch's own layout: ``{"model": ..., "optimizer": ...}``, as its functions make it.

So any DCP program reads our checkpoints. Beside that, as byte tensors of plain JSON (never pickle):
``resumable/shared``, ``resumable/stateful/<name>``, and one key per rank and value, ``rank-00003/rng``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from resumable_training.checkpoint.errors import StateMismatch
from resumable_training.checkpoint.mismatch import without_wrappers
from resumable_training.checkpoint.plain import as_it_reads, plain_of
from resumable_training.checkpoint.values import to_text

SHARED_KEY = "resumable/shared"
STATEFUL_PREFIX = "resumable/stateful/"
_EXTRA = "_extra_state"  # torch's name for what a module's get_extra_state() gives


@dataclass
class TrainingState:
    """Everything that is tracked. Names become the first part of the keys in the checkpoint.

    Raises:
        ValueError: a name can't be a key, or is used twice.
        TypeError: a module is wrapped in FSDP1, whose flat parameters are not supported.
    """

    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer] = field(default_factory=dict)
    stateful: dict[str, Any] = field(default_factory=dict)  # with state_dict() and load_state_dict()

    def __post_init__(self) -> None:
        names = [*self.modules, *self.optimizers, *self.stateful]
        for name in names:
            if not name or set("./") & set(name) or names.count(name) > 1:
                raise ValueError(f"tracked name {name!r} must be unique, and without '.' and '/'")
        for name, module in self.modules.items():
            if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
                raise TypeError(
                    f"{name!r} uses FullyShardedDataParallel (FSDP1): use torch.distributed.fsdp.fully_shard"
                )

    def owner_of(self, name: str) -> nn.Module:
        """The module that optimizer ``name`` works on; all modules as one if it spans several.

        Raises:
            StateMismatch: it holds parameters of no tracked module.
        """
        wanted = {id(p) for group in self.optimizers[name].param_groups for p in group["params"]}
        everything = nn.ModuleDict(self.modules)
        for module in (*self.modules.values(), everything):
            if wanted <= {id(parameter) for parameter in module.parameters()}:
                return module
        raise StateMismatch(f"optimizer {name!r} has parameters that belong to no tracked module")


@dataclass(frozen=True)
class Content:
    """Everything that one save holds. ``shared``: the same on all ranks; ``per_rank``: this rank's own."""

    state: TrainingState
    shared: Mapping[str, Any]
    per_rank: Mapping[str, bytes]

    def build(self, rank: int) -> dict[str, Any]:
        """As ``build_state_dict``."""
        return build_state_dict(self.state, shared=self.shared, per_rank=self.per_rank, rank=rank)


def build_state_dict(
    state: TrainingState, *, shared: Mapping[str, Any], per_rank: Mapping[str, bytes], rank: int
) -> dict[str, Any]:
    """State dict for ``dcp.save``; tensors alias the live ones.

    Values that every rank has, and that may differ between them, are given by rank 0 alone (buffers, which
    DDP takes from rank 0 too, hyper-parameters, texts): DCP would otherwise keep whichever copy its load
    balancing picks. Replicated parameters and their optimizer state are alike, and stay balanced.

    Raises:
        NotPlain: a value that could only be saved with pickle.
        Unstorable: a tensor of a kind that can't be saved.
    """
    texts, tensors = own_entries(state, shared=shared, per_rank=per_rank, rank=rank)
    bytes_ = {key: byte_tensor(data) for key, data in texts.items()}
    return {**as_it_reads(tracked_entries(state, rank)), **bytes_, **as_it_reads(tensors)}


def tracked_entries(state: TrainingState, rank: int) -> dict[str, Any]:
    """The part of ``build_state_dict`` that modules and optimizers give, by their names."""
    result: dict[str, Any] = {
        name: _module_entries(name, module, rank) for name, module in state.modules.items()
    }
    for name in state.optimizers:
        result[name] = _optimizer_entries(state, name, rank)
    return result


def own_entries(
    state: TrainingState, *, shared: Mapping[str, Any], per_rank: Mapping[str, bytes], rank: int
) -> tuple[dict[str, bytes], dict[str, torch.Tensor]]:
    """The rest of it: what is stored as bytes, and tensors of other tracked objects."""
    texts: dict[str, bytes] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, thing in state.stateful.items():
        found: list[Any] = []
        text = to_text(thing.state_dict(), found, where=name)
        for index, tensor in enumerate(found):
            if rank == 0 or isinstance(tensor, DTensor):
                tensors[stateful_key(name, index)] = tensor.detach()
        if rank == 0:
            texts[stateful_key(name)] = text
    for name, data in per_rank.items():
        texts[per_rank_key(rank, name)] = data
    if rank == 0:
        texts[SHARED_KEY] = to_text(dict(shared), where="run")
    return texts, tensors


def given_by_rank_0(state: TrainingState, paths: Mapping[str, tuple[str | int, ...]]) -> set[str]:
    """Keys of tensors that may differ between ranks, so that only rank 0's count; ``paths`` as flattened.

    These are buffers, extra state of modules, and hyper-parameters of optimizers that are tensors.
    """
    buffers = {name: _buffers(module) for name, module in state.modules.items()}
    return {
        key
        for key, path in paths.items()
        if len(path) > 1
        and (
            _is_own(str(path[1]), buffers[str(path[0])]) if path[0] in buffers else path[1] == "param_groups"
        )
    }


def _buffers(module: nn.Module) -> set[str]:
    return {without_wrappers(key) for key, _ in module.named_buffers()}


def _is_own(key: str, buffers: set[str]) -> bool:
    """Whether each rank has a value of its own under a module's key."""
    return key in buffers or key.rpartition(".")[2] == _EXTRA


def _module_entries(name: str, module: nn.Module, rank: int) -> dict[str, Any]:
    entries: dict[str, Any] = get_model_state_dict(module)
    entries = {key: plain_of(value, f"{name}.{key}") for key, value in entries.items()}
    if rank == 0:
        return entries
    buffers = _buffers(module)
    return {
        key: value
        for key, value in entries.items()
        if isinstance(value, DTensor)
        or (isinstance(value, torch.Tensor) and not _is_own(without_wrappers(key), buffers))
    }


def _optimizer_entries(state: TrainingState, name: str, rank: int) -> dict[str, Any]:
    entries = optimizer_state_dict(state, name)
    kept = {
        parameter: {key: plain_of(value, f"{name}.state.{parameter}.{key}") for key, value in values.items()}
        for parameter, values in entries.get("state", {}).items()
    }
    return {**entries, "state": kept} if rank == 0 else {"state": kept}


def per_rank_key(rank: int, name: str) -> str:
    return f"rank-{rank:05d}/{name}"


def stateful_key(name: str, index: int | None = None) -> str:
    """Key of the text of a tracked object, or of its ``index``-th tensor."""
    return f"{STATEFUL_PREFIX}{name}" + ("" if index is None else f"/{index:05d}")


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def optimizer_state_dict(state: TrainingState, name: str) -> dict[str, Any]:
    """State of one optimizer under parameter names.

    PyTorch's own function would run ``step()`` on an optimizer without state, which moves its step count:
    a resumed run would then differ from one that was never interrupted.

    Raises:
        NotPlain: a hyper-parameter that a resume could not read without pickle.
        Unstorable: one that is a tensor of a kind that can't be saved.
    """
    optimizer = state.optimizers[name]
    with _never_stepped(optimizer):
        result: dict[str, Any] = dict(get_optimizer_state_dict(state.owner_of(name), optimizer))
    result["param_groups"] = [
        {
            key: value if key == "params" else plain_of(value, f"{name}.param_groups.{index}.{key}")
            for key, value in group.items()
        }
        for index, group in enumerate(result["param_groups"])
    ]
    return result


@contextmanager
def _never_stepped(optimizer: Optimizer) -> Iterator[None]:
    """PyTorch leaves an optimizer alone when one of its parameters has a gradient."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    needed = not optimizer.state and all(p.grad is None for p in parameters)
    stand_in = next((p for p in parameters if p.requires_grad), None) if needed else None
    if stand_in is not None:
        stand_in.grad = torch.zeros_like(stand_in)
    try:
        yield
    finally:
        if stand_in is not None:
            stand_in.grad = None


def flat_modules(state: TrainingState) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Live values of all tracked modules under the checkpoint's keys, and each key's path.

    Raises:
        NotPlain, Unstorable: as a save would.
    """
    entries = {
        name: {key: plain_of(value, f"{name}.{key}") for key, value in get_model_state_dict(module).items()}
        for name, module in state.modules.items()
    }
    flat, paths = flatten_state_dict(entries)
    return dict(flat), dict(paths)


def extra_state_of(path: Sequence[Any], state: TrainingState) -> str:
    """The module's extra state that a value at this path is part of, as a key; "" for anything else.

    What it holds is its module's business, and may be another structure in each checkpoint.
    """
    is_extra = len(path) > 1 and path[0] in state.modules and str(path[1]).rpartition(".")[2] == _EXTRA
    return f"{path[0]}.{path[1]}" if is_extra else ""


def shape_of(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def check_schedules(state: TrainingState) -> list[str]:
    """Learning rates on which a schedule and its optimizer disagree, as text; after a load there are none."""
    found = []
    for name, thing in state.stateful.items():
        optimizer, last = getattr(thing, "optimizer", None), getattr(thing, "_last_lr", None)
        if not isinstance(optimizer, Optimizer) or not isinstance(last, list):
            continue
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if rates != [float(rate) for rate in last]:
            found.append(f"{name} says learning rate {[float(rate) for rate in last]}, its optimizer {rates}")
    return found


def overruled_schedule(name: str, schedule: Any, saved: Any) -> str:
    """What an LR schedule was built with and will not follow, since its state holds it too; or nothing."""
    if not isinstance(getattr(schedule, "optimizer", None), Optimizer) or not isinstance(saved, dict):
        return ""
    given = inspect.signature(type(schedule).__init__).parameters.keys() - {"last_epoch", "last_step"}
    now = schedule.state_dict()
    found = [
        f"{key} {saved[key]!r} (the script says {now[key]!r})"
        for key in sorted(given & now.keys() & saved.keys())
        if isinstance(now[key], (bool, int, float, str)) and now[key] != saved[key]
    ]
    return (
        f"{name} goes on as saved, with {', '.join(found)}: to change it, set it after run.track"
        if found
        else ""
    )


def require_tracked(state: TrainingState) -> None:
    """Raise StateMismatch when there is nothing to save or restore."""
    if not state.modules:
        raise StateMismatch("no module is tracked: call run.track(model=..., optimizer=...) first")
