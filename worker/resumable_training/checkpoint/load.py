"""Compare a checkpoint with what is tracked, and load it, by all ranks together.

Nothing of the live state is touched before both are known to fit and every byte is verified, and nothing is
unpickled outside an allow list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import set_model_state_dict

from resumable_training.checkpoint import optimizers, verify
from resumable_training.checkpoint.blocks import Blocks
from resumable_training.checkpoint.catalog import Catalog
from resumable_training.checkpoint.errors import NoResumePoint, StateMismatch
from resumable_training.checkpoint.foreign import Layout, Saved, recognise, summary
from resumable_training.checkpoint.marker import load_real
from resumable_training.checkpoint.mismatch import REMEDY, Mismatch, Shape, compare
from resumable_training.checkpoint.moments import moment
from resumable_training.checkpoint.ranks import Ranks
from resumable_training.checkpoint.read import NotWhole, Reader
from resumable_training.checkpoint.state import (
    SHARED_KEY,
    STATEFUL_PREFIX,
    TrainingState,
    flat_modules,
    overruled_schedule,
    per_rank_key,
    shape_of,
    stateful_key,
    tensor_bytes,
)
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.values import from_text, to_text
from resumable_training.checkpoint.verify import DAMAGED, OK, Inspection
from resumable_training.contract import env
from resumable_training.contract.manifest import BLOCK_BYTES, MARKER_FILE
from resumable_training.contract.marker import DamagedMarker

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """A checkpoint to load. ``foreign``: it may be another program's, without manifest and shared values."""

    store: Store
    name: str
    label: str
    foreign: bool = False


@dataclass(frozen=True)
class Loaded:
    """What came with the tensors."""

    shared: dict[str, Any] = field(default_factory=dict)
    per_rank: dict[str, bytes] | None = None


def look(source: Source, ranks: Ranks) -> Inspection:
    """Marker, manifest and sizes, by rank 0; the others look only where it sees damage.

    Raises:
        NotWhole: damaged, or nobody can tell.
    """
    seen = ranks.first(lambda: _inspect(source))
    if seen.verdict.outcome == DAMAGED:
        again = ranks.agree(lambda: _inspect(source).verdict)
        if any(one.outcome != DAMAGED for one in again):
            raise NotWhole(verify.cannot_tell(f"not every look at it shows this: {seen.verdict.reason}"))
    if seen.verdict.outcome != OK:
        raise NotWhole(seen.verdict)
    return seen


def _inspect(source: Source) -> Inspection:
    return verify.inspect(source.store, source.name, foreign=source.foreign)


def _understood(source: Source, seen: Inspection) -> tuple[Metadata, Catalog]:
    """What the marker says; the same on all ranks.

    Raises:
        NotWhole: it is damaged, or needs what the manifest does not vouch for.
        NoResumePoint: it is what was written, by a torch that this one does not understand.
    """
    try:
        metadata: Metadata = load_real(seen.marker)
        catalog = Catalog(metadata)
    except DamagedMarker as error:
        if seen.manifest is None:
            raise NotWhole(verify.damaged(f"{MARKER_FILE}: {error}")) from error
        raise NoResumePoint(
            f"{source.label}: torch {seen.manifest.torch_version} wrote its {MARKER_FILE}, and torch"
            f" {torch.__version__} can't read it: {error}"
        ) from error
    unvouched = catalog.unvouched(seen.manifest) if seen.manifest else ""
    if unvouched:
        raise NotWhole(verify.damaged(unvouched))
    return metadata, catalog


class Loader:
    """Loads one verified checkpoint into the tracked state. All ranks call ``load``."""

    def __init__(
        self, source: Source, seen: Inspection, state: TrainingState, ranks: Ranks, warn: Warn
    ) -> None:
        """Raises NotWhole or NoResumePoint for a marker that can't be followed."""
        metadata, catalog = _understood(source, seen)
        blocks = (
            verify.blocks_of(seen.manifest) if seen.manifest else Blocks(catalog.needed_bytes(), BLOCK_BYTES)
        )
        self._source = source
        self._reader = Reader(source.store, source.name, catalog, blocks, ranks)
        self._trusted = os.environ.get(env.TRUST_PICKLES) == "1"
        self._state = state
        self._ranks = ranks
        self._warn = warn
        self._saved: dict[str, Any] = dict(metadata.state_dict_metadata)
        paths = metadata.planner_data or {}
        self._paths = {key: tuple(paths.get(key, tuple(key.split(".")))) for key in self._saved}
        self._stored = {key: key for key in self._saved}  # our key -> key in the checkpoint
        self._layout: Layout | None = None  # of another program's checkpoint

    def load(self) -> Loaded:
        """Load everything.

        Raises:
            StateMismatch: before anything is changed.
            NotWhole: damaged, or nobody can tell; nothing is changed.
        """
        if self._source.foreign and SHARED_KEY not in self._saved:
            self._ranks.together(self._recognise)
        moment("load.first-values")
        first = self._read(self._template_of(self._first_keys()))
        shared = from_text(tensor_bytes(first[SHARED_KEY])) if SHARED_KEY in first else {}
        self._ranks.together(lambda: self._compare(first, shared))
        template = self._ranks.together(lambda: self._templates(first))
        moment("load.values")
        values = self._read(template, last=True)
        moment("load.apply")
        self._ranks.together(lambda: self._apply(values, first))
        return Loaded(shared, self._own_values(first))

    def _recognise(self) -> None:
        saved = {key: Saved(self._paths[key], self._shape(key)) for key in self._saved}
        live, paths = flat_modules(self._state)
        modules: dict[str, dict[str, Shape]] = {name: {} for name in self._state.modules}
        for key, value in live.items():
            modules[paths[key][0]][key.partition(".")[2]] = shape_of(value)
        groups = {name: optimizers.group_names(self._state, name) for name in self._state.optimizers}
        self._layout = recognise(saved, modules, groups)
        self._stored, self._paths = self._layout.stored, self._layout.paths
        self._saved = {key: self._saved[stored] for key, stored in self._stored.items()}

    def _read(self, template: dict[str, Any], *, last: bool = False) -> dict[str, Any]:
        stored = {self._stored[key]: place for key, place in template.items()}
        values = self._reader.read(stored, last=last, trusted=self._trusted and self._source.foreign)
        return {key: values[self._stored[key]] for key in template}

    def _template_of(self, keys: list[str]) -> dict[str, Any]:
        """Places for saved values: a tensor on the CPU, or None for what is no tensor."""
        return {key: self._place(key) for key in keys}

    def _place(self, key: str) -> torch.Tensor | None:
        saved = self._saved[key]
        if isinstance(saved, TensorStorageMetadata):
            return torch.empty(saved.size, dtype=saved.properties.dtype)
        return None

    def _first_keys(self) -> list[str]:
        """Small values that say how to read the rest: texts, groups of optimizers, this rank's own values."""
        own = per_rank_key(self._ranks.rank, "")
        texts = {SHARED_KEY, *(stateful_key(name) for name in self._state.stateful)}
        return [
            key
            for key in self._saved
            if key in texts or key.startswith(own) or self._is_of_optimizer(key, "param_groups")
        ]

    def _is_of_optimizer(self, key: str, part: str) -> bool:
        path = self._paths[key]
        return len(path) > 1 and path[0] in self._state.optimizers and path[1] == part

    def _own_values(self, first: Mapping[str, Any]) -> dict[str, bytes] | None:
        own = per_rank_key(self._ranks.rank, "")
        values = {key.removeprefix(own): tensor_bytes(v) for key, v in first.items() if key.startswith(own)}
        return values or None

    # What differs ---------------------------------------------------------------------------------------

    def _compare(self, first: Mapping[str, Any], shared: Mapping[str, Any]) -> None:
        tracked = {key: shape_of(value) for key, value in flat_modules(self._state)[0].items()}
        tracked.update({stateful_key(name): None for name in self._state.stateful})
        saved = {key: self._shape(key) for key in self._saved if self._is_compared(key)}
        notes: list[str] = []
        for name in self._present_optimizers():
            pairs = optimizers.compared(self._state, name, self._groups(name, first), shared)
            tracked.update(pairs.tracked)
            saved.update(pairs.saved)
            notes += pairs.notes
        if self._layout:
            notes += [*self._layout.notes, *self._numbered_shapes()]
        mismatch = self._without_strangers(compare(tracked, saved, tuple(notes)))
        if mismatch:
            raise StateMismatch(mismatch.message(self._source.label, self._remedy()))
        self._warn_of_dtypes()

    def _is_compared(self, key: str) -> bool:
        """Tensors of a tracked object belong to its text; optimizers are compared by parameter."""
        if key.startswith(STATEFUL_PREFIX):
            return "/" not in key.removeprefix(STATEFUL_PREFIX)
        if key == SHARED_KEY or (key.startswith("rank-") and "/" in key):
            return False
        return self._paths[key][0] not in self._state.optimizers

    def _shape(self, key: str) -> Shape:
        saved = self._saved[key]
        is_text = key.startswith(STATEFUL_PREFIX)
        return tuple(saved.size) if isinstance(saved, TensorStorageMetadata) and not is_text else None

    def _remedy(self) -> str:
        if self._layout is None:
            return REMEDY
        return (
            f"Found in it: {self._layout.describe()}. Track the model and optimizer that made it, or one of"
            " which every key above is there"
        )

    def _present_optimizers(self) -> list[str]:
        """Another program's checkpoint may have weights alone."""
        return [
            name for name in self._state.optimizers if self._layout is None or name in self._layout.places
        ]

    def _numbered_shapes(self) -> list[str]:
        """State that lies under a parameter's number and can't be of the parameter with that number."""
        notes = []
        for name in self._layout.by_number if self._layout else ():
            parameters = optimizers.parameters_by_name(self._state, name)
            for key in self._optimizer_keys(name):
                owner = str(self._paths[key][2])
                shape, now = self._shape(key) or (), shape_of(parameters.get(owner)) or ()
                if shape and len(shape) == len(now) and shape != now:
                    notes.append(f"{self._stored[key]} has shape {list(shape)}, {owner} has {list(now)}")
        return notes

    def _without_strangers(self, mismatch: Mismatch) -> Mismatch:
        """Another program's checkpoint may lack our tracked objects and hold things we have no use for."""
        if self._layout is None:
            return mismatch
        taken = {key for name in self._state.stateful for key in self._extras(name)}
        unused = [
            key
            for key in mismatch.unexpected
            if self._paths[key][0] not in self._state.modules
            or self._paths[key][0] not in self._layout.places
        ]
        absent = [
            key
            for key in mismatch.missing
            if key.startswith(STATEFUL_PREFIX) and not self._extras(key.removeprefix(STATEFUL_PREFIX))
        ]
        fresh = [key.removeprefix(STATEFUL_PREFIX) for key in absent]
        fresh += [name for name in self._state.optimizers if name not in self._present_optimizers()]
        if self._ranks.rank == 0:
            self._warn(
                f"{self._source.label} was written by another program. Found in it:"
                f" {self._layout.describe()}. In it and not used:"
                f" {summary(key for key in unused if key not in taken)}. Not in it, so it starts fresh:"
                f" {', '.join(sorted(fresh)) or 'nothing'}."
            )
        texts = [key for key in mismatch.missing if key.startswith(STATEFUL_PREFIX)]
        return mismatch.without({*unused, *texts})

    def _extras(self, name: str) -> list[str]:
        """Another program's values for a tracked object: pickles, so only at the user's word."""
        if self._layout is None or not self._trusted:
            return []
        return [key for key in self._saved if self._paths[key][0] == name]

    def _warn_of_dtypes(self) -> None:
        changed = [
            f"{key} (saved {self._saved[key].properties.dtype}, now {value.dtype})"
            for key, value in flat_modules(self._state)[0].items()
            if isinstance(value, torch.Tensor) and self._saved[key].properties.dtype != value.dtype
        ]
        if changed and self._ranks.rank == 0:
            self._warn(f"{self._source.label}: converted to another dtype: {', '.join(changed)}")

    # What is loaded where -------------------------------------------------------------------------------

    def _groups(self, name: str, first: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Parameter groups of an optimizer as saved; None when it was not."""
        nested: dict[str, Any] = {}
        for key, value in first.items():
            if self._is_of_optimizer(key, "param_groups") and self._paths[key][0] == name:
                set_element(nested, self._paths[key][1:], value)
        groups: list[dict[str, Any]] | None = nested.get("param_groups")
        return groups if self._layout is None else self._layout.named(name, groups)

    def _templates(self, first: Mapping[str, Any]) -> dict[str, Any]:
        live, _ = flat_modules(self._state)
        template = {key: value if isinstance(value, torch.Tensor) else None for key, value in live.items()}
        for name in self._present_optimizers():
            template.update(self._optimizer_template(name))
        for name, thing in self._state.stateful.items():
            if stateful_key(name) in first:
                template.update(self._stateful_template(name, thing))
            template.update(self._template_of(self._extras(name)))
        return template

    def _optimizer_keys(self, name: str) -> list[str]:
        """Keys of its state."""
        return [
            key for key in self._saved if self._paths[key][0] == name and self._is_of_optimizer(key, "state")
        ]

    def _optimizer_template(self, name: str) -> dict[str, Any]:
        parameters = optimizers.parameters_by_name(self._state, name)
        return {
            key: optimizers.place_like(parameters[str(self._paths[key][2])], self._saved[key])
            for key in self._optimizer_keys(name)
        }

    def _stateful_template(self, name: str, thing: Any) -> dict[str, Any]:
        live: list[Any] = []
        to_text(thing.state_dict(), live, where=name)
        keys = sorted(key for key in self._saved if key.startswith(stateful_key(name) + "/"))
        template: dict[str, Any] = {}
        for index, key in enumerate(keys):
            same = index < len(live) and tuple(live[index].shape) == tuple(self._saved[key].size)
            template[key] = torch.empty_like(live[index]) if same else self._place(key)
        return template

    def _apply(self, values: dict[str, Any], first: Mapping[str, Any]) -> None:
        self._apply_modules(values)
        for name in self._present_optimizers():
            saved = {
                self._paths[key][2:]: value
                for key, value in values.items()
                if key in self._paths and self._paths[key][0] == name and self._is_of_optimizer(key, "state")
            }
            warnings = optimizers.apply(self._state, name, self._groups(name, first) or [], saved)
            for warning in warnings if self._ranks.rank == 0 else ():
                self._warn(f"{self._source.label}: {warning}")
        for name, thing in self._state.stateful.items():
            if stateful_key(name) in first:
                tensors = [values[key] for key in sorted(values) if key.startswith(stateful_key(name) + "/")]
                saved_state = from_text(tensor_bytes(first[stateful_key(name)]), tensors)
                warning = overruled_schedule(name, thing, saved_state)
                thing.load_state_dict(saved_state)
                if warning and self._ranks.rank == 0:
                    self._warn(f"{self._source.label}: {warning}")
            elif extras := self._extras(name):
                nested: dict[str, Any] = {}
                for key in extras:
                    set_element(nested, self._paths[key], values[key])
                thing.load_state_dict(nested[name])

    def _apply_modules(self, values: Mapping[str, Any]) -> None:
        live, paths = flat_modules(self._state)
        nested: dict[str, Any] = {}
        for key in live:
            set_element(nested, paths[key], values[key])
        for name, module in self._state.modules.items():
            set_model_state_dict(module, nested[name])
