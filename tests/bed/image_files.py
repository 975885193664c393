"""What all images of the bed are made of: files of this machine that containers must see and be able to read.

Used by the kubelets, which keep them visible, and by install.py, which says what pods can't read.
"""

from __future__ import annotations

import importlib.util
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from bed.containers_root import HIDDEN, way

ROOT = Path(__file__).parents[2]
PACKAGES = ("resumable_operator", "resumable_training")


def made_of() -> list[Path]:
    """The checkout, the virtual environment, its interpreter, and where the packages are imported from."""
    return [ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable), *_packages()]


def unreadable() -> Path | None:
    """The first path on the way to the interpreter or the packages that only its owner may read.

    None: there is none. Pods are no root. What lies below HIDDEN counts from the kept path on, as all above
    that is made anew in a container.
    """
    kept = [Path(way(path)[0]) for path in made_of()]
    files = [Path(way(path)[0]) for path in (Path(sys.executable), *(p / "__init__.py" for p in _packages()))]
    return first_closed(files, kept)


def first_closed(files: Iterable[Path], kept: Iterable[Path]) -> Path | None:
    """The first folder or file on the way to `files`, real paths, that others may not enter or read."""
    known = set(kept)
    for file in files:
        steps = [file, *file.parents]
        if any(file.is_relative_to(hidden) for hidden in HIDDEN):
            outermost = max((n for n, step in enumerate(steps) if step in known), default=0)
            steps = steps[: outermost + 1]
        for step in reversed(steps):
            needed = stat.S_IXOTH if step.is_dir() else stat.S_IROTH
            if not step.stat().st_mode & needed:
                return step
    return None


def _packages() -> list[Path]:
    found = (importlib.util.find_spec(name) for name in PACKAGES)
    return [Path(spec.origin).parent for spec in found if spec is not None and spec.origin is not None]
