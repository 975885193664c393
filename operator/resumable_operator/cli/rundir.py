"""Reads a run directory: what ``rtj run`` and its workers leave in files. Never writes.

Everything here may be read while the run goes on, after it was killed, or after a disk was full: half-written
lines are skipped and counted, missing files are told apart from wrong directories.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.jsonlines import raw_lines, understood
from resumable_operator.cli.run_history import HistoryEvent, Lines, read_history
from resumable_operator.cluster.local_files import RunFiles, is_live
from resumable_operator.cluster.local_paths import localized
from resumable_operator.model import JobSpec, JobStatus, parse_spec
from resumable_training.contract.codec import plain_from_json
from resumable_training.contract.manifest import MARKER_FILE, STORE_FILE

_ATTEMPT = re.compile(r"attempt-(\d+)")
_RANK = re.compile(r"rank-(\d+)\.log")


@dataclass(frozen=True)
class JobFile:
    """``job.json``."""

    namespace: str
    name: str
    uid: str
    created: float
    spec: dict[str, Any]


@dataclass(frozen=True)
class Notice:
    """A line of ``events.jsonl``: something that people were told."""

    at: float
    kind: str
    reason: str
    message: str


class RunDir:
    """One run directory.

    Raises:
        UsageProblem: ``path`` is not a run directory; the message says what is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RunFiles(path)
        if not path.is_dir():
            hint = meant_instead(path) or "; give the run directory (rtj run --dir)"
            raise UsageProblem(f"{path}: no such directory{hint}")
        if not is_run(path):
            raise UsageProblem(f"{path} is not a run directory: it has no job.json{_nearby(path)}")

    def job(self) -> JobFile:
        """The job as it was submitted; its checkpoints are where the run directory is now."""
        plain = self._read(self.files.job)
        try:
            return JobFile(
                namespace=str(plain["namespace"]),
                name=str(plain["name"]),
                uid=str(plain["uid"]),
                created=float(plain.get("created", 0.0)),
                spec=dict(plain["spec"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageProblem(f"{self.files.job} is not a job of rtj: {error!r}") from error

    def spec(self) -> JobSpec:
        """The validated spec."""
        return parse_spec(self.job().spec)

    def status(self) -> JobStatus | None:
        """The newest status written; None while there is none."""
        path = self.files.status
        if not path.exists():
            return None
        try:
            return JobStatus.model_validate(self._read(path)["status"])
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            where = ".".join(map(str, wrong["loc"])) or "status"
            raise UsageProblem(f"{path} does not hold a status: {where}: {wrong['msg']}") from error
        except (KeyError, TypeError) as error:
            raise UsageProblem(f"{path} does not hold a status") from error

    def written_status(self) -> JobStatus:
        """The newest status written.

        Raises:
            UsageProblem: none was written yet.
        """
        status = self.status()
        if status is None:
            raise UsageProblem(f"{self.path} has no status yet: its `rtj run` has only just begun")
        return status

    def history(self) -> Lines[HistoryEvent]:
        """Agent events that were folded, oldest first; of progress what a report needs."""
        return read_history(self.files.history)

    def notices(self) -> Lines[Notice]:
        """All that people were told, oldest first."""
        told = [understood(line, _notice) for line in raw_lines(self.files.events)]
        items = tuple(notice for notice in told if notice is not None)
        return Lines(items, len(told) - len(items))

    def owner(self) -> int | None:
        """Process id of the ``rtj run`` that holds this directory now; None when nobody does."""
        try:
            pid, inode = int(self.files.lock.read_text().split()[0]), self.files.lock.stat().st_ino
        except (OSError, ValueError, IndexError):
            return None
        return pid if self._is_held(pid, inode) else None

    def checkpoints(self) -> Path:
        """Root of this run's checkpoint store."""
        storage = self.spec().checkpoint.directory
        return Path(storage.path) if storage else self.files.checkpoints

    def attempts(self) -> tuple[int, ...]:
        """Attempts that left logs, ascending."""
        return _numbers(self.files.logs, _ATTEMPT)

    def ranks(self, attempt: int) -> tuple[int, ...]:
        """Ranks of an attempt that left logs, ascending."""
        return _numbers(self.log(attempt, 0).parent, _RANK)

    def log(self, attempt: int, rank: int) -> Path:
        """Raw output of one rank; it need not exist."""
        return self.files.logs / f"attempt-{attempt:05d}" / f"rank-{rank:05d}.log"

    def _read(self, path: Path) -> Any:
        return localized(_read_json(path), RunFiles(self.path.absolute()))

    def _is_held(self, pid: int, inode: int) -> bool:
        """Whether ``pid`` holds a flock on that inode.

        Asked of the kernel's table: trying the lock, even for an instant, could fail a starting `rtj run`.
        """
        try:
            held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        except OSError:
            return is_live(self.files)
        return any(
            words[1] == "FLOCK" and words[4] == str(pid) and words[5].endswith(f":{inode}")
            for words in held
            if len(words) >= 6
        )


def is_run(path: Path) -> bool:
    """Whether ``path`` looks like a run directory."""
    return (path / "job.json").is_file()


def moment(status: JobStatus, owned: bool, now: float) -> float:
    """The time, in seconds, up to which ``status`` speaks.

    A finished job's clock has stopped; so has that of a run that nobody goes on with, at its last word.
    """
    if status.finished_at is not None:
        return status.finished_at
    settled = status.ledger.settled_at / 1000
    return max(now, settled) if owned else settled  # the wall clock may have been set back


def runs_below(path: Path) -> list[Path]:
    """Run directories in it, and in directories in it."""
    return sorted(found.parent for pattern in ("*/job.json", "*/*/job.json") for found in path.glob(pattern))


def did_you_mean(places: Sequence[Path]) -> str:
    """The end of a message about a wrong path; empty where there is nothing to offer."""
    if not places:
        return ""
    return "; did you mean " + " or ".join(str(place) for place in places[:3]) + "?"


def meant_instead(path: Path) -> str:
    """Runs and checkpoint stores whose name is much like that of ``path``, which is not there; or ""."""
    try:
        beside = {place.name: place for place in path.parent.iterdir() if _is_ours(place)}
    except OSError:
        return ""
    return did_you_mean([beside[name] for name in get_close_matches(path.name, beside)])


def _is_ours(place: Path) -> bool:
    return is_run(place) or (place / STORE_FILE).is_file() or (place / MARKER_FILE).is_file()


def _nearby(path: Path) -> str:
    above = next((each for each in path.absolute().parents[:2] if is_run(each)), None)
    runs = runs_below(path) if above is None else [above]
    return did_you_mean(runs) or "; `rtj run --dir RUN ...` makes one"


def _read_json(path: Path) -> Any:
    try:
        return plain_from_json(path.read_bytes())
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageProblem(f"{path} is damaged: {error}") from error


def _notice(plain: Any) -> Notice:
    return Notice(float(plain["at"]), str(plain["kind"]), str(plain["reason"]), str(plain["message"]))


def _numbers(directory: Path, pattern: re.Pattern[str]) -> tuple[int, ...]:
    if not directory.is_dir():
        return ()
    found = (pattern.fullmatch(entry.name) for entry in directory.iterdir())
    return tuple(sorted(int(match[1]) for match in found if match))
