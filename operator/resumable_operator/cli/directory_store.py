"""Checkpoints in a directory of this machine, as ``rtj checkpoints`` sees them. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.store_source import Keeping, Opened, StoreSource, store_errors
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.wanted import without_serial
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

FOREIGN_DEPTH = 3  # directories below DIR that are searched for checkpoints of other programs


class DirectoryStore(StoreSource):
    """Of a store, a run directory, another program's directory, or one checkpoint."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def title(self) -> str:
        return str(store_root(self._directory))

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        root = store_root(self._directory)
        with store_errors():
            if (root / MARKER_FILE).is_file():
                whole = root.resolve()
                yield Opened(LocalStore(whole.parent), list, whole.name)
            else:
                yield Opened(LocalStore(root), lambda: foreign_names(root))

    def keeping(self) -> Keeping:
        return keeping_of(RunDir(self._directory).spec()) if is_run(self._directory) else Keeping()


def keeping_of(spec: JobSpec) -> Keeping:
    """What a job's spec says about retention."""
    checkpoint = spec.checkpoint
    wish = without_serial(checkpoint.resume_from) if checkpoint.resume_from else ""
    protected = (wish.rpartition("/")[2],) if wish else ()
    return Keeping(checkpoint.keep, checkpoint.keep_every_steps, protected)


def store_root(directory: Path) -> Path:
    """The directory that holds checkpoints: DIR itself, or that of a run.

    Raises:
        UsageProblem: there is no such directory.
    """
    root = RunDir(directory).checkpoints() if is_run(directory) else directory
    if not root.is_dir():
        what = "this run has made no checkpoint" if root != directory else "no such directory"
        raise UsageProblem(f"{root}: {what}")
    return root


def foreign_names(root: Path) -> list[str]:
    """Directories below ``root`` that another program's DCP made, relative, newest first.

    By the time of the marker, and at equal times by name: as a job that resumes from them looks at them.
    """
    patterns = ["/".join(["*"] * depth + [MARKER_FILE]) for depth in range(1, FOREIGN_DEPTH + 1)]
    found = []
    for marker in (path for pattern in patterns for path in root.glob(pattern)):
        name = marker.parent.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts)  # snapshots of a file server
        if not hidden and parse_checkpoint_name(name.parts[0]) is None:
            with suppress(FileNotFoundError):  # it is being deleted
                found.append((marker.stat().st_mtime, name.name, str(name)))
    return [name for _, _, name in sorted(found, reverse=True)]
