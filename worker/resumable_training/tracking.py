"""What ``run.track`` was given: sorted by kind, checked, and how its gradients are synchronised."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from resumable_training.errors import UserError
from resumable_training.process_group import of_one

Warn = Callable[[str], None]


@dataclass
class Tracked:
    """Objects whose state is saved, by the user's names for them."""

    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    stateful: dict[str, Any] = field(default_factory=dict)  # LR schedulers and everything else


def sort_out(objects: Mapping[str, Any]) -> Tracked:
    """Raises:
    UserError: an object has no ``state_dict`` and ``load_state_dict``; all such are named.
    """
    tracked = Tracked()
    wrong = []
    for name, value in objects.items():
        if isinstance(value, torch.nn.Module):
            tracked.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            tracked.optimizers[name] = value
        elif callable(getattr(value, "state_dict", None)) and callable(
            getattr(value, "load_state_dict", None)
        ):
            tracked.stateful[name] = value
        else:
            wrong.append(f"{name} ({type(value).__name__})")
    if wrong:
        raise UserError(
            f"run.track can't save {', '.join(wrong)}: an object needs state_dict() and load_state_dict(); "
            "put plain values into run.extras"
        )
    return tracked


def learning_rates(tracked: Tracked) -> dict[str, list[float]]:
    """The rates that optimizers would step with now."""
    return {
        name: [float(group["lr"]) for group in optimizer.param_groups]
        for name, optimizer in tracked.optimizers.items()
    }


def disagreeing_schedulers(tracked: Tracked) -> list[str]:
    """Names of LR schedulers whose last rate is not that of their optimizer; some scripts mean that."""
    names = []
    for name, scheduler in tracked.stateful.items():
        optimizer = getattr(scheduler, "optimizer", None)
        if isinstance(optimizer, torch.optim.Optimizer) and hasattr(scheduler, "_last_lr"):
            current = [float(group["lr"]) for group in optimizer.param_groups]
            if [float(rate) for rate in scheduler._last_lr] != current:
                names.append(name)
    return names


def check_learning_rates(tracked: Tracked, saved: Mapping[str, Any]) -> None:
    """After a load, optimizers and schedulers must be as they were when ``saved`` was taken.

    Raises:
        UserError: they are not; training would go on with other rates than without the interruption.
    """
    problems = []
    for name, rates in learning_rates(tracked).items():
        before = saved.get("rates", {}).get(name)
        if before is not None and before != rates:
            problems.append(
                f"optimizer {name!r} was saved with learning rates {before} and came back with {rates}"
            )
    known = saved.get("disagreeing", [])
    problems += [
        f"scheduler {name!r} and its optimizer disagree about the learning rate"
        for name in disagreeing_schedulers(tracked)
        if name not in known
    ]
    if problems:
        raise UserError("after the restore: " + "; ".join(problems))


class GradientSync:
    """Switches gradient synchronisation of all DDP and FSDP2 modules on and off."""

    def __init__(self, tracked: Tracked) -> None:
        self._on = True
        self._ddp: list[DistributedDataParallel] = []
        self._fsdp: list[FSDPModule] = []
        for module in tracked.modules.values():
            self._collect(module)

    @property
    def found(self) -> bool:
        """Whether anything synchronises gradients."""
        return bool(self._ddp or self._fsdp)

    @property
    def ddp(self) -> list[DistributedDataParallel]:
        return self._ddp

    def set(self, on: bool) -> None:
        """Before a micro-batch's forward: whether its backward is the step's last."""
        if on == self._on:
            return
        self._on = on
        for ddp in self._ddp:
            ddp.require_backward_grad_sync = on
        for fsdp in self._fsdp:
            fsdp.set_requires_gradient_sync(on)

    def _collect(self, module: torch.nn.Module) -> None:
        if isinstance(module, FSDPModule):
            self._fsdp.append(module)  # its children follow it
            return
        if isinstance(module, DistributedDataParallel):
            self._ddp.append(module)
            return
        for child in module.children():
            self._collect(child)


def check_synchronisation(sync: GradientSync, world_size: int, warn: Warn) -> None:
    """Warn about wrappings that train, but not as people expect."""
    if world_size > 1 and not sync.found:
        warn(
            "no tracked module is wrapped in DDP or FSDP2, so ranks do not share gradients; "
            "wrap it with run.ddp(model) unless the script reduces them itself"
        )
    if world_size >= 3 and any(not _rebuilds_no_buckets(ddp) for ddp in sync.ddp):
        warn(
            "DDP rebuilds its buckets after the first backward, so with 3 or more ranks the first step after "
            "a resume may sum in another order: equal within rounding, not bit for bit; "
            "run.ddp(model) avoids that"
        )


def _rebuilds_no_buckets(ddp: DistributedDataParallel) -> bool:
    return ddp in _settled or (bool(ddp.find_unused_parameters) and not bool(ddp.static_graph))


_settled: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()  # had their buckets rebuilt already


def wrap_ddp(
    model: torch.nn.Module, device: torch.device, world_size: int, options: dict[str, Any]
) -> DistributedDataParallel:
    """DDP whose resume is bit for bit: from 3 ranks on buckets must not be rebuilt in a step that counts.

    DDP rebuilds its buckets once, after the first backward, and sums in another order from then on. A
    throw-away pass has that behind us, once an attempt; on CPUs nothing is reduced in it.
    """
    if device.type == "cuda":
        options = {"device_ids": [device.index], **options}
    ddp = DistributedDataParallel(model, **options)
    if world_size >= 3 and not ddp.static_graph and not ddp.find_unused_parameters:
        _settle_buckets(ddp)
    return ddp


class _SumOfParameters(torch.nn.Module):
    """Stands in for the model: every parameter gets a gradient, the last one first, as in most models."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self._all = parameters  # in a list, so that they are not registered a second time

    def forward(self) -> torch.Tensor:
        total = torch.zeros((), device=self._all[0].device)
        for parameter in self._all:
            total = total + parameter.sum().float().real
        return total


def _settle_buckets(ddp: DistributedDataParallel) -> None:
    model = ddp.module
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.grad is not None for parameter in parameters):
        raise UserError("run.ddp(model) comes before the first backward")
    ddp.module = _SumOfParameters(parameters)
    buffers, ddp.modules_buffers = ddp.modules_buffers, []  # the stand-in has none to synchronise
    if all(parameter.device.type == "cpu" for parameter in parameters):
        # The order of buckets follows from the order of parameters: the ranks need not speak about it.
        ddp.reducer._update_process_group(of_one())
    try:
        ddp().backward()
        ddp._has_rebuilt_buckets = ddp.reducer._rebuild_buckets()  # as the next forward would
    finally:
        ddp.reducer._update_process_group(ddp.process_group)
        ddp.module = model
        ddp.modules_buffers = buffers
        for parameter in parameters:
            parameter.grad = None
    _settled.add(ddp)
