"""Load one checkpoint into the tracked state, by all ranks together.

Nothing of the live state is touched before both are known to fit and every byte is verified, and nothing is
unpickled outside an allow list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.state_dict import set_model_state_dict

from resumable_training.checkpoint import optimizers
from resumable_training.checkpoint.fit import fit
from resumable_training.checkpoint.inventory import Inventory, is_plain
from resumable_training.checkpoint.memory import Memory
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.saved import SavedState, Source
from resumable_training.checkpoint.state import (
    SHARED_KEY,
    TrainingState,
    overruled_schedule,
    per_rank_key,
    stateful_key,
    tensor_bytes,
)
from resumable_training.checkpoint.values import from_text, to_text
from resumable_training.checkpoint.verify import Inspection

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Loaded:
    """What came with the tensors."""

    shared: dict[str, Any] = field(default_factory=dict)
    per_rank: dict[str, bytes] | None = None
    memory_bytes: int = 0  # of all ranks: that were still on their workers
    storage_bytes: int = 0


class Loader:
    """Loads one checkpoint into the tracked state. All ranks call ``load``."""

    def __init__(
        self,
        source: Source,
        seen: Inspection,
        state: TrainingState,
        ranks: Ranks,
        warn: Warn,
        memory: Memory | None = None,
    ) -> None:
        """``memory``: what this rank's worker still has of the checkpoint.

        Raises NotWhole or NoResumePoint for a marker that can't be followed.
        """
        self._saved = SavedState(source, seen, ranks, memory)
        self._state = state
        self._ranks = ranks
        self._warn = warn

    def load(self) -> Loaded:
        """Load everything.

        Raises:
            StateMismatch: before anything is changed.
            NotWhole: damaged, or nobody can tell; nothing is changed.
            NotPlain: a value can't be read without running what it says; nothing is changed.
        """
        saved = self._saved
        there = self._ranks.together(self._look)
        moment("load.first-values")
        first = saved.read(saved.places(self._first_keys()))
        shared = from_text(tensor_bytes(first[SHARED_KEY])) if SHARED_KEY in first else {}
        template = self._ranks.together(lambda: self._prepared(there, first, shared))
        moment("load.values")
        values = saved.read(template, last=True)
        moment("load.apply")
        self._ranks.together(lambda: self._apply(there, values, first))
        return Loaded(shared, self._own_values(first), *saved.origins())

    def _look(self) -> Inventory:
        there = Inventory.of(self._state)
        if self._saved.foreign:
            self._saved.recognise(there)
        return there

    def _first_keys(self) -> list[str]:
        """Small values that say how to read the rest: texts, groups of optimizers, this rank's own values."""
        own = per_rank_key(self._ranks.rank, "")
        texts = {SHARED_KEY, *(stateful_key(name) for name in self._state.stateful)}
        keys = [key for key in self._saved.described if key in texts or key.startswith(own)]
        for name in self._state.optimizers:
            keys += self._saved.of_optimizer(name, "param_groups")
        return keys

    def _own_values(self, first: Mapping[str, Any]) -> dict[str, bytes] | None:
        own = per_rank_key(self._ranks.rank, "")
        values = {key.removeprefix(own): tensor_bytes(v) for key, v in first.items() if key.startswith(own)}
        return values or None

    def _prepared(
        self, there: Inventory, first: Mapping[str, Any], shared: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Places for everything, once it is known to fit."""
        found = fit(self._saved, there, first, shared)
        self._say(found.words)
        found.require(self._saved.label)
        return self._templates(there, first)

    def _say(self, words: list[str]) -> None:
        for word in words if self._ranks.rank == 0 else ():
            self._warn(word)

    # Places -----------------------------------------------------------------------------------------------

    def _templates(self, there: Inventory, first: Mapping[str, Any]) -> dict[str, Any]:
        live = there.values
        template = {key: value if isinstance(value, torch.Tensor) else None for key, value in live.items()}
        for name in filter(self._saved.has_optimizer, self._state.optimizers):
            template.update(self._optimizer_template(there, name))
        for name, thing in self._state.stateful.items():
            if stateful_key(name) in first:
                template.update(self._stateful_template(name, thing))
            template.update(self._saved.places(self._saved.extras(name)))
        return template

    def _optimizer_template(self, there: Inventory, name: str) -> dict[str, Any]:
        parameters = there.parameters(name)
        saved = self._saved
        return {
            key: optimizers.place_like(parameters[str(saved.paths[key][2])], saved.described[key])
            for key in saved.of_optimizer(name, "state")
        }

    def _stateful_template(self, name: str, thing: Any) -> dict[str, Any]:
        live: list[Any] = []
        to_text(thing.state_dict(), live, where=name)
        template: dict[str, Any] = {}
        for index, key in enumerate(self._tensors_of(name)):
            same = index < len(live) and tuple(live[index].shape) == self._saved_size(key)
            template[key] = torch.empty_like(live[index]) if same else self._saved.place(key)
        return template

    def _tensors_of(self, name: str) -> list[str]:
        """Keys of a tracked object's tensors, in order."""
        return sorted(key for key in self._saved.described if key.startswith(stateful_key(name) + "/"))

    def _saved_size(self, key: str) -> tuple[int, ...]:
        return tuple(self._saved.described[key].size)

    # Values -----------------------------------------------------------------------------------------------

    def _apply(self, there: Inventory, values: dict[str, Any], first: Mapping[str, Any]) -> None:
        self._apply_modules(there, values)
        for name in filter(self._saved.has_optimizer, self._state.optimizers):
            self._apply_optimizer(there, name, values, first)
        for name, thing in self._state.stateful.items():
            if stateful_key(name) in first:
                self._apply_stateful(name, thing, values, first)
            elif extras := self._saved.extras(name):
                nested: dict[str, Any] = {}
                for key in extras:
                    set_element(nested, self._saved.paths[key], values[key])
                thing.load_state_dict(nested[name])

    def _apply_modules(self, there: Inventory, values: Mapping[str, Any]) -> None:
        nested: dict[str, Any] = {}
        for key in there.values:
            set_element(nested, there.paths[key], values[key])
        for name, module in self._state.modules.items():
            if not is_plain(module):
                set_model_state_dict(module, nested[name])

    def _apply_optimizer(
        self, there: Inventory, name: str, values: Mapping[str, Any], first: Mapping[str, Any]
    ) -> None:
        keys = self._saved.of_optimizer(name, "state")
        by_path = {self._saved.paths[key][2:]: values[key] for key in keys}
        words = optimizers.apply(there, name, self._saved.groups(name, first) or [], by_path)
        self._say([f"{self._saved.label}: {word}" for word in words])

    def _apply_stateful(
        self, name: str, thing: Any, values: Mapping[str, Any], first: Mapping[str, Any]
    ) -> None:
        tensors = [values[key] for key in self._tensors_of(name)]
        saved_state = from_text(tensor_bytes(first[stateful_key(name)]), tensors)
        word = overruled_schedule(name, thing, saved_state)
        thing.load_state_dict(saved_state)
        self._say([f"{self._saved.label}: {word}"] if word else [])
