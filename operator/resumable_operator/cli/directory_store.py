"""Checkpoints in a directory of this machine, as ``rtj checkpoints`` sees them. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, did_you_mean, is_run, runs_below
from resumable_operator.cli.store_source import Keeping, Opened, StoreSource, store_errors
from resumable_operator.errors import RetryableError
from resumable_operator.model import JobSpec
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.wanted import is_own, without_serial
from resumable_training.contract.manifest import MARKER_FILE, STORE_FILE, parse_checkpoint_name

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
                if not is_run(self._directory):
                    _require_store(self._directory)
                yield Opened(LocalStore(root), lambda: foreign_names(root))

    def keeping(self) -> Keeping:
        return keeping_of(RunDir(self._directory).spec()) if is_run(self._directory) else Keeping()


def keeping_of(spec: JobSpec) -> Keeping:
    """What a job's spec says about retention."""
    checkpoint = spec.checkpoint
    wish = without_serial(checkpoint.resume_from) if checkpoint.resume_from else ""
    name = wish.rpartition("/")[2]
    protected = (name,) if is_own(name) else ()
    return Keeping(checkpoint.keep, checkpoint.keep_every_steps, protected)


def store_root(directory: Path) -> Path:
    """The directory that holds checkpoints: DIR itself, or that of a run.

    Raises:
        UsageProblem: there is no such directory.
        RetryableError: there must be, and it is not seen.
    """
    if not is_run(directory):
        if not directory.is_dir():
            raise UsageProblem(f"{directory}: no such directory")
        return directory
    run = RunDir(directory)
    root, status = run.checkpoints(), run.status()
    known = status.checkpoint if status else None
    if not root.is_dir():
        if known is None:
            raise UsageProblem(f"{root}: this run has made no checkpoint")
        raise RetryableError(
            f"{root} is not there, and this run has saved {known.name}: is the volume mounted?"
        )
    return root


def _require_store(directory: Path) -> None:
    """That it holds checkpoints itself, or nothing of ours.

    Raises:
        UsageProblem: what it holds are runs, stores or directories of copies; names them.
    """
    own = own_places(directory)
    if own and not _is_store(directory) and not foreign_names(directory):
        what = "is neither a checkpoint store nor a run directory"
        raise UsageProblem(f"{directory} {what}{did_you_mean(own)}")


def own_places(root: Path) -> list[Path]:
    """Runs, stores and directories of copies in ``root``, and in directories in it."""
    if _is_store(root):  # thousands of checkpoints need not be looked into
        return []
    runs = runs_below(root)
    found = {
        path.parent for pattern in (f"*/{STORE_FILE}", f"*/*/{STORE_FILE}") for path in root.glob(pattern)
    }
    markers = (path for depth in ("*", "*/*") for path in root.glob(f"{depth}/step-*/{MARKER_FILE}"))
    found |= {path.parent.parent for path in markers if parse_checkpoint_name(path.parent.name)}
    return [*runs, *sorted(place for place in found if not any(run in place.parents for run in runs))]


def _is_store(directory: Path) -> bool:
    """Of a job, or of copies."""
    if (directory / STORE_FILE).is_file():
        return True
    return any(parse_checkpoint_name(path.name) is not None for path in directory.glob("step-*"))


def _is_own(root: Path, name: Path) -> bool:
    """Whether what lies there is our own checkpoint, or belongs to a run or a store below ``root``."""
    if any(parse_checkpoint_name(part) is not None for part in name.parts):
        return True
    above = [root / each for each in name.parents if each != Path(".")]
    return any(is_run(each) or (each / STORE_FILE).is_file() for each in above)


def foreign_names(root: Path) -> list[str]:
    """Directories below ``root`` that another program's DCP made, relative, newest first.

    By the time of the marker, and at equal times by name: as a job that resumes from them looks at them.
    """
    patterns = ["/".join(["*"] * depth + [MARKER_FILE]) for depth in range(1, FOREIGN_DEPTH + 1)]
    found = []
    for marker in (path for pattern in patterns for path in root.glob(pattern)):
        name = marker.parent.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts)  # snapshots of a file server
        if not hidden and not _is_own(root, name):
            with suppress(FileNotFoundError):  # it is being deleted
                found.append((marker.stat().st_mtime, name.name, str(name)))
    return [name for _, _, name in sorted(found, reverse=True)]
