"""Shows the output of rank 0 while a job runs, attempt after attempt, without repeating itself.

A script that fails at its import would print the same traceback once per attempt. So the output of an attempt
is held back as long as it is, line by line, what an attempt before had printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from resumable_operator.words import counted

BYTES_AT_ONCE = 1 << 20
KEPT_AFTER_SKIP = 1 << 16
COMPARED_LINES = 2000


class RankOutput:
    """Follows the log file of one rank; ``log_of(attempt)`` says where it is."""

    def __init__(self, log_of: Callable[[int], Path], rank: int = 0) -> None:
        self._log_of = log_of
        self._rank = rank
        self._attempt = 0
        self._offset = 0
        self._rest = b""
        self._earlier: list[str] = []  # what an attempt before printed first
        self._lines: list[str] = []  # what this one printed first
        self._held = 0  # lines that repeated the earlier ones so far

    def start_at(self, attempt: int) -> None:
        """Leave out what this attempt and those before it have printed already (a run that is continued)."""
        self._attempt = attempt
        path = self._log_of(attempt)
        self._offset = path.stat().st_size if path.exists() else 0

    def poll(self, attempt: int) -> list[str]:
        """Complete lines that are new, with attempt and rank in front; ``attempt``: the newest there is."""
        shown: list[str] = []
        while self._attempt < attempt:
            shown += self._read() + self._finish()
            self._turn_to(self._attempt + 1)
        return shown + self._read()

    def end(self) -> list[str]:
        """What is left, also a last line without its end."""
        return self._read() + self._finish()

    def _turn_to(self, attempt: int) -> None:
        if self._held < len(self._lines):  # else it was killed on its way through the same output
            self._earlier = self._lines
        self._lines = []
        self._attempt, self._offset, self._held = attempt, 0, 0

    def _read(self) -> list[str]:
        try:
            with self._log_of(self._attempt).open("rb") as file:
                skipped = self._skip(file.seek(0, 2))
                file.seek(self._offset)
                data = file.read(BYTES_AT_ONCE)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return skipped + self._show(lines)

    def _skip(self, size: int) -> list[str]:
        """A rank that prints faster than people read is not shown in full."""
        if size - self._offset <= BYTES_AT_ONCE:
            return []
        skipped, self._offset = size - self._offset - KEPT_AFTER_SKIP, size - KEPT_AFTER_SKIP
        self._rest = b""
        return [self._prefix() + f"... {skipped} bytes left out, see {self._log_of(self._attempt)}"]

    def _finish(self) -> list[str]:
        lines, self._rest = ([self._rest] if self._rest else []), b""
        shown = self._show(lines)
        if self._held and self._held == len(self._lines):
            shown.append(self._prefix() + f"({self._held} lines, the same as before)")
        return shown

    def _show(self, lines: list[bytes]) -> list[str]:
        shown: list[str] = []
        for raw in lines:
            line = raw.decode(errors="replace").rstrip("\r")
            number = len(self._lines)
            if number == self._held and self._earlier[number : number + 1] == [line]:
                self._held += 1
            else:
                shown += [*self._note_of_held(number), self._prefix() + line]
            if number < COMPARED_LINES:
                self._lines.append(line)
        return shown

    def _note_of_held(self, number: int) -> list[str]:
        """The first line that differs tells how many did not."""
        if not self._held or number != self._held:
            return []
        return [self._prefix() + f"({counted(self._held, 'line')} as before)"]

    def _prefix(self) -> str:
        return f"[{self._attempt}:{self._rank}] "
