"""How far a long reading or copying is: on a terminal as a bar, in a cluster's pod as lines in its log.

Elsewhere nothing is shown. Whoever started the pod reads the newest line from time to time.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from resumable_operator.cli.units import byte_size

LINES = "RTJ_PROGRESS_LINES"  # a variable: its value is the number of seconds between two lines
_LINE = re.compile(r"progress ([0-9]+) ([0-9]+) (.+)")


@contextmanager
def bytes_bar(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Call what it gives with each number of bytes that is done; from any thread.

    On standard error, so that results can be piped.
    """
    if LINES in os.environ:
        yield _Lines(what, total, float(os.environ[LINES])).advance
        return
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
        redirect_stdout=sys.stdout.isatty(),  # results go above the bar; into a pipe they go as they are
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Says it in lines."""

    def __init__(self, what: str, total: int, every_seconds: float) -> None:
        self._what, self._total, self._every = what, total, every_seconds
        self._done, self._said = 0, float("-inf")
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if time.monotonic() - self._said >= self._every:
                self._said = time.monotonic()
                print(f"progress {self._done} {self._total} {self._what}", file=sys.stderr, flush=True)


def read_progress(line: str) -> str:
    """Such a line, for people; empty: it is none."""
    match = _LINE.fullmatch(line)
    return f"{match[3]}, {byte_size(int(match[1]))} of {byte_size(int(match[2]))}" if match else ""
