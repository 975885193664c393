"""``rtj logs``: the raw output of ranks, of any attempt, also while it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import click

from resumable_operator.cli.exitcodes import UsageProblem
from resumable_operator.cli.rundir import RunDir

POLL_SECONDS = 0.2
CHUNK_BYTES = 1 << 20


@click.command("logs")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--rank", type=click.IntRange(min=0), help="Only this rank. Default: all, each line with its rank."
)
@click.option("--attempt", type=click.IntRange(min=1), help="This attempt. Default: the newest.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the run stops or Ctrl-C; shows later attempts too."
)
def logs_command(run: Path, rank: int | None, attempt: int | None, follow: bool) -> None:
    """Show the output (stdout and stderr) of RUN's ranks.

    RUN is a run directory (`rtj run --dir RUN`). A single rank is shown byte for byte; of several, each line
    is led by its rank. With --attempt, --follow ends when that attempt is over.
    """
    directory = RunDir(run)
    output: IO[bytes] = sys.stdout.buffer
    try:
        if follow:
            _follow(directory, rank, attempt, output)
        else:
            _show(directory, rank, _existing(directory, attempt), output)
    except KeyboardInterrupt:
        return


def _existing(run: RunDir, attempt: int | None) -> int:
    attempts = run.attempts()
    if not attempts:
        raise UsageProblem(f"{run.path} has no logs yet: no rank was started")
    if attempt is not None and attempt not in attempts:
        raise UsageProblem(f"attempt {attempt} left no logs; there are those of {_listed(attempts)}")
    return attempt if attempt is not None else attempts[-1]


def _show(run: RunDir, rank: int | None, attempt: int, output: IO[bytes]) -> None:
    ranks = run.ranks(attempt)
    if rank is not None and rank not in ranks:
        raise UsageProblem(
            f"rank {rank} left no log in attempt {attempt}; there are those of {_listed(ranks)}"
        )
    tails = _Tails(run, rank, output)
    tails.copy(attempt)
    tails.finish()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers) or "none"


def _follow(run: RunDir, rank: int | None, attempt: int | None, output: IO[bytes]) -> None:
    """Copy what is there and what comes. Reads once more after the end, so that no last line is lost."""
    tails = _Tails(run, rank, output)
    first = attempt if attempt is not None else max(run.attempts(), default=1)
    while True:
        over = _is_over(run, attempt)
        for number in run.attempts():
            if number == first or (attempt is None and number > first):
                tails.copy(number)
        output.flush()
        if over:
            break
        time.sleep(POLL_SECONDS)
    tails.finish()


def _is_over(run: RunDir, attempt: int | None) -> bool:
    status = run.status()
    if status is None or run.owner() is None:
        return run.owner() is None
    if attempt is None:
        return status.phase in ("Succeeded", "Failed")
    return status.attempt.number > attempt or (
        status.attempt.number == attempt and status.attempt.state == "ended"
    )


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
        return f"[{int(attempt)}:{int(rank)}] ".encode()
