"""Checkpoints in a directory of this machine, as ``rtj checkpoints`` sees them. Needs no torch."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.source import Checked, Listing
from resumable_operator.errors import RetryableError
from resumable_training.checkpoint.errors import CheckpointError
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.verify import verify_checkpoint
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

FOREIGN_DEPTH = 3  # directories below DIR that are searched for checkpoints of other programs


@dataclass(frozen=True)
class Target:
    """One complete checkpoint to verify. ``foreign``: another program's, without our manifest."""

    store: LocalStore
    name: str
    step: int | None
    foreign: bool


class DirectoryStore:
    """``source.CheckpointSource`` of a store, a run directory, or another program's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def title(self) -> str:
        return str(store_root(self._directory))

    def listing(self) -> Listing:
        root = store_root(self._directory)
        if (root / MARKER_FILE).is_file():
            raise UsageProblem(
                f"{root} is one checkpoint: give the directory that holds it, {root.resolve().parent}"
            )
        with _store_errors():
            ours = list_checkpoints(LocalStore(root), time.time())
        return Listing(tuple(ours), tuple(foreign_names(root)))

    def verify(self, step: int | None, tell: Callable[[Checked], None]) -> list[Checked]:
        results = []
        with _store_errors():
            for target in targets(self._directory, step):
                verdict = verify_checkpoint(target.store, target.name, foreign=target.foreign)
                results.append(Checked(target.name, target.step, target.foreign, verdict))
                tell(results[-1])
        return results


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
    """Directories below ``root`` that another program's DCP made, relative and sorted."""
    patterns = ["/".join(["*"] * depth + [MARKER_FILE]) for depth in range(1, FOREIGN_DEPTH + 1)]
    found = (path.parent.relative_to(root) for pattern in patterns for path in root.glob(pattern))
    others = [str(path) for path in found if parse_checkpoint_name(path.parts[0]) is None]
    return sorted(others, key=_by_numbers)


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """step-80 before step-400: runs of digits are compared as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def targets(directory: Path, step: int | None) -> list[Target]:
    """The complete checkpoints that DIR means, newest first; with ``step`` only those of it.

    Raises:
        UsageProblem: there is none.
    """
    root = store_root(directory)
    found = [_single(root)] if (root / MARKER_FILE).is_file() else _all_below(root)
    if not found:
        raise UsageProblem(f"{root} holds no complete checkpoint")
    chosen = [target for target in found if step is None or target.step == step]
    if not chosen:
        steps = sorted({target.step for target in found if target.step is not None})
        raise UsageProblem(f"{root} holds no complete checkpoint of step {step}; it has steps {steps}")
    return chosen


def _single(root: Path) -> Target:
    parsed = parse_checkpoint_name(root.resolve().name)
    store = LocalStore(root.resolve().parent)
    return Target(store, root.resolve().name, parsed[0] if parsed else None, foreign=parsed is None)


def _all_below(root: Path) -> list[Target]:
    store = LocalStore(root)
    ours = [info for info in list_checkpoints(store, time.time()) if info.complete]
    return [Target(store, info.name, info.step, foreign=False) for info in ours] + [
        Target(store, name, None, foreign=True) for name in foreign_names(root)
    ]


@contextmanager
def _store_errors() -> Iterator[None]:
    """What the store can't tell now is trouble of the infrastructure, in the words of this package."""
    try:
        yield
    except CheckpointError as error:
        raise RetryableError(str(error)) from error
