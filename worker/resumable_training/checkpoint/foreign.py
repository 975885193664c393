"""PURE: find a model and its optimizer in a checkpoint that another program laid out.

A plain ``dcp.save`` may keep the weights under any name, at the top level (as torchtitan does), or in a
wrapper's names; an optimizer's state by parameter name or by number, its options by group or by parameter.
Keys are compared with what is tracked, and told as if this library had written them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resumable_training.checkpoint.mismatch import Shape, without_wrappers

_STATE, _GROUPS = "state", "param_groups"
_SAMPLE = 64  # keys by which a place is recognised
_MOST_NAMED = 12

Path = tuple[Any, ...]
Groups = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Saved:
    """A value in a checkpoint: DCP's own path to it (names, places in lists); shape None: no tensor."""

    path: Path
    shape: Shape


@dataclass
class Layout:
    """What was recognised. Keys and paths are as this library would have written them."""

    stored: dict[str, str] = field(default_factory=dict)  # key -> key in the checkpoint
    paths: dict[str, Path] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)  # tracked name -> prefix in the checkpoint
    by_parameter: dict[str, list[list[str]]] = field(default_factory=dict)  # optimizer -> groups found
    by_number: dict[str, list[str]] = field(default_factory=dict)  # optimizer -> its parameters in order
    notes: list[str] = field(default_factory=list)

    def add(self, path: Path, stored: str) -> None:
        key = ".".join(map(str, path))
        self.stored[key] = stored
        self.paths[key] = path

    def named(self, optimizer: str, groups: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Options of an optimizer's groups as read, each with the names of its parameters under "params"."""
        if optimizer in self.by_parameter:
            found = self.by_parameter[optimizer]
            options = [*(groups or ()), *({} for _ in found)]
            return [{**(options[number] or {}), "params": keys} for number, keys in enumerate(found)]
        if optimizer in self.by_number and groups is not None:
            order = self.by_number[optimizer]
            return [
                {**group, "params": [_numbered(number, order) for number in group["params"]]}
                for group in groups
            ]
        return groups

    def describe(self) -> str:
        """Where things were found, as a phrase."""
        parts = [
            f"{name} under {prefix!r}" if prefix else f"{name} at the top level"
            for name, prefix in sorted(self.places.items())
        ]
        return ", ".join(parts) or "nothing that is tracked"


def recognise(
    saved: Mapping[str, Saved],
    modules: Mapping[str, Mapping[str, Shape]],
    optimizers: Mapping[str, Groups],
) -> Layout:
    """Find what is tracked.

    Args:
        modules: tracked name -> key in that module -> shape.
        optimizers: tracked name -> names of the parameters of each group.
    """
    layout = Layout()
    for name, groups in optimizers.items():
        _find_optimizer(layout, name, groups, saved)
    rest = {key: value for key, value in saved.items() if key not in set(layout.stored.values())}
    for name, keys in modules.items():
        _find_module(layout, name, keys, rest)
    used = set(layout.stored.values())
    for key, value in saved.items():
        if key not in used:  # under its own name, so that nothing is lost
            layout.stored.setdefault(key, key)
            layout.paths.setdefault(key, value.path)
    return layout


# Modules ------------------------------------------------------------------------------------------------


def _find_module(layout: Layout, name: str, keys: Mapping[str, Shape], saved: Mapping[str, Saved]) -> None:
    bare = {without_wrappers(key): key for key in keys}
    plain = {without_wrappers(key): key for key in saved}
    prefix = _most_likely(layout, name, _votes(bare, keys, plain, saved))
    if prefix is None:
        return
    layout.places[name] = prefix
    beginnings = {key.partition(".")[0] for key in bare}
    for key, stored in plain.items():
        inner = key.removeprefix(prefix)
        if not key.startswith(prefix):
            continue
        # At the top level other things lie beside the weights: what begins like one of them is one.
        if inner in bare or prefix or inner.partition(".")[0] in beginnings:
            layout.add((name, bare.get(inner, inner)), stored)


def _votes(
    bare: Mapping[str, str],
    keys: Mapping[str, Shape],
    plain: Mapping[str, str],
    saved: Mapping[str, Saved],
) -> Counter[str]:
    """Prefix -> how many of the module's keys lie under it, in their shape if any does."""
    votes: Counter[str] = Counter()
    for inner in sorted(bare, key=len, reverse=True)[:_SAMPLE]:
        for key, stored in plain.items():
            before = key[: len(key) - len(inner)]
            if key.endswith(inner) and (not before or before.endswith(".")):
                votes[before] += 2 if saved[stored].shape == keys[bare[inner]] else 1
    return votes


def _most_likely(layout: Layout, name: str, votes: Counter[str]) -> str | None:
    if not votes:
        return None
    most = max(votes.values())
    best = sorted(prefix for prefix, count in votes.items() if count == most)
    own = f"{name}."
    if own in best:
        return own
    if len(best) > 1:
        where = " or ".join(repr(prefix.rstrip(".")) for prefix in best)
        layout.notes.append(f"{name} may be {where} in the checkpoint: track it under that name")
    return best[0]


# Optimizers ---------------------------------------------------------------------------------------------


def _find_optimizer(layout: Layout, name: str, groups: Groups, saved: Mapping[str, Saved]) -> None:
    order = [key for group in groups for key in group]
    bare = {without_wrappers(key): key for key in order}
    votes: Counter[str] = Counter()
    states: dict[str, dict[str, tuple[str, str]]] = {}  # prefix -> stored key -> (parameter, what)
    for key in saved:
        prefix, found = _split(key, _STATE)
        if not found:
            continue
        parameter, _, what = found.rpartition(".")
        known = without_wrappers(parameter) in bare or parameter.isdigit()
        states.setdefault(prefix, {})[key] = (parameter, what)
        votes[prefix] += known
    place = _most_likely(layout, name, Counter({prefix: count for prefix, count in votes.items() if count}))
    if place is None:
        return
    layout.places[name] = place
    numbered = all(parameter.isdigit() for parameter, _ in states[place].values())
    if numbered:
        layout.by_number[name] = order
    for key, (parameter, what) in states[place].items():
        layout.add((name, _STATE, _parameter(parameter, bare, order, numbered), what), key)
    _find_groups(layout, name, groups, place, saved)


def _parameter(text: str, bare: Mapping[str, str], order: Sequence[str], numbered: bool) -> str:
    if numbered:
        return _numbered(int(text), order)
    return bare.get(without_wrappers(text), text)


def _numbered(number: int, order: Sequence[str]) -> str:
    return order[number] if number < len(order) else f"number {number}"


def _split(key: str, part: str) -> tuple[str, str]:
    """``app.optimizer.state.fc.weight.step`` to ``app.optimizer.`` and ``fc.weight.step``."""
    if key.startswith(f"{part}."):
        return "", key[len(part) + 1 :]
    before, found, after = key.partition(f".{part}.")
    return (f"{before}.", after) if found else ("", "")


def _find_groups(layout: Layout, name: str, groups: Groups, place: str, saved: Mapping[str, Saved]) -> None:
    begin = f"{place}{_GROUPS}."
    keys = [key for key in saved if key.startswith(begin)]
    if any(_GROUPS in saved[key].path for key in keys):  # by group, as a list
        for key in keys:
            path = saved[key].path
            layout.add((name, _GROUPS, *path[path.index(_GROUPS) + 1 :]), key)
        return
    options: dict[str, dict[str, str]] = {}  # parameter -> option -> stored key
    for key in keys:
        parameter, _, option = key.removeprefix(begin).rpartition(".")
        options.setdefault(without_wrappers(parameter), {})[option] = key
    if options:
        layout.by_parameter[name] = _groups_of(layout, name, groups, options)


def _groups_of(
    layout: Layout, name: str, groups: Groups, options: dict[str, dict[str, str]]
) -> list[list[str]]:
    """The tracked groups with what of them is saved; each has the options of its first parameter."""
    left = dict(options)
    found: list[list[str]] = []
    for number, group in enumerate(groups):
        here = [key for key in group if left.pop(without_wrappers(key), None) is not None]
        for option, stored in options[without_wrappers(here[0])].items() if here else ():
            layout.add((name, _GROUPS, number, option), stored)
        found.append(here)
    return [*found, sorted(left)] if left else found


# What to say --------------------------------------------------------------------------------------------


def summary(keys: Iterable[str]) -> str:
    """Keys by their first part, counted: ``iteration, lr_scheduler (3 keys)``."""
    keys = list(keys)
    counts = Counter(key.partition(".")[0] for key in keys)
    only = {key.partition(".")[0]: key for key in keys}
    texts = [
        only[first] if count == 1 else f"{first} ({count} keys)" for first, count in sorted(counts.items())
    ]
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "") or "nothing"
