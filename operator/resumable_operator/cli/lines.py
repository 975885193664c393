"""PURE: lines of output: which rank printed them, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable

from resumable_operator.model import JobStatus


def prefix(attempt: int, rank: int) -> bytes:
    """What leads a line where there are several ranks."""
    return f"[{attempt}:{rank}] ".encode()


def listed(numbers: Iterable[int]) -> str:
    """Numbers for a message."""
    return ", ".join(str(number) for number in numbers) or "none"


def is_over(status: JobStatus, attempt: int | None) -> bool:
    """Whether nothing more will be printed: by the job (None), or in this attempt."""
    if status.phase in ("Succeeded", "Failed"):
        return True
    if attempt is None:
        return False
    newest = status.attempt
    return newest.number > attempt or (newest.number == attempt and newest.state == "ended")


class Splitter:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def rest(self) -> list[bytes]:
        """A last line without its end, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Cursor:
    """Where in a log with a time in front of each line a reader is, so that it can begin anew there.

    The API takes whole seconds, and many lines can bear the same time: what was seen is left out by counting.
    """

    def __init__(self) -> None:
        self.newest = b""
        self._of_newest = 0  # lines seen with that time
        self._from = b""
        self._to_skip = 0

    @property
    def since(self) -> str:
        """For the API's ``sinceTime``; empty: from the beginning."""
        return self.newest.decode()

    def begin(self) -> None:
        """The log is read anew from ``since``."""
        self._from, self._to_skip = self.newest, self._of_newest

    def take(self, stamped: bytes) -> bytes | None:
        """The line without its time; None: it was seen before, or has no time (it is no line of a log)."""
        stamp, space, text = stamped.partition(b" ")
        if not space or stamp < self._from:
            return None
        if stamp == self._from and self._to_skip:
            self._to_skip -= 1
            return None
        if stamp > self.newest:
            self.newest, self._of_newest = stamp, 1
        elif stamp == self.newest:
            self._of_newest += 1
        return text
