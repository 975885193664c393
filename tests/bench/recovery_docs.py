"""Puts the recovery benchmark's newest tables and picture into docs/recovery-time.md."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import recovery_plot
import recovery_table
import torch
from recovery_table import Results

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "recovery-time.md", DOCS / "recovery-time.svg"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def write(results: Results, notes: Sequence[str], options: argparse.Namespace) -> Path:
    """Replace what is between the two marks of the page, and the picture; the page's path."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{section(results, notes, options.runs)}\n{END}{after}")
    PICTURE.write_text(recovery_plot.draw(results))
    return PAGE


def section(results: Results, notes: Sequence[str], runs: int) -> str:
    """What was measured, in Markdown."""
    machine = (
        f"{os.cpu_count()} cores, CPU and gloo, torch {torch.__version__}, Python {platform.python_version()}"
    )
    tables = "\n".join(recovery_table.tables(results)).strip("\n")
    aims = "\n".join(str(aim) for aim in recovery_table.aims(results))
    told = "\n".join(f"- {note}" for note in notes)
    return (
        f"On {machine}; {runs} runs each, fewer where a peer waits most of a minute. Seconds.\n\n"
        f"![Every run, by scenario](recovery-time.svg)\n\n```\n{tables}\n```\n\n{told}\n\n"
        f"Aims:\n\n```\n{aims}\n```"
    )
