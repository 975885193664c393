"""PURE: say everything that differs between a checkpoint and what is tracked, with likely renames."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

Shape = tuple[int, ...] | None  # None: a value that is no tensor

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
REMEDY = (
    "Go on with the model and optimizer that made it, or train the new ones with another checkpoint directory"
)
_MOST_COMPARED = 20_000  # pairs of names; similarity is worth seconds, not minutes


@dataclass(frozen=True)
class Mismatch:
    """Result of ``compare``: keys are as in the checkpoint's marker ("model.head.weight")."""

    missing: dict[str, Shape] = field(default_factory=dict)  # tracked, not in the checkpoint
    unexpected: dict[str, Shape] = field(default_factory=dict)  # in the checkpoint, not tracked
    reshaped: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # key -> saved, tracked
    notes: tuple[str, ...] = ()  # differences that are not about one key
    renames: dict[str, str] = field(default_factory=dict)  # missing -> unexpected that is likely the same

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.reshaped or self.notes)

    def without(self, keys: Collection[str]) -> Mismatch:
        """The same, leaving some missing or unexpected keys out."""
        missing = {key: shape for key, shape in self.missing.items() if key not in keys}
        unexpected = {key: shape for key, shape in self.unexpected.items() if key not in keys}
        return replace(self, missing=missing, unexpected=unexpected)

    def message(self, checkpoint: str, remedy: str = REMEDY) -> str:
        """All of it, one key a line, and what to do."""
        lines = [f"checkpoint {checkpoint} does not fit what is tracked:"]
        lines += [f"  {note}" for note in self.notes]
        lines += _section(
            "missing in the checkpoint", [self._missing_line(key) for key in sorted(self.missing)]
        )
        lines += _section(
            "unexpected in the checkpoint",
            [f"{key} {_text(self.unexpected[key])}" for key in sorted(self.unexpected)],
        )
        lines += _section(
            "of another shape",
            [
                f"{key}: saved {_text(saved)}, now {_text(now)}"
                for key, (saved, now) in sorted(self.reshaped.items())
            ],
        )
        lines.append(remedy)
        return "\n".join(lines)

    def _missing_line(self, key: str) -> str:
        rename = self.renames.get(key)
        return f"{key} {_text(self.missing[key])}" + (f"  (likely saved as {rename})" if rename else "")


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"  {title} ({len(lines)}):", *(f"    {line}" for line in lines)] if lines else []


def _text(shape: Shape) -> str:
    return "(no tensor)" if shape is None else str(list(shape))


def compare(
    tracked: Mapping[str, Shape], saved: Mapping[str, Shape], notes: tuple[str, ...] = ()
) -> Mismatch:
    """Every difference between the keys and shapes of both sides."""
    missing = {key: shape for key, shape in tracked.items() if key not in saved}
    unexpected = {key: shape for key, shape in saved.items() if key not in tracked}
    reshaped = {
        key: (saved[key], shape) for key, shape in tracked.items() if key in saved and saved[key] != shape
    }
    return Mismatch(missing, unexpected, reshaped, notes, likely_renames(missing, unexpected))


def likely_renames(missing: Mapping[str, Shape], unexpected: Mapping[str, Shape]) -> dict[str, str]:
    """For missing keys, the unexpected key of the same shape that was likely the same thing."""
    bare = {(without_wrappers(key), shape): key for key, shape in unexpected.items()}
    by_shape: dict[Shape, list[str]] = {}
    for key, shape in unexpected.items():
        by_shape.setdefault(shape, []).append(key)
    renames = {}
    compared = 0
    for key, shape in sorted(missing.items()):
        found = bare.get((without_wrappers(key), shape))
        candidates = by_shape.get(shape, [])
        if found is None and compared + len(candidates) <= _MOST_COMPARED:
            compared += len(candidates)
            found = next(iter(difflib.get_close_matches(key, candidates, n=1, cutoff=0.6)), None)
        if found is not None:
            renames[key] = found
    return renames


def without_wrappers(key: str) -> str:
    """A key without the names that wrappers (DDP, ``torch.compile``, FSDP) put into it."""
    return ".".join(part for part in key.split(".") if part not in WRAPPERS)
