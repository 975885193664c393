"""What is tracked, under the checkpoint's names. Found once for a load: PyTorch builds it slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from resumable_training.checkpoint.plain import require_place
from resumable_training.checkpoint.state import TrainingState, flat_modules, optimizer_state_dict


@dataclass(frozen=True)
class Inventory:
    """``values`` and ``paths``: of all modules, as flattened; values alias the live ones.

    ``groups``: optimizer -> names of each group's parameters, in the order in which
    ``Optimizer.load_state_dict`` counts them.
    """

    state: TrainingState
    values: dict[str, Any]
    paths: dict[str, tuple[Any, ...]]
    groups: dict[str, list[list[str]]]

    @staticmethod
    def of(state: TrainingState) -> Inventory:
        """Raises Unstorable for a tensor that nothing could be loaded into, NotPlain as a save would."""
        values, paths = flat_modules(state)
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                require_place(value, key)
        return Inventory(state, values, paths, {name: _groups(state, name) for name in state.optimizers})

    def parameters(self, name: str) -> dict[str, torch.Tensor]:
        """Parameters of one optimizer by name."""
        groups = self.state.optimizers[name].param_groups
        return {
            key: parameter
            for keys, group in zip(self.groups[name], groups, strict=True)
            for key, parameter in zip(keys, group["params"], strict=True)
        }


def _groups(state: TrainingState, name: str) -> list[list[str]]:
    return [list(group["params"]) for group in optimizer_state_dict(state, name)["param_groups"]]


_PLAIN = ("state_dict", "_save_to_state_dict", "load_state_dict", "_load_from_state_dict", "set_extra_state")
_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


_ANSWERS = ("state_dict", "_save_to_state_dict")
_ANSWERED_BY = ("_state_dict_hooks", "_state_dict_pre_hooks")


def answers_itself(module: nn.Module) -> bool:
    """Whether a part of it has a method or hook, none of torch's, that may change its ``state_dict()``."""
    return any(
        not str(getattr(made, "__module__", "")).startswith("torch.")
        for part in module.modules()
        for made in (
            *(getattr(part, name) for name in _ANSWERS),
            *(hook for hooks in _ANSWERED_BY for hook in getattr(part, hooks).values()),
        )
    )


def is_plain(module: nn.Module) -> bool:
    """Whether its state dict is its parameters and buffers, so that to write into these is to load it.

    Not so where a part of it has a way of its own to save or load, or a hook.
    """
    return not any(
        any(getattr(part, hooks) for hooks in _HOOKS)
        or any(
            getattr(getattr(part, name), "__func__", None) is not getattr(nn.Module, name) for name in _PLAIN
        )
        for part in module.modules()
    )
