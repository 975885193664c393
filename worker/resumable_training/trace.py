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
        positions = [
            position for piece in plan.pieces if piece.real for position in range(piece.start, piece.stop)
        ]
        ids: list[int] | None = []
        for piece in plan.pieces:
            if piece.real and ids is not None:
                part = data.ids(piece.start, piece.stop)
                ids = None if part is None else ids + part
        line = {"step": number, "first_position": plan.start, "positions": positions, "ids": ids}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
