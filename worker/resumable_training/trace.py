"""Writes which samples a rank trained on, one line a step, when ``RESUMABLE_TRACE_DIR`` is set.

Tests and the demo prove with it that the final weights come from samples 0 .. N-1 in order, none skipped,
none twice. A line is written after the optimizer step, so what a killed rank had not finished is not in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

from resumable_training.data.position import Data
from resumable_training.data.split import StepPlan


class Trace:
    """Appends to ``<directory>/attempt-00001-rank-00000.jsonl``; flushed at every line.

    Raises:
        OSError: the directory or file can't be made.
    """

    def __init__(self, directory: str, attempt: int, rank: int) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        path = Path(directory) / f"attempt-{attempt:05d}-rank-{rank:05d}.jsonl"
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def step(self, number: int, plan: StepPlan, data: Data) -> None:
        """Samples of weight > 0 that this rank put into step ``number``."""
        real = [piece for piece in plan.pieces if piece.real]  # a rank's pieces follow one another
        start = plan.start + (real[0].start if real else 0)
        stop = plan.start + (real[-1].stop if real else 0)
        positions, ids = list(range(start, stop)), data.ids(start, stop)
        line = {"step": number, "first_position": plan.start, "positions": positions, "ids": ids}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
