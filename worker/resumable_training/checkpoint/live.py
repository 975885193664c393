"""Finds tracked values again at every save, without building the state dict: that takes longer than copying.

A state dict's tensors alias the live ones. Once it was built, each of its values is looked for where PyTorch
keeps it: in a module's parameters or buffers, in an optimizer's state or groups. From then on a look at that
place is enough, also when another tensor was put there. Anything that does not look as it did (a new layer,
a new parameter, state that came or went) means that the state dict must be built again; and a value that is
kept in no such place (a module with a ``state_dict`` of its own) means that it must be built every time.
A module in whose ``state_dict()`` the script has a hand is asked every time, as its answer may change; that
is cheap beside the names and the optimizers' state, which take most of the time of a build.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter, is_, itemgetter, methodcaller
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from resumable_training.checkpoint.inventory import answers_itself
from resumable_training.checkpoint.mismatch import without_wrappers
from resumable_training.checkpoint.plain import plain_of
from resumable_training.checkpoint.state import TrainingState

Path = tuple[str | int, ...]
Look = Callable[[], Any]  # raises KeyError when the place is gone

_KEPT, _CHILDREN = attrgetter("_parameters", "_buffers"), attrgetter("_modules")
_PARAMETERS = itemgetter("params")
_HOOKS = attrgetter("_state_dict_hooks", "_state_dict_pre_hooks")
_KEYS, _VALUES = methodcaller("keys"), methodcaller("values")


class Moved(Exception):
    """Something is not where it was: build the state dict again."""


class Names(tuple[str, ...]):
    """Names of a group's parameters: a list in the state dict, which never changes."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Names:
        return self


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Takes what lies at these positions of a sequence: in one step, however many they are."""
    return itemgetter(*positions) if len(positions) > 1 else lambda row: [row[at] for at in positions]


def _same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether they are the very same objects, one by one; ``==`` would compare what tensors hold."""
    return len(some) == len(others) and all(map(is_, some, others))


class _Row:
    """The values of several mappings side by side, for as long as these have the same keys."""

    def __init__(self, mappings: Sequence[Mapping[Any, Any]]) -> None:
        self._sizes = list(map(len, mappings))
        self._keys = list(chain.from_iterable(map(_KEYS, mappings)))
        self.begins = list(accumulate(self._sizes, initial=0))

    def of(self, mappings: Sequence[Mapping[Any, Any]]) -> list[Any]:
        """Raises Moved."""
        if list(map(len, mappings)) != self._sizes:
            raise Moved("something came or went")
        if list(chain.from_iterable(map(_KEYS, mappings))) != self._keys:
            raise Moved("something has another name")
        return list(chain.from_iterable(map(_VALUES, mappings)))


class _Modules:
    """What all modules keep: parameters and buffers, in one row."""

    def __init__(self, state: TrainingState) -> None:
        self._roots = dict(state.modules)
        below = chain.from_iterable(module.modules() for module in state.modules.values())
        self._parts = list(dict.fromkeys(below))  # each once, wherever it hangs
        self._hung = _Row(list(map(_CHILDREN, self._parts)))
        self._children = self._hung.of(list(map(_CHILDREN, self._parts)))
        self._kept = _Row(list(chain.from_iterable(map(_KEPT, self._parts))))
        self._hooks = self._hooks_now()

    def _hooks_now(self) -> list[int]:
        return list(map(len, chain.from_iterable(map(_HOOKS, self._parts))))

    def row(self, state: TrainingState) -> list[Any]:
        """Raises Moved when there are other modules, or other names in them."""
        if list(state.modules) != list(self._roots) or not _same(
            state.modules.values(), self._roots.values()
        ):
            raise Moved("other modules are tracked")
        if not _same(self._hung.of(list(map(_CHILDREN, self._parts))), self._children):
            raise Moved("a module was replaced")
        if self._hooks_now() != self._hooks:
            raise Moved("a hook came or went")
        return self._kept.of(list(chain.from_iterable(map(_KEPT, self._parts))))

    def places(self, state: TrainingState) -> Iterator[tuple[Path, int]]:
        """Where in the row a state dict's value lies."""
        begins = dict(zip(self._parts, self._kept.begins[::2], strict=False))  # two mappings of each
        for name, module in state.modules.items():
            for prefix, part in module.named_modules(remove_duplicate=False):
                for at, attribute in enumerate(chain(part._parameters, part._buffers), begins[part]):
                    key = f"{prefix}.{attribute}" if prefix else attribute
                    yield (name, without_wrappers(key)), at


class _Optimizer:
    """What one optimizer keeps for each parameter, in one row. Parameters are known by their modules' row."""

    def __init__(self, name: str, optimizer: Optimizer, modules: Sequence[Any]) -> None:
        """Raises Moved when it has state of anything else."""
        kept = list(optimizer.state.values())
        known = {id(one): at for at, one in enumerate(modules)}
        if not all(isinstance(one, Mapping) for one in kept) or not known.keys() >= {
            *map(id, optimizer.state)
        }:
            raise Moved(f"state of {name}")
        self._name = name
        self.optimizer = optimizer
        self._sizes = self._sizes_now()
        self._grouped = picker([known[id(parameter)] for parameter in self._parameters()])
        self._with_state = picker([known[id(parameter)] for parameter in optimizer.state])
        self._kept = _Row(kept)

    def _sizes_now(self) -> list[list[int]]:
        groups = self.optimizer.param_groups
        return [list(map(len, groups)), list(map(len, map(_PARAMETERS, groups)))]

    def _parameters(self) -> list[torch.Tensor]:
        return list(chain.from_iterable(map(_PARAMETERS, self.optimizer.param_groups)))

    def row(self, modules: Sequence[Any]) -> list[Any]:
        """Raises Moved when it works on other parameters, or has something else of them."""
        state = self.optimizer.state
        if self._sizes_now() != self._sizes or not _same(self._parameters(), self._grouped(modules)):
            raise Moved("an optimizer has other parameters")
        if not _same(state, self._with_state(modules)):
            raise Moved("an optimizer has state of other parameters")
        return self._kept.of(list(state.values()))

    def places(self, owner: nn.Module) -> Iterator[tuple[Path, int]]:
        """Where in the row a state dict's value lies."""
        begins = dict(zip(self.optimizer.state, self._kept.begins, strict=False))
        for key, parameter in owner.named_parameters(remove_duplicate=False):
            if parameter in begins:
                here = enumerate(self.optimizer.state[parameter], begins[parameter])
                yield from (((self._name, "state", without_wrappers(key), kept), at) for at, kept in here)


class _Answers:
    """What modules say that do not only say what they keep; ``keys``: of the values that are looked for."""

    def __init__(self, state: TrainingState, keys: Sequence[str]) -> None:
        at = {key: number for number, key in enumerate(keys)}
        self._asked: list[tuple[str, nn.Module, list[str], list[int | None]]] = []
        for name, module in state.modules.items():
            if answers_itself(module):
                answered = list(module.state_dict())
                places = [at.get(f"{name}.{without_wrappers(key)}") for key in answered]
                self._asked.append((name, module, answered, places))

    def require(self, found: Sequence[Any]) -> None:
        """Raises Moved unless what they say now are the live values that were found."""
        for name, module, keys, places in self._asked:
            answer = module.state_dict()
            if list(answer) != keys:
                raise Moved("a state_dict() has other keys")
            for key, place in zip(keys, places, strict=True):
                if place is not None and not _alike(found[place], answer[key]):
                    raise Moved(f"{name}.{without_wrappers(key)}")


class Finder:
    """The places of one state dict's values: ``keys``, in its order."""

    def __init__(self, state: TrainingState, values: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        """``values`` and ``paths``: the flattened state dict of modules and optimizers.

        Raises:
            Moved: a value is in no known place.
        """
        self.keys = list(values)
        self._state = state
        self._modules = _Modules(state)
        row = self._modules.row(state)
        places = dict(self._modules.places(state))
        self._optimizers = {
            name: _Optimizer(name, optimizer, row) for name, optimizer in state.optimizers.items()
        }
        length, modules = len(row), row
        for name, optimizer in self._optimizers.items():
            places |= {path: length + at for path, at in optimizer.places(state.owner_of(name))}
            length += len(optimizer.row(modules))
        self._looks: list[Look] = []
        for key in self.keys:
            if paths[key] not in places:
                look = _group_place(state, paths[key], values[key])
                if look is None:
                    raise Moved(key)
                places[paths[key]] = length + len(self._looks)
                self._looks.append(look)
        self._pick = picker([places[paths[key]] for key in self.keys])
        self._answers = _Answers(state, self.keys)
        for key, value in zip(self.keys, self.find(state), strict=True):
            if not _alike(value, values[key]):
                raise Moved(key)

    def find(self, state: TrainingState) -> Sequence[Any]:
        """The live values, in the order of ``keys``. Raises Moved."""
        try:
            found = self._pick(self._row(state))
            self._answers.require(found)
            return found
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise Moved(str(error)) from error

    def _row(self, state: TrainingState) -> list[Any]:
        """Everything, in the order of its places."""
        known = self._optimizers
        if state is not self._state or list(state.optimizers) != list(known):
            raise Moved("what is tracked is something else")
        if not _same(state.optimizers.values(), [one.optimizer for one in known.values()]):
            raise Moved("an optimizer was replaced")
        modules = self._modules.row(state)
        rows = [optimizer.row(modules) for optimizer in known.values()]
        return [*modules, *chain.from_iterable(rows), *(look() for look in self._looks)]


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


def _alike(live: Any, value: Any) -> bool:
    """Whether a state dict's value is the live one, or a plain one that equals it."""
    if isinstance(value, torch.Tensor):
        if not isinstance(live, torch.Tensor) or isinstance(live, DTensor) != isinstance(value, DTensor):
            return False
        if local(live).layout is not local(value).layout:
            return False
        return _looks(local(live)) == _looks(local(value))
    if live is value or isinstance(live, Names):
        return True
    plain = plain_of(live, "")
    return type(plain) is type(value) and bool(plain == value)


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Two with the same hold the same, element for element, whatever their memory holds."""
    bits = tensor.is_conj(), tensor.is_neg()  # which conjugate, or negate, what lies there
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), bits


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


_SIMPLE = frozenset({bool, int, float, str, type(None), Names})


class Kept:
    """Pickles of plain values, made again only for those that have changed."""

    def __init__(self, pickled: Callable[[Any], bytes]) -> None:
        self._pickled = pickled
        self._known: dict[str, tuple[Any, bytes]] = {}
        self._last: tuple[list[str], list[type], list[Any]] = [], [], []
        self._pickles: list[bytes] = []  # of the last ones

    def bytes_of(self, values: Mapping[str, Any]) -> list[bytes]:
        """In their order. Raises NotPlain: one is what no resume could read."""
        now = list(values), list(map(type, values.values())), list(values.values())  # types decide first
        if now != self._last:
            self._pickles = [self._one(key, value) for key, value in values.items()]
            self._last = now if _SIMPLE.issuperset(now[1]) else ([], [], [])  # nothing that may change inside
        return self._pickles

    def _one(self, key: str, value: Any) -> bytes:
        known = self._known.get(key)
        if known is None or not _unchanged(known[0], value):
            plain = list(value) if isinstance(value, Names) else plain_of(value, key)
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
