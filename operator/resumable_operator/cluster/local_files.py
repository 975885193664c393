"""The run directory of ``rtj run``: what is where, and how its files survive a writer that is killed.

::

    RUN/job.json status.json events.jsonl history.jsonl faults.jsonl key lock cluster.json
    RUN/logs/attempt-00001/rank-00000.log    RUN/workers/<worker>/    RUN/checkpoints/    RUN/traces/
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resumable_operator.errors import FatalError, UserError

KEY_BYTES = 32
JOB_FILES = (
    "job.json",
    "status.json",
    "events.jsonl",
    "history.jsonl",
    "faults.jsonl",
    "logs",
    "workers",
    "checkpoints",
    "traces",
)


@dataclass(frozen=True)
class RunFiles:
    """Paths below one run directory."""

    root: Path

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def history(self) -> Path:
        return self.root / "history.jsonl"

    @property
    def faults(self) -> Path:
        return self.root / "faults.jsonl"

    @property
    def key(self) -> Path:
        return self.root / "key"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def cluster(self) -> Path:
        return self.root / "cluster.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def workers(self) -> Path:
        return self.root / "workers"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def traces(self) -> Path:
        return self.root / "traces"

    def worker(self, name: str) -> Path:
        return self.workers / name

    def log(self, attempt: int, rank: int) -> Path:
        """Raw output of one rank; it need not exist."""
        return self.logs / f"attempt-{attempt:05d}" / f"rank-{rank:05d}.log"

    def set_aside(self) -> Path | None:
        """Move the job that is here to ``old-<n>`` below; None when there is none. Needs the lock."""
        if not self.job.exists():
            return None
        names = (f"old-{number}" for number in itertools.count(1))
        aside = next(self.root / name for name in names if not (self.root / name).exists())
        aside.mkdir()
        for name in JOB_FILES:
            if (self.root / name).exists():
                os.replace(self.root / name, aside / name)
        self.workers.mkdir()
        return aside


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` in one act: readers, and survivors of a power cut, see the old content or the new.

    Raises:
        OSError: it can't be written; the old content is still there.
    """
    replace_text(path, json.dumps(value, indent=1))


def replace_text(path: Path, text: str) -> None:
    """The same for text. Only the owner can read it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a rename may reach the disk before the content that it names
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None when the file does not exist.

    Raises:
        FatalError: it is there but holds no JSON object.
    """
    try:
        plain = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise FatalError(f"{path} is damaged ({error}); start over with --fresh") from error
    if not isinstance(plain, dict):
        raise FatalError(f"{path} is damaged (it holds no object); start over with --fresh")
    return plain


def read_hint(path: Path) -> dict[str, Any]:
    """What ``path`` holds if it is there and whole; for what is of use then, and not missed otherwise."""
    try:
        return read_json(path) or {}
    except (FatalError, OSError):
        return {}


def left_behind(files: RunFiles) -> dict[str, Any]:
    """``cluster.json`` of an earlier run that was killed; empty where it came with a copy of a run directory.

    Its processes and its socket are those of the original, which may train.
    """
    plain = read_hint(files.cluster)
    return plain if plain.get("directory", directory_id(files.root)) == directory_id(files.root) else {}


def directory_id(root: Path) -> str:
    """What a directory keeps when it is renamed, and a copy of it has not."""
    found = root.stat()
    return f"{found.st_dev}:{found.st_ino}"


def append_lines(path: Path, values: list[dict[str, Any]]) -> None:
    """Add JSON lines in one write: a reader that follows the file sees whole lines."""
    text = "".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values)
    with path.open("a") as file:
        file.write(text)


def load_or_make_key(path: Path) -> bytes:
    """The key that signs agent calls; made when there is none, or none that can be used.

    No agent of an earlier run is left to know the old one.
    """
    try:
        key = bytes.fromhex(path.read_text().split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        key = b""
    if len(key) < KEY_BYTES:
        key = secrets.token_bytes(KEY_BYTES)
        replace_text(path, key.hex() + "\n")
    path.chmod(0o600)
    return key


class RunLock:
    """One ``rtj run`` at a time owns a run directory; the kernel lets go when its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Take it.

        Raises:
            UserError: another process has it; the message says which.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock_patiently(descriptor):
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise UserError(
                f"{self._path.parent} is in use by another `rtj run` (process {holder}); "
                "stop that one, or give this one another --dir"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def holding_store(directory: Path) -> Iterator[None]:
    """One ``rtj run`` at a time trains into a checkpoint directory of this machine.

    Two of the same name would take the store from each other at each start of an attempt. Where a file system
    locks no directories nobody is kept out: the store's own rules see to it that nothing is mixed up.

    Raises:
        UserError: another one does.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"another `rtj run` saves its checkpoints in {directory}: stop that one, or give this one"
                " another --checkpoint-dir"
            ) from error
        except OSError:
            pass  # NFS, as a rule
        yield
    finally:
        os.close(descriptor)


def _lock_patiently(descriptor: int, tries: int = 10) -> bool:
    """Take the lock unless it is held for good: ``is_live`` of another process holds it for an instant."""
    for _ in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def is_live(files: RunFiles) -> bool:
    """Whether an ``rtj run`` owns the directory right now."""
    try:
        descriptor = os.open(files.lock, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
