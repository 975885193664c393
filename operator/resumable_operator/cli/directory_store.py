"""Checkpoints in a directory of this machine, as ``rtj checkpoints`` sees them. Needs no torch.

``bucket_store`` does the same for object storage, with what is common to both from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir, is_run
from resumable_operator.cli.source import Checked, Listing
from resumable_operator.errors import RetryableError
from resumable_training.checkpoint.errors import CheckpointError, CheckpointUserError
from resumable_training.checkpoint.listing import list_checkpoints
from resumable_training.checkpoint.local import LocalStore
from resumable_training.checkpoint.store import Store
from resumable_training.checkpoint.verify import OK, verify_checkpoint
from resumable_training.contract.manifest import MARKER_FILE, parse_checkpoint_name

FOREIGN_DEPTH = 3  # directories below DIR that are searched for checkpoints of other programs


@dataclass(frozen=True)
class Target:
    """One complete checkpoint to verify. ``foreign``: another program's, without our manifest."""

    store: Store
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
        return listing_of(LocalStore(root), lambda: foreign_names(root))

    def verify(self, step: int | None, tell: Callable[[Checked], None]) -> list[Checked]:
        return verify_all(lambda: targets(self._directory, step), tell)


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


def targets(directory: Path, step: int | None) -> list[Target]:
    """The complete checkpoints that DIR means, newest first; with ``step`` only those of it.

    Raises:
        UsageProblem: there is none.
    """
    root = store_root(directory)
    if (root / MARKER_FILE).is_file():
        found = [one_target(LocalStore(root.resolve().parent), root.resolve().name)]
    else:
        found = all_targets(LocalStore(root), foreign_names(root))
    return chosen(found, step, str(root))


# ---- common to all stores ------------------------------------------------------------------------------


def listing_of(store: Store, foreign: Callable[[], Iterable[str]]) -> Listing:
    """What a store holds, and which of other programs' checkpoints a job would be offered."""
    with store_errors():
        ours, others = tuple(list_checkpoints(store, time.time())), tuple(foreign())
        if any(info.resumable for info in ours):
            return Listing(ours, others)
        whole = (name for name in others if verify_checkpoint(store, name, foreign=True).outcome == OK)
        return Listing(ours, others, next(whole, None))


def one_target(store: Store, name: str) -> Target:
    """One complete checkpoint of that name."""
    parsed = parse_checkpoint_name(name)
    return Target(store, name, parsed[0] if parsed else None, foreign=parsed is None)


def all_targets(store: Store, foreign: Iterable[str]) -> list[Target]:
    """All complete checkpoints of ours, newest first, and those of other programs."""
    ours = [info for info in list_checkpoints(store, time.time()) if info.complete]
    return [Target(store, info.name, info.step, foreign=False) for info in ours] + [
        Target(store, name, None, foreign=True) for name in foreign
    ]


def chosen(found: list[Target], step: int | None, where: str) -> list[Target]:
    """Those of one step, or all (None).

    Raises:
        UsageProblem: there is none ``where`` they were looked for; names the steps that there are.
    """
    if not found:
        raise UsageProblem(f"{where} holds no complete checkpoint")
    those = [target for target in found if step is None or target.step == step]
    if not those:
        steps = sorted({target.step for target in found if target.step is not None})
        raise UsageProblem(f"{where} holds no complete checkpoint of step {step}; it has steps {steps}")
    return those


def verify_all(find: Callable[[], list[Target]], tell: Callable[[Checked], None]) -> list[Checked]:
    """Read every byte of what ``find`` finds; ``tell`` gets each result as soon as it is known."""
    results = []
    with store_errors():
        for target in find():
            verdict = verify_checkpoint(target.store, target.name, foreign=target.foreign)
            results.append(Checked(target.name, target.step, target.foreign, verdict))
            tell(results[-1])
    return results


@contextmanager
def store_errors() -> Iterator[None]:
    """The store's errors in the words of this package.

    Raises:
        UsageProblem: it can't be used as it was named, or not with what is installed here.
        RetryableError: it can't tell now.
    """
    try:
        yield
    except CheckpointUserError as error:
        raise UsageProblem(str(error)) from error
    except CheckpointError as error:
        raise RetryableError(str(error)) from error
