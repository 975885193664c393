"""``history.jsonl`` of a run directory, read in bounded memory: a run of a week writes a gigabyte.

Nearly all of it is progress. That of rank 0 is thinned while it is read, evenly over each attempt; that of
other ranks tells a report nothing. Everything else is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from resumable_operator.cli.jsonlines import raw_lines, understood
from resumable_training.contract import events

T = TypeVar("T")
MOST_PROGRESS = 20_000  # events of it that are kept
_OF_ANOTHER_RANK = re.compile(rb'"kind": ?"progress".*"rank": ?[1-9]')  # need not be parsed


@dataclass(frozen=True)
class Lines(Generic[T]):
    """What a file of JSON lines holds, and how many of its lines could not be read."""

    items: tuple[T, ...]
    damaged: int = 0


@dataclass(frozen=True)
class HistoryEvent:
    """A line of ``history.jsonl``: an agent's event at ``at`` seconds on the operator's clock."""

    at: float
    worker: str
    kind: str
    attempt: int
    data: dict[str, Any] = field(default_factory=dict)


def read_history(path: Path) -> Lines[HistoryEvent]:
    """All that the file has, in its order.

    Raises:
        UsageProblem: it can't be read.
    """
    kept, damaged = _Kept(), 0
    for line in raw_lines(path):
        if _OF_ANOTHER_RANK.search(line):
            continue
        event = understood(line, _history_event)
        if event is None:  # cut off by a full disk or a kill, or another version's
            damaged += 1
        else:
            kept.add(event)
    return Lines(kept.events(), damaged)


class _Kept:
    """Events in order. When there is too much progress half of it goes, and of what comes half is taken."""

    def __init__(self) -> None:
        self._events: list[tuple[int, HistoryEvent]] = []  # with their place in the file
        self._progress: dict[int, list[tuple[int, HistoryEvent]]] = {}  # by attempt
        self._newest: dict[int, tuple[int, HistoryEvent]] = {}  # of each attempt, taken or not
        self._place = 0
        self._count = self._seen = 0  # of progress: that is kept, that there was
        self._every = 1

    def add(self, event: HistoryEvent) -> None:
        self._place += 1
        if event.kind != events.PROGRESS:
            self._events.append((self._place, event))
            return
        self._seen += 1
        self._newest[event.attempt] = (self._place, event)
        if self._seen % self._every and event.attempt in self._progress:
            return
        self._progress.setdefault(event.attempt, []).append((self._place, event))
        self._count += 1
        if self._count > MOST_PROGRESS:
            self._thin()

    def events(self) -> tuple[HistoryEvent, ...]:
        progress = [each for group in self._progress.values() for each in group]
        found = dict([*self._events, *progress, *self._newest.values()])
        return tuple(event for _, event in sorted(found.items()))

    def _thin(self) -> None:
        self._progress = {attempt: group[::2] for attempt, group in self._progress.items()}
        self._count = sum(map(len, self._progress.values()))
        self._every *= 2


def _history_event(plain: Any) -> HistoryEvent:
    return HistoryEvent(
        float(plain["at"]),
        str(plain["worker"]),
        str(plain["kind"]),
        int(plain["attempt"]),
        dict(plain["data"]),
    )
