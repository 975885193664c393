"""A page of docs/ with parts that benchmarks write: each between its two marks, and nowhere else."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def replace_measured(page: Path, text: str, part: str = "measured") -> None:
    """Put ``text`` between the marks of ``part``; all else stays.

    Raises:
        ValueError: the page has no such part.
    """
    begin, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page.name} has no part between {begin} and {end}: put the two marks into it")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def machine(found: Mapping[str, Any] | None = None) -> str:
    """What it was measured on, for people; ``found``: as it was noted then, else this machine."""
    if found is None:
        found = {"cpus": os.cpu_count(), "torch": version("torch"), "python": platform.python_version()}
    return f"{found['cpus']} cores, CPU and gloo, torch {found['torch']}, Python {found['python']}"
