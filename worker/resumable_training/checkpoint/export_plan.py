"""PURE: which keys of a checkpoint an export takes, under which names, into which files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from resumable_training.checkpoint.content import Content, Value, group_name, item_bytes

DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
    "float32": "float32",
    "fp64": "float64",
    "float64": "float64",
}
SAFETENSORS_TYPES = {
    *("float64", "float32", "float16", "bfloat16", "bool", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ExportRefused(ValueError):
    """What was asked for makes no sense for this checkpoint; the text says why and what would."""


@dataclass(frozen=True)
class Names:
    """How keys become names. ``strip`` None: the module's own name, where only one is exported."""

    modules: tuple[str, ...] = ()  # empty: all
    strip: str | None = None
    prefix: str = ""
    drop: tuple[str, ...] = ()  # names, as they would be written, to leave out


@dataclass(frozen=True)
class Kept:
    """A tensor to write. ``bytes``: as written; ``stored``: as read."""

    key: str
    name: str
    bytes: int
    stored: int
    dtype: str = ""  # as written, by torch's name


@dataclass(frozen=True)
class Shard:
    """One output file."""

    file: str
    kept: tuple[Kept, ...]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.kept)


@dataclass(frozen=True)
class Exported:
    """What was written. ``bytes``: of the files, with what is around the tensors.

    ``twins``: pairs of names with the same bytes, which may be tied in the model.
    """

    files: tuple[str, ...]
    tensors: int
    bytes: int
    twins: tuple[tuple[str, str], ...]


def parse_size(text: str) -> int:
    """``5GB`` is 5e9 bytes, ``5GiB`` 5 * 2**30.

    Raises:
        ExportRefused: it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()] if match else 0
    if size < 1:
        raise ExportRefused(f"{text!r} is no size: give one such as 5GB or 500MB")
    return int(size)


def select(content: Content, names: Names, dtype: str | None) -> tuple[Kept, ...]:
    """The weights: tensors of all modules, or of those named.

    Args:
        dtype: torch's name of the type that floating-point tensors are written in; None: their own.

    Raises:
        ExportRefused: there are none, or two would have the same name.
    """
    groups = {group.name: group for group in content.groups}
    modules = [name for name, group in groups.items() if group.kind == "module"]
    unknown = [name for name in names.modules if name not in modules]
    if unknown:
        raise ExportRefused(
            f"{content.name} has no module {unknown[0]}; it has {', '.join(modules) or 'none'}"
        )
    taken = names.modules or tuple(modules)
    values = [v for v in content.values if v.shape is not None and group_name(v.key) in taken]
    strip = names.strip
    if strip is None:
        strip = f"{taken[0]}." if len(taken) == 1 else ""
    if names.strip and not any(value.key.startswith(names.strip) for value in values):
        raise ExportRefused(f"no key begins with {names.strip!r}; the first is {_first(values)}")
    kept = [
        Kept(
            v.key,
            names.prefix + v.key.removeprefix(strip),
            _written(v, dtype),
            v.bytes,
            dtype if dtype and is_floating(v.dtype) else v.dtype,
        )
        for v in values
    ]
    return _without(kept, names.drop, content.name)


def require_safetensors(kept: Sequence[Kept]) -> None:
    """That their format can hold all of them.

    Raises:
        ExportRefused: names the first one that it can't, and what to do.
    """
    for one in kept:
        if one.name == "__metadata__":
            raise ExportRefused(
                f"safetensors keep the name {one.name} for themselves: --drop it, or --prefix"
            )
        if one.dtype not in SAFETENSORS_TYPES:
            raise ExportRefused(
                f"{one.name} is {one.dtype}, which safetensors can't hold: --drop it, or --format torch"
            )


def _first(values: Sequence[Value]) -> str:
    return repr(values[0].key) if values else "none: it has no tensors of modules"


def _without(kept: list[Kept], drop: tuple[str, ...], checkpoint: str) -> tuple[Kept, ...]:
    by_name = {one.name: one for one in kept}
    missing = [name for name in drop if name not in by_name]
    if missing:
        raise ExportRefused(f"there is no {missing[0]} to drop")
    if len(by_name) != len(kept):
        twice = next(one.name for one in kept if by_name[one.name] is not one)
        raise ExportRefused(f"two keys would be called {twice}: strip less, or name one module")
    left = tuple(one for one in kept if one.name not in drop)
    if not left:
        raise ExportRefused(f"{checkpoint} has no tensors of modules to export")
    return left


def _written(value: Value, dtype: str | None) -> int:
    """Bytes in the output."""
    each = item_bytes(value.dtype)
    if dtype is None or not each or not is_floating(value.dtype):
        return value.bytes
    return value.bytes // each * item_bytes(dtype)


def is_floating(dtype: str) -> bool:
    """Of a torch type's name."""
    return dtype.startswith(("float", "bfloat"))


def split(kept: Sequence[Kept], most_bytes: int) -> tuple[Shard, ...]:
    """Files of at most that size, in the order of keys, named as ``transformers`` does.

    A tensor that is larger has a file of its own.
    """
    parts: list[list[Kept]] = [[]]
    size = 0
    for one in kept:
        if parts[-1] and size + one.bytes > most_bytes:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += one.bytes
    if len(parts) == 1:
        return (Shard("model.safetensors", tuple(parts[0])),)
    return tuple(
        Shard(f"model-{number:05d}-of-{len(parts):05d}.safetensors", tuple(part))
        for number, part in enumerate(parts, 1)
    )
