"""Read DCP's ``.metadata`` (a pickle) without trusting it, and without torch.

Called by the library, which proves checkpoints, and by the agent, which offers one to other scripts.

Only the names that DCP itself writes are let through; any other ends the read before anything is called.
Without torch they become inert stubs, enough to know every item, its shape and where its bytes lie.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    (_METADATA, "Metadata"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
}
_PATHS = {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"}
_PATH_MODULES = {"pathlib", "pathlib._local"}
_DTYPE = re.compile(
    r"(q?u?int|float|bfloat|complex|bits)\d+(_[a-z0-9]+|x\d+)*|bool|half|double|float|long|int|short"
)

Numbers = tuple[int, ...]


class DamagedMarker(ValueError):
    """Not a marker that DCP writes; the text says why."""


class ForbiddenName(DamagedMarker):
    """The pickle asks for something that a marker never needs. Nothing of it was called."""


class _Stub:
    """Stands for a class of torch: keeps what the pickle gives and does nothing."""

    kind = ""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        plain = state[1] if isinstance(state, tuple) and len(state) == 2 and state[0] is None else state
        self.__dict__["state"] = plain
        if isinstance(plain, dict):
            self.__dict__.update({str(key): value for key, value in plain.items()})

    def __hash__(self) -> int:
        return hash((self.kind, getattr(self, "fqn", None), _numbers(getattr(self, "offset", None))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stub) and self.__dict__ == other.__dict__ and self.kind == other.kind


def _allowed(module: str, name: str) -> bool:
    if (module, name) in _CLASSES or (module in _PATH_MODULES and name in _PATHS):
        return True
    return module == "torch" and _DTYPE.fullmatch(name) is not None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, resolve: Callable[[str, str], Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        if not _allowed(module, name):
            raise ForbiddenName(f"it asks for {module}.{name}, which no checkpoint needs")
        return self._resolve(module, name)

    def persistent_load(self, key: Any) -> Any:
        raise ForbiddenName("it refers to objects outside itself")


def _stub(module: str, name: str) -> Any:
    return type(name, (_Stub,), {"kind": f"{module}.{name}"})


def load(data: bytes, resolve: Callable[[str, str], Any]) -> Any:
    """Unpickle; ``resolve`` gives the class for an allowed (module, name).

    Raises:
        DamagedMarker: as for ``parse_marker``.
    """
    try:
        return _Unpickler(data, resolve).load()
    except DamagedMarker:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DamagedMarker(f"it can't be parsed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Item:
    """One stored piece: where its bytes lie."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Marker:
    """What a marker says. ``shapes``: key -> shape, None for a value that is no tensor."""

    shapes: dict[str, tuple[int, ...] | None]
    chunks: dict[str, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]  # key -> (offsets, sizes)...
    items: dict[tuple[str, tuple[int, ...] | None], Item]
    dtypes: dict[str, str] = field(default_factory=dict)  # key -> "float32"; of tensors, where it is told

    def needed_bytes(self) -> dict[str, int]:
        """Shard file -> the size it must have at least."""
        needed: dict[str, int] = {}
        for item in self.items.values():
            needed[item.file] = max(needed.get(item.file, 0), item.offset + item.length)
        return needed

    def outside(self) -> str | None:
        """The first named file that does not lie in the checkpoint's own directory, or None."""
        return next((file for file in self.needed_bytes() if not plain_name(file)), None)

    def gap(self) -> str | None:
        """The first thing that is declared but not stored (a writer's error was swallowed), or None."""
        for key, shape in self.shapes.items():
            places: list[tuple[int, ...] | None] = [None]
            if shape is not None:
                places = [offsets for offsets, _ in self.chunks[key]]
                if not _makes_up(shape, self.chunks[key]):
                    return f"{key}: its pieces do not make up its shape {list(shape)}"
            for place in places:
                item = self.items.get((key, place))
                if item is None:
                    return f"{key}: a piece of it was never stored"
                if item.offset < 0 or item.length < 0:
                    return f"{key}: {item.length} bytes from {item.offset} on can't be"
        return None


def parse_marker(data: bytes) -> Marker:
    """Parse without torch; nothing in ``data`` is executed.

    Raises:
        ForbiddenName: it asks for something outside the allow list.
        DamagedMarker: not a DCP marker.
    """
    metadata = load(data, _stub)
    try:
        described = metadata.state_dict_metadata
        shapes = {key: _numbers(getattr(value, "size", None)) for key, value in described.items()}
        chunks = {
            key: tuple((_numbers(c.offsets) or (), _numbers(c.sizes) or ()) for c in value.chunks)
            for key, value in described.items()
            if shapes[key] is not None
        }
        items = {_place(index): _item(info) for index, info in metadata.storage_data.items()}
        dtypes = {key: _dtype(value) for key, value in described.items() if shapes[key] is not None}
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise DamagedMarker(f"it lacks what a marker must say: {error}") from error
    return Marker(shapes, chunks, items, dtypes)


def _makes_up(shape: Numbers, chunks: Sequence[tuple[Numbers, Numbers]]) -> bool:
    """Whether boxes (offsets, sizes) cover a tensor, each element once.

    They do if they lie in it, are as large as it together, and no two of them overlap.
    """
    filled = [box for box in chunks if 0 not in box[1]]
    for offsets, sizes in filled:
        if not len(offsets) == len(sizes) == len(shape):
            return False
        if any(at < 0 or size < 0 or at + size > end for at, size, end in zip(offsets, sizes, shape)):
            return False
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(shape):
        return False
    return _is_grid(len(shape), filled) or not _overlap(filled)


def _is_grid(axes: int, boxes: Sequence[tuple[Numbers, Numbers]]) -> bool:
    """Whether they are different cells of one grid, as sharding makes them: then they do not overlap."""
    for axis in range(axes):
        end = 0
        for begin, after in sorted(
            {(offsets[axis], offsets[axis] + sizes[axis]) for offsets, sizes in boxes}
        ):
            if begin < end:
                return False
            end = after
    return len({offsets for offsets, _ in boxes}) == len(boxes)


def _overlap(boxes: Sequence[tuple[Numbers, Numbers]]) -> bool:
    boxes = sorted(boxes)
    for number, (offsets, sizes) in enumerate(boxes):
        for others, other_sizes in boxes[number + 1 :]:
            if others and others[0] >= offsets[0] + sizes[0]:
                break
            if all(a < b + n and b < a + m for a, m, b, n in zip(offsets, sizes, others, other_sizes)):
                return True
    return False


def plain_name(file: str) -> bool:
    """Whether that can be a file of a checkpoint: below its own directory, and a name at all."""
    if "\0" in file or any("\ud800" <= letter <= "\udfff" for letter in file):
        return False
    return all(part not in ("", ".", "..") for part in file.split("/"))


def _place(index: Any) -> tuple[str, tuple[int, ...] | None]:
    return str(index.fqn), _numbers(getattr(index, "offset", None))


def _item(info: Any) -> Item:
    return Item(str(info.relative_path), int(info.offset), int(info.length))


def _dtype(described: Any) -> str:
    """Name of a tensor's type; empty when this torch keeps it elsewhere."""
    told = getattr(getattr(described, "properties", None), "state", None)
    kind = told[0] if isinstance(told, tuple) and told else (told or {}).get("dtype")
    return str(getattr(kind, "kind", "")).rpartition(".")[2]


def _numbers(size: Any) -> tuple[int, ...] | None:
    """A ``torch.Size`` stub to a tuple."""
    if isinstance(size, _Stub):
        size = size.arguments[0] if size.arguments else ()
    return None if size is None else tuple(int(number) for number in size)
