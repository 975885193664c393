"""PURE: what ``torch.save`` writes round the bytes of one tensor, without torch.

DCP stores each piece of a tensor as an archive of its own: a zip file without compression that holds a pickle
(dtype, shape), the bytes, and a few words. A reader takes its places from the directory at the end. All but
the bytes themselves depends on dtype and shape alone, so bytes go from memory to the store as they are.
The check sums of the zip format stay 0, as with ``torch.serialization.set_crc32_options(False)``: torch never
looks at them, and the manifest has a better one for every block.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

from resumable_training.checkpoint import opcodes

ALIGNMENT = 64  # of the bytes in the archive, as torch has it
_PREFIX = "archive"
_LOCAL_BYTES = 30  # of an entry's header, before its name
_DATE = 0x21  # 1980-01-01, which is 0 in a zip file
_LEGACY = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
    "int32": "IntStorage",
    "int16": "ShortStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
    "complex128": "ComplexDoubleStorage",
    "complex64": "ComplexFloatStorage",
}
_UNTYPED = {
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
    "float8_e8m0fnu",
    "complex32",
    "uint16",
    "uint32",
    "uint64",
}
DTYPES = frozenset(_LEGACY) | _UNTYPED


def frame(dtype: str, sizes: Sequence[int], size: int) -> tuple[bytes, bytes]:
    """What comes before and after the ``size`` bytes of a tensor in its archive.

    ``size`` is less than 4 GiB: see ``slices.MOST_BYTES``.
    """
    return _frame(dtype, tuple(sizes), size)


@functools.lru_cache(maxsize=4096)  # many tensors are alike, and saves follow one another
def _frame(dtype: str, sizes: tuple[int, ...], size: int) -> tuple[bytes, bytes]:
    before = [(f"{_PREFIX}/data.pkl", describe(dtype, sizes, size)), (f"{_PREFIX}/byteorder", b"little")]
    after = [(f"{_PREFIX}/version", b"3\n")]
    head = b""
    directory: list[bytes] = []
    for name, content in before:
        head += _entry(name, len(content), len(head), directory) + content
    data = f"{_PREFIX}/data/0"
    padding = -(len(head) + _LOCAL_BYTES + len(data)) % ALIGNMENT
    head += _entry(data, size, len(head), directory, padding)
    tail = b""
    for name, content in after:
        tail += _entry(name, len(content), len(head) + size + len(tail), directory) + content
    return head, tail + _end(directory, len(head) + size + len(tail))


def describe(dtype: str, sizes: Sequence[int], size: int) -> bytes:
    """The pickle of a contiguous tensor; its storage is left outside."""
    elements = 1
    strides: list[int] = []
    for extent in reversed(sizes):
        strides.insert(0, elements)
        elements *= max(extent, 1)
    kind, rebuild = opcodes.name("torch", _LEGACY.get(dtype, "")), "_rebuild_tensor_v2"
    count = 0 if 0 in sizes else elements
    if dtype not in _LEGACY:
        kind, rebuild = opcodes.name("torch.storage", "UntypedStorage"), "_rebuild_tensor_v3"
        count = size
    where = [opcodes.text("storage"), kind, opcodes.text("0"), opcodes.text("cpu"), opcodes.integer(count)]
    no_hooks = opcodes.call(opcodes.name("collections", "OrderedDict"), [])
    arguments = [
        opcodes.persistent(opcodes.sequence(where)),
        opcodes.integer(0),
        opcodes.integers(sizes),
        opcodes.integers(strides),
        opcodes.FALSE,
        no_hooks,
    ]
    if dtype not in _LEGACY:
        arguments.append(opcodes.name("torch", dtype))
    return opcodes.PROTOCOL + opcodes.call(opcodes.name("torch._utils", rebuild), arguments) + opcodes.STOP


def _entry(name: str, size: int, at: int, directory: list[bytes], padding: int = 0) -> bytes:
    """The header before an entry's content; its line in the directory is added to ``directory``."""
    if 0 < padding < 4:
        padding += ALIGNMENT
    extra = struct.pack("<2sH", b"FB", padding - 4) + b"Z" * (padding - 4) if padding else b""
    encoded = name.encode()
    common = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, _DATE, 0, size, size, len(encoded), len(extra))
    listed = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, _DATE, 0, size, size, len(encoded), 0)
    directory.append(
        b"PK\x01\x02" + struct.pack("<H", 0) + listed + struct.pack("<HHHII", 0, 0, 0, 0, at) + encoded
    )
    return b"PK\x03\x04" + common + encoded + extra


def _end(directory: list[bytes], at: int) -> bytes:
    listed = b"".join(directory)
    count = len(directory)
    return listed + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, len(listed), at, 0)
