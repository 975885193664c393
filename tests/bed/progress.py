"""One line on stderr that says how far a build is: rewritten on a terminal, repeated seldom elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

TERMINAL_SECONDS = 0.5
LOG_SECONDS = 20.0


class Progress:
    """`title: what was said last, 3:20`, also while nothing new is said: silence looks like a hang."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        self._stream = stream or sys.stderr
        self._said = "starting"
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="progress", daemon=True)

    def say(self, what: str) -> None:
        """Shown at the next turn."""
        self._said = what

    def __enter__(self) -> Progress:
        self._show()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.say("done" if error is None else "stopped")
        self._show()
        if self._stream.isatty():
            print(file=self._stream, flush=True)

    def _repeat(self) -> None:
        while not self._ended.wait(TERMINAL_SECONDS if self._stream.isatty() else LOG_SECONDS):
            self._show()

    def _show(self) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        text = f"bed: {self._title}: {self._said}, {minutes}:{seconds:02}"
        if self._stream.isatty():
            print(f"\r\x1b[2K{text}", end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)
