"""Where the commands print to."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, Any

import click
from rich.console import Console

LONGEST_WORD = 500
PIPED_WIDTH = 120  # rich would take 80, and fold tables that no terminal limits


def printable(text: str) -> str:
    """What others have written (a name, a key) without what would steer a terminal, and not endless."""
    shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:LONGEST_WORD])
    return shown + ("..." if len(text) > LONGEST_WORD else "")


def warning(text: str) -> None:
    """On standard error, so that it is no part of what is piped."""
    click.echo(f"warning: {text}", err=True)


class LastingOutput:
    """A text stream that may go away (a closed terminal, the end of ``| head``) without an error.

    For a command whose work matters more than its output: what is written afterwards is lost.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """All of it, or nothing when nobody can read it any more."""
        with self._unless_gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unless_gone():
            self._stream.flush()

    @contextlib.contextmanager
    def _unless_gone(self) -> Any:
        try:
            yield
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


def make_console(lasting: bool = False) -> Console:
    """Standard output; as wide as the terminal, or wide enough for every table when it is not one.

    Args:
        lasting: go on without it when it is closed.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # what ranks print need not fit the terminal
    file: Any = LastingOutput(sys.stdout) if lasting else None
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console
