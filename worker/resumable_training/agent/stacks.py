"""Stacks of ranks that can still answer: SIGUSR1 to the library's faulthandler, which writes to a file."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Dict, List

from resumable_training.agent import reap
from resumable_training.agent.rank import Rank

WAIT_SECONDS = 0.3
LIMIT_BYTES = 16384  # of one rank's stacks
_QUIET_SECONDS = 0.05  # no growth for so long: it has answered


async def collect(ranks: List[Rank]) -> Dict[int, str]:
    """Stacks by rank; ranks that do not answer within ``WAIT_SECONDS`` are missing.

    Only connected ranks are asked: before hello there is no handler, and SIGUSR1 would kill. A stopped one
    could not answer.
    """
    asked = [rank for rank in ranks if rank.alive and rank.speaker and rank.stopped_since is None]
    before = {rank.number: _size(rank.stacks_path) for rank in asked}
    for rank in asked:
        reap.send(rank.pid, signal.SIGUSR1)
    await _settled(asked)
    texts = {rank.number: _read_from(rank.stacks_path, before[rank.number]) for rank in asked}
    return {number: text for number, text in texts.items() if text}


async def _settled(asked: List[Rank]) -> None:
    """Wait until the files have grown and stopped growing, at most ``WAIT_SECONDS``."""
    began = quiet_since = time.monotonic()
    first = sizes = [_size(rank.stacks_path) for rank in asked]
    while asked and time.monotonic() - began < WAIT_SECONDS:
        await asyncio.sleep(0.01)
        now, current = time.monotonic(), [_size(rank.stacks_path) for rank in asked]
        if current != sizes:
            sizes, quiet_since = current, now
        if all(new > old for new, old in zip(sizes, first)) and now - quiet_since > _QUIET_SECONDS:
            return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_from(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
