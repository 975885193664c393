"""Writing to a standard stream that may be closed or slow, without ever waiting for it.

``kubectl logs`` and pipes in shells stop reading when they like; a rank must not block for that.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import List

from resumable_training.contract.output import AGENT_LEAD

_LEAD = AGENT_LEAD.encode()
LIMIT_BYTES = 4 * 1024 * 1024  # waiting to be written; what comes beyond it is dropped and counted


class Outlet:
    """One descriptor with a thread of its own. ``put`` never blocks and never fails."""

    def __init__(self, descriptor: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self._descriptor = descriptor
        self._limit = limit_bytes
        self._waiting: List[bytes] = []
        self._bytes = 0  # waiting and being written
        self._dropped = 0
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="outlet-%d" % descriptor, daemon=True).start()

    def put(self, data: bytes) -> None:
        """Queue whole lines."""
        with self._changed:
            if self._closed or self._bytes + len(data) > self._limit:
                self._dropped += len(data)
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all is written, at most so long; False when something is left."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._bytes and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def _run(self) -> None:
        while True:
            data = self._take()
            alive = write_all(self._descriptor, data)
            with self._changed:
                self._closed = not alive
                self._bytes -= len(data)
                self._changed.notify_all()
            if not alive:
                return

    def _take(self) -> bytes:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            data = b"".join(self._waiting)
            self._waiting = []
            if self._dropped:
                note = b"%s%d bytes of output dropped: nobody reads fast enough\n" % (_LEAD, self._dropped)
                self._dropped = 0
                self._bytes += len(note)
                data += note
            return data


def write_all(descriptor: int, data: bytes) -> bool:
    """Write everything, also to a non-blocking descriptor; False when nobody can read it any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)
        except OSError:
            return False
    return True
