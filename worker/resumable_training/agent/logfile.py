"""A rank's log file, bounded where the disk is a pod's scratch space; and what is kept of old attempts."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Optional

EARLIER = ".1"  # what a full log is renamed to: one of them is kept
_ATTEMPT = re.compile(r"attempt-(\d+)")


class LogFile:
    """Appends to ``path``. With ``limit_bytes`` above 0 the file and its predecessor stay below twice that.

    Raises (``write``):
        OSError: it can't be written now; calling again tries again.
    """

    def __init__(self, path: Path, limit_bytes: int = 0) -> None:
        self.path = path
        self._limit = limit_bytes
        self._descriptor: Optional[int] = None
        self._bytes = 0

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def write(self, data: bytes) -> None:
        if self._descriptor is None:
            self._open()
        if self._limit and self._bytes and self._bytes + len(data) > self._limit:
            self._turn()
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self._bytes += written
            view = view[written:]

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._bytes = os.fstat(self._descriptor).st_size

    def _turn(self) -> None:
        """The file is full: it becomes the earlier one."""
        self.close()
        os.replace(self.path, self.path.with_name(self.path.name + EARLIER))
        self._open()


def forget_old_attempts(root: Path, newest: int, keep: int) -> None:
    """Remove the logs of all but the last ``keep`` attempts up to ``newest``; 0 keeps all."""
    if keep < 1:
        return
    for path in root.glob("attempt-*"):
        match = _ATTEMPT.fullmatch(path.name)
        if match and int(match[1]) <= newest - keep:
            shutil.rmtree(path, ignore_errors=True)
