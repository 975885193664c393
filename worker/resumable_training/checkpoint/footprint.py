"""About how large a checkpoint of a state will be, before there is one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from resumable_training.checkpoint.state import TrainingState


def state_bytes(state: TrainingState) -> int:
    """Of all ranks together: a sharded tensor counts as the whole that it is a part of.

    An optimizer that has not stepped has no state yet; by its options two values for each parameter are
    reckoned for the family of Adam, one for momentum, else none.
    """
    total = 0
    for module in state.modules.values():
        total += sum(map(_bytes, module.state_dict(keep_vars=True).values()))  # tied ones are stored twice
    return total + sum(_optimizer(optimizer) for optimizer in state.optimizers.values())


def _optimizer(optimizer: Optimizer) -> int:
    if optimizer.state:
        return sum(_bytes(value) for values in optimizer.state.values() for value in values.values())
    return sum(_copies(group) * sum(map(_bytes, _trained(group))) for group in optimizer.param_groups)


def _copies(group: dict[str, object]) -> int:
    if "betas" in group:
        return 2
    return 1 if group.get("momentum") else 0


def _trained(group: dict[str, object]) -> Iterable[object]:
    parameters = group["params"]
    assert isinstance(parameters, list)
    return (parameter for parameter in parameters if parameter.requires_grad)


def _bytes(value: object) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return value.numel() * value.element_size()
