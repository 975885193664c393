"""Puts the recovery benchmark's newest tables and picture into docs/recovery-time.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import recovery_plot
import recovery_table
from measured_page import DOCS, machine, replace_measured
from recovery_table import Results

PAGE, PICTURE = DOCS / "recovery-time.md", DOCS / "recovery-time.svg"


def write(results: Results, notes: Sequence[str]) -> Path:
    """Replace the measured part of the page, and the picture; the page's path."""
    replace_measured(PAGE, section(results, notes))
    PICTURE.write_text(recovery_plot.draw(results))
    return PAGE


def section(results: Results, notes: Sequence[str]) -> str:
    """What was measured, in Markdown."""
    tables = "\n".join(recovery_table.tables(results)).strip("\n")
    aims = "\n".join(str(aim) for aim in recovery_table.aims(results))
    told = "\n".join(f"- {note}" for note in notes)
    return (
        f"On {machine()}; {_runs(results)} each, fewer where a peer waits most of a minute. Seconds.\n\n"
        f"![Every run, by scenario](recovery-time.svg)\n\n```\n{tables}\n```\n\n{told}\n\n"
        f"Aims:\n\n```\n{aims}\n```"
    )


def _runs(results: Results) -> str:
    """How often contenders were struck, in words; tables may be of different runs of the benchmark."""
    tables = [sides for scenarios in results.values() for sides in scenarios.values()]
    most = [max(map(len, sides.values()), default=0) for sides in tables]
    least, largest = min(most, default=0), max(most, default=0)
    return f"{largest} runs" if least == largest else f"{least} to {largest} runs"
