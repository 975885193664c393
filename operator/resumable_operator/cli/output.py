"""Where the commands print to."""

from __future__ import annotations

import os

from rich.console import Console

PIPED_WIDTH = 120  # rich would take 80, and fold tables that no terminal limits


def make_console() -> Console:
    """Standard output; as wide as the terminal, or wide enough for every table when it is not one."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console
