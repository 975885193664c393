"""Finds tracked values again at every save, without building the state dict: that takes longer than copying.

A state dict's tensors alias the live ones. Once it was built, each of its values is looked for where PyTorch
keeps it: in a module's parameters or buffers, in an optimizer's state or groups. From then on a look at that
place is enough, also when another tensor was put there. Anything that does not look as it did (a new layer,
a new parameter, state that came or went) means that the state dict must be built again; and a value that is
kept in no such place (a module with a ``state_dict`` of its own) means that it must be built every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from resumable_training.checkpoint.mismatch import without_wrappers
from resumable_training.checkpoint.state import TrainingState

Path = tuple[str | int, ...]
Look = Callable[[], Any]  # raises KeyError when the place is gone


class Moved(Exception):
    """Something is not where it was: build the state dict again."""


class Names(tuple[str, ...]):
    """Names of a group's parameters: a list in the state dict, which never changes."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Names:
        return self


@dataclass(frozen=True)
class _Shelf:
    """Where several values lie side by side: names in what ``get`` returns."""

    get: Callable[[], Mapping[str, Any]]
    names: list[str]


class Finder:
    """The places of one state dict's values."""

    def __init__(self, state: TrainingState, values: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        """``values`` and ``paths``: the flattened state dict of modules and optimizers.

        Raises:
            Moved: a value is in no known place.
        """
        self._shelves: list[_Shelf] = []
        self._looks: list[Look] = []
        kept: list[str] = []
        by_path = {paths[key]: key for key in values}
        for get, places in _places(state):
            here = {by_path.pop(path): name for path, name in places if path in by_path}
            if here:
                kept += here
                self._shelves.append(_Shelf(get, list(here.values())))
        alone = [key for key in values if key not in set(kept)]
        for key in alone:
            look = _group_place(state, paths[key], values[key])
            if look is None:
                raise Moved(key)
            self._looks.append(look)
        self.keys = kept + alone
        self._state = state
        self._shape = _shape(state)
        for key, value in zip(self.keys, self.find(state), strict=True):
            if not _same(value, values[key]):
                raise Moved(key)

    def find(self, state: TrainingState) -> list[Any]:
        """The live values, in the order of ``keys``. Raises Moved."""
        try:
            if state is not self._state or _shape(state) != self._shape:
                raise Moved("what is tracked is something else, or has another shape")
            found: list[Any] = []
            for shelf in self._shelves:
                here = shelf.get()
                found += [here[name] for name in shelf.names]
            return found + [look() for look in self._looks]
        except (KeyError, IndexError, AttributeError) as error:
            raise Moved(str(error)) from error


Places = tuple[Callable[[], Mapping[str, Any]], list[tuple[Path, str]]]  # a dict, and what lies in it


def _places(state: TrainingState) -> Iterator[Places]:
    for name, module in state.modules.items():
        yield from _module_places(name, module)
    for name, optimizer in state.optimizers.items():
        yield from _optimizer_places(name, optimizer, state.owner_of(name))


def _module_places(name: str, module: nn.Module) -> Iterator[Places]:
    for prefix, part in module.named_modules(remove_duplicate=False):
        for kept in (part._parameters, part._buffers):
            keys = {attribute: f"{prefix}.{attribute}" if prefix else attribute for attribute in kept}
            yield (
                _always(kept),
                [((name, without_wrappers(key)), attribute) for attribute, key in keys.items()],
            )


def _always(kept: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    return lambda: kept


def _optimizer_places(name: str, optimizer: Optimizer, owner: nn.Module) -> Iterator[Places]:
    for key, parameter in owner.named_parameters(remove_duplicate=False):
        path = (name, "state", without_wrappers(key))
        here = optimizer.state.get(parameter, {})
        yield _state_of(optimizer, parameter), [((*path, attribute), attribute) for attribute in here]


def _state_of(optimizer: Optimizer, parameter: torch.Tensor) -> Callable[[], Mapping[str, Any]]:
    # The dict itself may be replaced, and asking it for a missing key would add that.
    return lambda: optimizer.state.get(parameter, {})


def _group_place(state: TrainingState, path: Path, value: Any) -> Look | None:
    """Of a hyper-parameter. The names of a group's parameters are kept nowhere, and stay as they are."""
    optimizer = state.optimizers.get(str(path[0]))
    if optimizer is None or path[1] != "param_groups" or len(path) < 4:
        return None
    if path[3] == "params":
        names = Names(value)
        return lambda: names
    number, attribute, inner = int(path[2]), path[3], path[4:]

    def look() -> Any:
        value = optimizer.param_groups[number][str(attribute)]
        for part in inner:
            value = value[part]
        return value

    return look


def _same(live: Any, value: Any) -> bool:
    """Whether a state dict's value is the live one, or a plain one that equals it."""
    if isinstance(value, torch.Tensor):
        if not isinstance(live, torch.Tensor) or isinstance(live, DTensor) != isinstance(value, DTensor):
            return False
        mine, its = local(live), local(value)
        return mine.shape == its.shape and mine.dtype == its.dtype and mine.data_ptr() == its.data_ptr()
    if isinstance(live, Names):
        return True
    return type(live) is type(value) and bool(live == value)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _shape(state: TrainingState) -> list[Any]:
    """What must stay for the places to hold: which modules, parameters, groups and states there are."""
    found: list[Any] = []
    for module in state.modules.values():
        for part in module.modules():
            found += (id(part), len(part._parameters), len(part._buffers))
    for optimizer in state.optimizers.values():
        for group in optimizer.param_groups:
            found += (len(group), *map(id, group["params"]))
        found += map(len, optimizer.state.values())
    return found


class Kept:
    """Pickles of plain values, made again only for those that have changed."""

    def __init__(self, pickled: Callable[[Any], bytes]) -> None:
        self._pickled = pickled
        self._known: dict[str, tuple[Any, bytes]] = {}

    def bytes_of(self, keys: Sequence[str], values: Sequence[Any]) -> list[bytes]:
        return [self._one(key, value) for key, value in zip(keys, values, strict=True)]

    def _one(self, key: str, value: Any) -> bytes:
        known = self._known.get(key)
        if known is None or not _unchanged(known[0], value):
            plain = list(value) if isinstance(value, Names) else value
            known = self._known[key] = (copy.deepcopy(value), self._pickled(plain))
        return known[1]


def _unchanged(before: Any, now: Any) -> bool:
    """Of plain values; 1, 1.0 and True are different ones."""
    if now is before:
        return True  # ``before`` is a deep copy: it is the same object only where nothing in it can change
    if type(before) is not type(now):
        return False
    if isinstance(now, (list, tuple)):
        return len(before) == len(now) and all(map(_unchanged, before, now))
    if isinstance(now, (bool, int, float, str)) or now is None:
        return bool(before == now)
    return False
