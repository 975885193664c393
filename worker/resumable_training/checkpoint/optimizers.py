"""Put saved optimizer state back by parameter name, exactly as it was.

PyTorch's ``set_optimizer_state_dict`` steps a fresh optimizer to find out what state it has, drops the state
of frozen parameters without a word, and fails when a parameter never had any. Here the checkpoint says what
there is: its state is restored for every parameter that had some, frozen or not, and for no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from resumable_training.checkpoint.inventory import Inventory
from resumable_training.checkpoint.mismatch import Shape
from resumable_training.checkpoint.plain import is_usual
from resumable_training.checkpoint.state import TrainingState

_NAMES = ("params", "param_names")
_SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "max_momentum", "base_momentum")


@dataclass(frozen=True)
class Compared:
    """Both sides of one optimizer, for ``mismatch.compare``; keys are "<optimizer>: parameter <name>"."""

    tracked: dict[str, Shape] = field(default_factory=dict)
    saved: dict[str, Shape] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def class_name(state: TrainingState, name: str) -> str:
    """What kind of optimizer it is, as stored with the checkpoint."""
    kind = type(state.optimizers[name])
    return f"{kind.__module__}.{kind.__qualname__}"


def compared(
    there: Inventory, name: str, groups: Sequence[Mapping[str, Any]] | None, shared: Mapping[str, Any]
) -> Compared:
    """``groups``: as saved, None when the checkpoint has no such optimizer; ``shared``: our own envelope."""
    if groups is None:
        return Compared(notes=(f"optimizer {name!r} is not in the checkpoint",))
    tracked = there.groups[name]
    saved = [list(group["params"]) for group in groups]
    notes = _class_notes(there.state, name, groups, shared)
    in_both = {key for keys in saved for key in keys} & {key for keys in tracked for key in keys}
    same_names = in_both == {key for keys in (*saved, *tracked) for key in keys}
    if same_names and match_groups(tracked, saved) is None:
        notes += _moved(name, tracked, saved)
    return Compared(_keys(name, tracked), _keys(name, saved), tuple(notes))


def _keys(name: str, groups: list[list[str]]) -> dict[str, Shape]:
    return {f"{name}: parameter {key}": None for keys in groups for key in keys}


def _class_notes(
    state: TrainingState, name: str, groups: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]
) -> list[str]:
    saved_class = shared.get("optimizers", {}).get(name)
    now = class_name(state, name)
    if saved_class is not None:
        return [f"optimizer {name!r} was {saved_class}, is {now}"] if saved_class != now else []
    saved_options = {key for group in groups for key in group}
    options = {key for group in state.optimizers[name].param_groups for key in group}
    if saved_options - options and options - saved_options - {"initial_lr"}:
        return [
            f"optimizer {name!r} is of another kind: saved options {sorted(saved_options - options)},"
            f" now {sorted(options - saved_options)}"
        ]
    return []


def _moved(name: str, tracked: list[list[str]], saved: list[list[str]]) -> list[str]:
    if len(tracked) != len(saved):
        return [f"optimizer {name!r} had {len(saved)} parameter groups, has {len(tracked)}"]
    was = {key: index for index, keys in enumerate(saved) for key in keys}
    moved = [
        f"optimizer {name!r}: {key} was in parameter group {was[key]}, is in {index}"
        for index, keys in enumerate(tracked)
        for key in keys
        if was[key] != index
    ]
    return moved or [f"optimizer {name!r} has other empty parameter groups than before"]


def match_groups(tracked: list[list[str]], saved: list[list[str]]) -> list[int] | None:
    """For each tracked group the index of the saved one with the same parameters; None if they differ.

    Groups without parameters are matched in order.
    """
    left = list(range(len(saved)))
    matched = []
    for keys in tracked:
        found = next((index for index in left if set(saved[index]) == set(keys)), None)
        if found is None:
            return None
        left.remove(found)
        matched.append(found)
    return None if left else matched


def place_like(parameter: torch.Tensor, saved: Any) -> torch.Tensor | None:
    """Where to load a piece of state: sharded as its parameter if it has its shape, else a plain tensor."""
    if not isinstance(saved, TensorStorageMetadata):
        return None
    if tuple(saved.size) == tuple(parameter.shape) and parameter.dim() > 0:
        return torch.empty_like(parameter.detach(), dtype=saved.properties.dtype)
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def apply(
    there: Inventory,
    name: str,
    groups: Sequence[Mapping[str, Any]],
    values: Mapping[tuple[Any, ...], Any],
) -> list[str]:
    """Load an optimizer; returns warnings. ``values``: path below "state" (parameter, names) -> value."""
    optimizer = there.state.optimizers[name]
    by_parameter = _nested(values)
    tracked = there.groups[name]
    index = {key: number for number, key in enumerate(key for keys in tracked for key in keys)}
    matched = match_groups(tracked, [list(group["params"]) for group in groups]) or []
    current = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict(
        {
            "state": {index[key]: _that_can_be_cast(value) for key, value in by_parameter.items()},
            "param_groups": [_merge(now, groups[m]) for now, m in zip(current, matched, strict=True)],
        }
    )
    parameters = there.parameters(name)
    for key, value in by_parameter.items():
        _keep_as_saved(optimizer.state[parameters[key]], value, parameters[key])
    pairs = [(now, groups[m]) for now, m in zip(current, matched, strict=True)]
    return [*_warnings(name, parameters, by_parameter), *_overruled(name, pairs)]


def _nested(values: Mapping[tuple[Any, ...], Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        set_element(nested, path, value)
    return nested


def _merge(current: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved options win; ones that only a newer optimizer has keep their value."""
    return {**current, **{key: value for key, value in saved.items() if key not in _NAMES}}


def _overruled(name: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[str]:
    """Options of the script that the checkpoint does not follow; ones that schedules move are left out."""
    found = {
        f"{key} {saved[key]!r} (the script says {now[key]!r})"
        for now, saved in pairs
        for key in (now.keys() & saved.keys()).difference(_NAMES, _SCHEDULED)
        if isinstance(now[key], (bool, int, float)) and now[key] != saved[key]
    }
    if not found:
        return []
    return [f"{name} goes on as saved, with {', '.join(sorted(found))}: to change it, set it after run.track"]


def _that_can_be_cast(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in values.items()
        if not isinstance(value, torch.Tensor) or is_usual(value.dtype)
    }


def _keep_as_saved(live: dict[str, Any], saved: Mapping[str, Any], parameter: torch.Tensor) -> None:
    """Undo what ``load_state_dict`` makes of state: it casts it to its parameter's dtype, which rounds fp32
    moments of bf16 weights, and rebuilds all that can be iterated over, of which texts come out as others."""
    for key, value in saved.items():
        if not isinstance(value, torch.Tensor):
            live[key] = _there(value, parameter.device)
        elif key not in live or live[key].dtype != value.dtype:
            live[key] = value.to(parameter.device)


def _there(value: Any, device: torch.device) -> Any:
    """With the tensors in it on that device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if type(value) is dict:
        return {key: _there(one, device) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_there(one, device) for one in value)
    return value


def _warnings(
    name: str, parameters: Mapping[str, torch.Tensor], by_parameter: Mapping[str, Any]
) -> list[str]:
    without = [key for key, p in parameters.items() if p.requires_grad and key not in by_parameter]
    if not by_parameter or not without:
        return []
    return [f"{name} had no state for {', '.join(sorted(without))} when it was saved: it starts without"]
