"""Paths in the records of a run directory that lead into it.

``job.json`` and ``status.json`` say where the checkpoints are. A place in the run directory, as the default
one is, is written relative to it, so that a directory that was copied, renamed or moved has its own; any
other place is written as it is, and stays the same place. Records of layout 1 hold absolute paths alone: in
these a place in the directory where the run's workers once were means the same place in that of today.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resumable_operator.cluster.local_files import RunFiles, read_hint
from resumable_training.contract.manifest import STORE_FILE

LAYOUT = 2  # of job.json and status.json
_PATHS = (("spec", "checkpoint", "directory", "path"), ("status", "store"))


def recorded(plain: dict[str, Any], files: RunFiles) -> dict[str, Any]:
    """What is written for ``plain``, the content of ``job.json`` or ``status.json``."""
    return {**_changed(plain, lambda path: _relative(path, files.root)), "layout": LAYOUT}


def localized(plain: Any, files: RunFiles) -> Any:
    """What was written, with paths that lead to where the run directory is now.

    Damaged content comes out as it is: whoever reads it finds that out.
    """
    if not isinstance(plain, dict):
        return plain
    old = plain.get("layout") != LAYOUT
    return _changed(plain, lambda path: _here(path, files, old))


def _changed(plain: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    for keys in _PATHS:
        plain = _replaced(plain, keys, change)
    return plain


def _replaced(plain: Any, keys: tuple[str, ...], change: Callable[[str], str]) -> Any:
    """A copy of ``plain`` in which the text at ``keys``, if there is one that is a path, is another."""
    if not keys:
        return change(plain) if isinstance(plain, str) and plain and "://" not in plain else plain
    if not isinstance(plain, dict) or keys[0] not in plain:
        return plain
    return {**plain, keys[0]: _replaced(plain[keys[0]], keys[1:], change)}


def _relative(path: str, root: Path) -> str:
    inside = _inside(path, root)
    return path if inside is None else str(inside)


def _here(path: str, files: RunFiles, old: bool) -> str:
    if not Path(path).is_absolute():
        return str(files.root / path)
    if not old:
        return path
    former = list(_former_places(files))
    for root in (files.root, *former):
        inside = _inside(path, root)
        if inside is not None:
            return str(files.root / inside)
    own = files.checkpoints
    unknown = not former and Path(path).name == own.name  # its workers' files were not copied with it
    return str(own) if unknown and (own / STORE_FILE).is_file() else path


def _former_places(files: RunFiles) -> Iterator[Path]:
    """Where the run directory was when its workers started, as they wrote it down."""
    for spec in sorted(files.workers.glob("*/spec.json")):
        scratch = read_hint(spec).get("directory")
        if isinstance(scratch, str) and scratch:
            yield Path(scratch).parent.parent


def _inside(path: str, root: Path) -> Path | None:
    """``path`` relative to ``root``, if it leads into it. Its last part may be a link to another place."""
    whole = Path(path)
    if ".." in whole.parts:
        whole = Path(os.path.realpath(whole))
    place, above = Path(os.path.realpath(whole.parent)) / whole.name, os.path.realpath(root)
    return place.relative_to(above) if place.is_relative_to(above) else None
