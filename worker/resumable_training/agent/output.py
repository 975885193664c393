"""Output of ranks: to the rank's log file, to the agent's standard output, and its last lines kept.

A pipe per rank, read by one thread. Not a file that the rank writes itself: a full disk would then fail its
``print``. A log that can't be written is a warning; a standard output that nobody reads is nothing at all.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Callable, Deque, Set, Tuple

from resumable_training.agent.logfile import LogFile
from resumable_training.agent.outlet import Outlet

TAIL_LINES = 40
LINE_BYTES = 2000  # of a line in the tail
PARTIAL_BYTES = 65536  # a line without an end is passed on when it is so long
_CHUNK = 65536
_RETRY_LOG_SECONDS = 5.0


class RankOutput:
    """One rank's output, owned by the pump's thread. ``tail`` may be read anywhere."""

    def __init__(self, descriptor: int, prefix: str, log: LogFile) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.prefix = prefix.encode()
        self.log = log
        self.tail: Deque[str] = deque(maxlen=TAIL_LINES)
        self.partial = b""
        self.retry_log_at = 0.0
        self.warned = False
        self.ended = False


class OutputPump:
    """Reads all ranks' pipes in one thread. ``warn`` is called in that thread. ``log_bytes``: see LogFile."""

    def __init__(self, outlet: Outlet, warn: Callable[[str], None], log_bytes: int = 0) -> None:
        self._outlet = outlet
        self._warn = warn
        self._log_bytes = log_bytes
        self._selector = selectors.DefaultSelector()
        self._commands: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._open: Set[RankOutput] = set()
        threading.Thread(target=self._run, name="rank-output", daemon=True).start()

    def add(self, descriptor: int, prefix: str, path: Path) -> RankOutput:
        """Pump from now on; the pump closes ``descriptor``."""
        output = RankOutput(descriptor, prefix, LogFile(path, self._log_bytes))
        self._call(lambda: self._register(output))
        return output

    def finish(self, output: RankOutput) -> "Future[Tuple[str, ...]]":
        """After the rank's end: read what it left in the pipe; the last lines.

        Does not wait for the end of the pipe, which children of the rank may hold open.
        """
        result: "Future[Tuple[str, ...]]" = Future()
        self._call(lambda: self._finish(output, result))
        return result

    def append(self, output: RankOutput, text: str) -> None:
        """Add the agent's own words to the rank's log and to standard output."""
        self._call(lambda: self._pass_on(output, text.encode()))

    def close(self, output: RankOutput) -> None:
        """Stop reading, whoever still writes."""
        self._call(lambda: self._end(output))

    def _call(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        with contextlib.suppress(BlockingIOError):  # full: the thread is being woken already
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._run_commands()
                else:
                    self._read(key.data)

    def _run_commands(self) -> None:
        os.read(self._wake_read, _CHUNK)
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()

    def _register(self, output: RankOutput) -> None:
        self._open.add(output)
        self._selector.register(output.descriptor, selectors.EVENT_READ, output)

    def _finish(self, output: RankOutput, result: "Future[Tuple[str, ...]]") -> None:
        for _ in range(1024):  # a pipe holds far less; bounded, for a child may go on writing
            if not self._read(output):
                break
        self._flush_partial(output)
        result.set_result(tuple(output.tail))

    def _read(self, output: RankOutput) -> bool:
        """Take one piece; False when there is none now."""
        if output.ended:
            return False
        try:
            data = os.read(output.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end(output)
            return False
        self._pass_on(output, data)
        return True

    def _end(self, output: RankOutput) -> None:
        if output.ended:
            return
        output.ended = True
        self._flush_partial(output)
        self._open.discard(output)
        self._selector.unregister(output.descriptor)
        os.close(output.descriptor)
        output.log.close()

    def _pass_on(self, output: RankOutput, data: bytes) -> None:
        self._write_log(output, data)
        *lines, output.partial = (output.partial + data).split(b"\n")
        self._show(output, lines)
        if len(output.partial) > PARTIAL_BYTES:
            self._flush_partial(output)

    def _flush_partial(self, output: RankOutput) -> None:
        if output.partial:
            self._show(output, [output.partial])
            output.partial = b""

    def _show(self, output: RankOutput, lines: "list[bytes]") -> None:
        if not lines:
            return
        for line in lines[-TAIL_LINES:]:
            output.tail.append(line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r"))
        self._outlet.put(b"".join(output.prefix + line + b"\n" for line in lines))

    def _write_log(self, output: RankOutput, data: bytes) -> None:
        """Best effort: an error is told once for each rank, and tried again later."""
        if time.monotonic() < output.retry_log_at:
            return
        try:
            output.log.write(data)
        except OSError as error:
            output.retry_log_at = time.monotonic() + _RETRY_LOG_SECONDS
            if not output.warned:
                output.warned = True
                self._warn(
                    "log %s can't be written: %s; training goes on" % (output.log.path, error.strerror)
                )
