"""A page of docs/ with a part that a benchmark writes: between its two marks, and nowhere else."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def replace_measured(page: Path, text: str) -> None:
    """Put ``text`` between the marks; all else stays."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def machine() -> str:
    """What it was measured on, for people."""
    return (
        f"{os.cpu_count()} cores, CPU and gloo, torch {version('torch')}, Python {platform.python_version()}"
    )
