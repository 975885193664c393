"""The output of ranks in a run directory, of any attempt, also while it grows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.lines import is_over, listed, prefix
from resumable_operator.cli.rundir import RunDir
from resumable_operator.cli.source import Wanted

POLL_SECONDS = 0.2
CHUNK_BYTES = 1 << 20


def show(run: RunDir, wanted: Wanted, output: IO[bytes]) -> None:
    """Write what the ranks of one attempt have printed, rank after rank."""
    attempt = _existing(run, wanted.attempt)
    ranks = run.ranks(attempt)
    if wanted.rank is not None and wanted.rank not in ranks:
        raise UsageProblem(
            f"rank {wanted.rank} left no log in attempt {attempt}; there are those of {listed(ranks)}"
        )
    tails = _Tails(run, wanted.rank, output)
    tails.copy(attempt)
    tails.finish()


def follow(run: RunDir, wanted: Wanted, output: IO[bytes]) -> None:
    """Copy what is there and what comes. Reads once more after the end, so that no last line is lost."""
    tails = _Tails(run, wanted.rank, output)
    first = wanted.attempt if wanted.attempt is not None else max(run.attempts(), default=1)
    while True:
        over = _is_over(run, wanted.attempt)
        for number in run.attempts():
            if number == first or (wanted.attempt is None and number > first):
                tails.copy(number)
        output.flush()
        if over:
            break
        time.sleep(POLL_SECONDS)
    tails.finish()


def _existing(run: RunDir, attempt: int | None) -> int:
    attempts = run.attempts()
    if not attempts:
        raise UsageProblem(f"{run.path} has no logs yet: no rank was started")
    if attempt is not None and attempt not in attempts:
        raise UsageProblem(f"attempt {attempt} left no logs; there are those of {listed(attempts)}")
    return attempt if attempt is not None else attempts[-1]


def _is_over(run: RunDir, attempt: int | None) -> bool:
    status = run.status()
    if status is None or run.owner() is None:
        return run.owner() is None
    return is_over(status, attempt)


class _Tails:
    """Positions in the logs of many ranks; copies what is new, by whole lines when there are several."""

    def __init__(self, run: RunDir, rank: int | None, output: IO[bytes]) -> None:
        self._run = run
        self._rank = rank
        self._output = output
        self._read: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}

    def copy(self, attempt: int) -> None:
        """Write what has come since the last call."""
        for rank in self._run.ranks(attempt):
            if self._rank in (None, rank):
                self._copy_file(self._run.log(attempt, rank))

    def finish(self) -> None:
        """Write last lines that have no newline."""
        for path, rest in self._partial.items():
            if rest:
                self._output.write(self._prefix(path) + rest + b"\n")
        self._partial.clear()
        self._output.flush()

    def _copy_file(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            while fresh := file.read(CHUNK_BYTES):
                self._write(path, fresh)
            self._read[path] = file.tell()

    def _write(self, path: Path, fresh: bytes) -> None:
        if self._rank is not None:
            self._output.write(fresh)
            return
        *lines, rest = (self._partial.get(path, b"") + fresh).split(b"\n")
        self._partial[path] = rest
        for line in lines:
            self._output.write(self._prefix(path) + line + b"\n")

    @staticmethod
    def _prefix(path: Path) -> bytes:
        attempt, rank = path.parent.name.removeprefix("attempt-"), path.stem.removeprefix("rank-")
        return prefix(int(attempt), int(rank))
