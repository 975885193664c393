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
from resumable_training.checkpoint.read import NotWhole, Peek
from resumable_training.checkpoint.saved import SavedState, Source, inspect, require_whole
from resumable_training.checkpoint.state import (
    SHARED_KEY,
    extra_state_of,
    overruled_schedule,
    per_rank_key,
    stateful_key,
    tensor_bytes,
)
from resumable_training.checkpoint.values import from_text, to_text
from resumable_training.checkpoint.verify import OK, Inspection
from resumable_training.contract.manifest import Manifest

Warn = Callable[[str], None]
Recall = Callable[[Manifest | None], Memory]


@dataclass(frozen=True)
class Loaded:
    """What came with the tensors."""

    shared: dict[str, Any] = field(default_factory=dict)
    per_rank: dict[str, bytes] | None = None
    manifest: Manifest | None = None
    memory_bytes: int = 0  # of all ranks: that were still on their workers
    storage_bytes: int = 0


@dataclass(frozen=True)
class Look:
    """What rank 0 has found out: whether it is whole, and the small values that say how to read the rest."""

    seen: Inspection
    peek: Peek = field(default_factory=Peek)


class Loader:
    """Loads one checkpoint into the tracked state: ``look`` by rank 0, then ``load`` and ``close`` by all.

    Ranks exchange what they have three times, or four where they are on several machines: each exchange waits
    for every rank's turn on a core.
    """

    def __init__(
        self, source: Source, there: Inventory, ranks: Ranks, warn: Warn, recall: Recall | None = None
    ) -> None:
        """``there``: what is tracked; ``recall``: what this rank's worker has of one with that manifest."""
        self._source = source
        self._there = there
        self._state = there.state
        self._ranks = ranks
        self._warn = warn
        self._recall = recall or (lambda manifest: Memory())
        self._memory = Memory()
        self._opened: SavedState | None = None

    def look(self) -> Look:
        """By this rank alone. Raises NoResumePoint, StorageUnavailable, or what a tracked object raises."""
        seen = inspect(self._source)
        if seen.verdict.outcome != OK:
            return Look(seen)
        moment("load.first-values")
        try:
            self._open(seen)
            self._recognise()
            return Look(seen, self._saved.peek(self._first_keys()))
        except NotWhole as error:
            return Look(seen, Peek(verdict=error.verdict))

    def load(self, look: Look) -> Loaded:
        """Load everything; ``look``: rank 0's.

        Raises:
            StateMismatch: before anything is changed.
            NotWhole: damaged, or nobody can tell; nothing is changed.
            NotPlain: a value can't be read without running what it says; nothing is changed.
        """
        require_whole(look.seen, self._source, self._ranks)
        if self._opened is None:
            self._open_with_the_others(look.seen)
        saved = self._saved
        saved.told(look.peek)
        moment("load.values")
        first: dict[str, Any] = {}
        own: dict[str, bytes] = {}

        def prepare() -> dict[str, Any]:
            self._recognise()
            first.update(saved.values(self._first_keys(), look.peek))
            return {**self._prepared(self._there, first, _shared(first)), **saved.places(self._own_keys())}

        def finish(values: dict[str, Any]) -> None:
            own.update({key: tensor_bytes(values[key]) for key in self._own_keys()})
            self._apply(self._there, values, first)

        origins = saved.read(prepare, finish)
        prefix = per_rank_key(self._ranks.rank, "")
        return Loaded(
            _shared(first),
            {key.removeprefix(prefix): value for key, value in own.items()} or None,
            look.seen.manifest,
            sum(memory for memory, _ in origins),
            sum(storage for _, storage in origins),
        )

    def close(self) -> None:
        """What was remembered may be overwritten."""
        self._memory.close()

    def _open(self, seen: Inspection) -> None:
        """Raises NotWhole or NoResumePoint for a marker that can't be followed."""
        self._memory = self._recall(seen.manifest)
        self._opened = SavedState(self._source, seen, self._ranks, self._memory)

    def _open_with_the_others(self, seen: Inspection) -> None:
        """Or fail with them, at what they exchange next: they would wait for it."""
        try:
            self._open(seen)
        except Exception as error:  # noqa: BLE001 - raised again, once the others know

            def fail(why: Exception = error) -> None:
                raise why

            self._ranks.agree(fail)

    def _recognise(self) -> None:
        """Another program's names, once."""
        if self._saved.foreign and self._saved.layout is None:
            self._saved.recognise(self._there)

    @property
    def _saved(self) -> SavedState:
        assert self._opened is not None
        return self._opened

    def _first_keys(self) -> list[str]:
        """Small values that say how to read the rest: texts, and groups of optimizers."""
        texts = {SHARED_KEY, *(stateful_key(name) for name in self._state.stateful)}
        keys = [key for key in self._saved.described if key in texts]
        for name in self._state.optimizers:
            keys += self._saved.of_optimizer(name, "param_groups")
        return keys

    def _own_keys(self) -> list[str]:
        """This rank's own values."""
        own = per_rank_key(self._ranks.rank, "")
        return [key for key in self._saved.described if key.startswith(own)]

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
        template = {key: self._module_place(key, there) for key in self._module_paths(there)}
        for name in filter(self._saved.has_optimizer, self._state.optimizers):
            template.update(self._optimizer_template(there, name))
        for name, thing in self._state.stateful.items():
            if stateful_key(name) in first:
                template.update(self._stateful_template(name, thing))
            template.update(self._saved.places(self._saved.extras(name)))
        return template

    def _module_paths(self, there: Inventory) -> dict[str, tuple[Any, ...]]:
        """Keys of what modules get, with paths; of extra state all that was saved, whatever is there."""
        if self._saved.layout is not None:
            return there.paths
        saved = {key: self._saved.paths[key] for key in self._saved.described}
        return {
            **{key: path for key, path in there.paths.items() if not extra_state_of(path, self._state)},
            **{key: path for key, path in saved.items() if extra_state_of(path, self._state)},
        }

    def _module_place(self, key: str, there: Inventory) -> torch.Tensor | None:
        live = there.values.get(key)
        if not extra_state_of(there.paths.get(key, self._saved.paths[key]), self._state):
            return live if isinstance(live, torch.Tensor) else None
        fits = isinstance(live, torch.Tensor) and tuple(live.shape) == self._saved.shape(key)
        return live if fits else self._saved.place(key)

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
        for key, path in self._module_paths(there).items():
            set_element(nested, path, values[key])
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


def _shared(first: Mapping[str, Any]) -> dict[str, Any]:
    """Our own envelope, if there is one."""
    return from_text(tensor_bytes(first[SHARED_KEY])) if SHARED_KEY in first else {}
