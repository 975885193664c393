"""Files whose bytes go to the disk while more of them are written. No torch.

The system keeps what is written until ``fsync`` asks for it; only then the disk begins, and the process waits
for all of it. And it looks for a place on the disk page by page, which costs more than the copy itself. Here
room is asked for once, and each stretch is begun as soon as it is there: hashing and copying go on meanwhile,
and ``fsync`` finds little to do. Both are advice. Where a file system does not know it (NFS has no room to
give, macOS neither), the file is written as any other, and ``fsync`` still decides what is durable.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRETCH_BYTES = 8 << 20
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: a file is as long as what was written, whatever room it has
_BEGIN_WRITING = 2  # SYNC_FILE_RANGE_WRITE: of pages that are not on their way yet; does not wait for them


class EarlyFile(io.FileIO):
    """A new file, written strictly forward. ``expected_bytes``: about how long it will be; 0: unknown."""

    def __init__(self, path: Path, expected_bytes: int = 0) -> None:
        """Raises OSError, as ``open`` with mode "xb"."""
        super().__init__(path, "xb")
        self._written = 0
        self._begun = 0
        self._room = expected_bytes
        if expected_bytes:
            _advise("fallocate", self.fileno(), _KEEP_SIZE, 0, expected_bytes)

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self._written += count
        if self._written - self._begun >= STRETCH_BYTES:
            length = self._written - self._begun
            _advise("sync_file_range", self.fileno(), self._begun, length, _BEGIN_WRITING)
            self._begun = self._written
        return count

    def sync(self) -> None:
        """All of it is durable; room that it did not need is given back."""
        if self._room > self._written:
            os.ftruncate(self.fileno(), self._written)
        os.fsync(self.fileno())


def _advise(name: str, descriptor: int, *arguments: int) -> None:
    """What can't be done now, or not here, need not be done: its outcome is not looked at."""
    function = _functions.get(name)
    if function is not None:
        function(descriptor, *arguments)


def _found(name: str, *kinds: Any) -> dict[str, Callable[..., int]]:
    if sys.platform != "linux":
        return {}
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return {}
    function.argtypes = [ctypes.c_int, *kinds]
    return {name: function}


_functions = {
    **_found("fallocate", ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
    **_found("sync_file_range", ctypes.c_int64, ctypes.c_int64, ctypes.c_uint),
}
