"""Whether a checkpoint fits what is tracked: every difference in one message, and what deserves a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from resumable_training.checkpoint import optimizers
from resumable_training.checkpoint.errors import StateMismatch
from resumable_training.checkpoint.foreign import Layout, summary
from resumable_training.checkpoint.inventory import Inventory
from resumable_training.checkpoint.mismatch import REMEDY, Mismatch, Shape, compare
from resumable_training.checkpoint.saved import SavedState
from resumable_training.checkpoint.state import (
    SHARED_KEY,
    STATEFUL_PREFIX,
    TrainingState,
    extra_state_of,
    shape_of,
    stateful_key,
)


@dataclass(frozen=True)
class Fit:
    """``words``: what was noticed though it fits."""

    mismatch: Mismatch
    remedy: str = REMEDY
    words: list[str] = field(default_factory=list)

    def require(self, label: str) -> None:
        """Raises StateMismatch, with everything that differs."""
        if self.mismatch:
            raise StateMismatch(self.mismatch.message(label, self.remedy))


def fit(saved: SavedState, there: Inventory, first: Mapping[str, Any], shared: Mapping[str, Any]) -> Fit:
    """Compare. ``first``: values of parameter groups; ``shared``: our own envelope, if there is one."""
    state = there.state
    tracked = {key: shape_of(value) for key, value in there.values.items()}
    found = {key: saved.shape(key) for key in saved.described if _is_compared(key, saved, state)}
    if saved.layout is None:
        tracked, found = _as_one(tracked, there.paths, state), _as_one(found, saved.paths, state)
    tracked.update({stateful_key(name): None for name in state.stateful})
    notes: list[str] = []
    for name in filter(saved.has_optimizer, state.optimizers):
        pairs = optimizers.compared(there, name, saved.groups(name, first), shared)
        tracked.update(pairs.tracked)
        found.update(pairs.saved)
        notes += pairs.notes
    if saved.layout is None:
        return _with_dtypes(saved, there, Fit(compare(tracked, found, tuple(notes))))
    notes += [*saved.layout.notes, *_numbered_shapes(saved, saved.layout, there)]
    mismatch = compare(tracked, found, tuple(notes))
    return _with_dtypes(saved, there, _of_strangers(saved, saved.layout, state, mismatch))


def _as_one(
    shapes: Mapping[str, Shape], paths: Mapping[str, tuple[Any, ...]], state: TrainingState
) -> dict[str, Shape]:
    """Of a module's extra state only that it is there."""
    return {
        extra or key: None if extra else shape
        for key, shape in shapes.items()
        for extra in [extra_state_of(paths[key], state)]
    }


def _is_compared(key: str, saved: SavedState, state: TrainingState) -> bool:
    """Tensors of a tracked object belong to its text; optimizers are compared by parameter."""
    if key.startswith(STATEFUL_PREFIX):
        return "/" not in key.removeprefix(STATEFUL_PREFIX)
    if key == SHARED_KEY or (key.startswith("rank-") and "/" in key):
        return False
    return saved.paths[key][0] not in state.optimizers


def _of_strangers(saved: SavedState, layout: Layout, state: TrainingState, mismatch: Mismatch) -> Fit:
    """Another program's checkpoint may lack our tracked objects and hold things we have no use for."""
    texts = [key for key in mismatch.missing if key.startswith(STATEFUL_PREFIX)]
    unused = [
        key for key in mismatch.unexpected if saved.paths[key][0] not in state.modules.keys() & layout.places
    ]
    taken = {key for name in state.stateful for key in saved.extras(name)}
    fresh = [name for name in state.stateful if not saved.extras(name)]
    fresh += [name for name in state.optimizers if not saved.has_optimizer(name)]
    word = (
        f"{saved.label} was written by another program. Found in it: {layout.describe()}. In it and not used:"
        f" {summary(key for key in unused if key not in taken)}. Not in it, so it starts fresh:"
        f" {', '.join(sorted(fresh)) or 'nothing'}."
    )
    remedy = (
        f"Found in it: {layout.describe()}. Track the model and optimizer that made it, or one of which every"
        " key above is there"
    )
    return Fit(mismatch.without({*unused, *texts}), remedy, [word])


def _numbered_shapes(saved: SavedState, layout: Layout, there: Inventory) -> list[str]:
    """State that lies under a parameter's number and can't be of the parameter with that number."""
    notes = []
    for name in layout.by_number:
        parameters = there.parameters(name)
        for key in saved.of_optimizer(name, "state"):
            owner = str(saved.paths[key][2])
            shape, now = saved.shape(key) or (), shape_of(parameters.get(owner)) or ()
            if shape and len(shape) == len(now) and shape != now:
                notes.append(f"{saved.stored[key]} has shape {list(shape)}, {owner} has {list(now)}")
    return notes


def _with_dtypes(saved: SavedState, there: Inventory, found: Fit) -> Fit:
    if found.mismatch:
        return found
    changed = [
        f"{key} (saved {saved.described[key].properties.dtype}, now {value.dtype})"
        for key, value in there.values.items()
        if isinstance(value, torch.Tensor)
        and not extra_state_of(there.paths[key], there.state)
        and saved.described[key].properties.dtype != value.dtype
    ]
    if changed:
        found.words.append(f"{saved.label}: converted to another dtype: {', '.join(changed)}")
    return found
