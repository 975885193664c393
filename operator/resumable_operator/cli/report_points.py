"""PURE: steps, workers and logged values over time; times are seconds since the job began.

Of attempts that nobody noted anything of, the status still tells where they began and how far they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from resumable_operator.cli.report_facts import Facts, Restart, Seen
from resumable_operator.model import Interruption, JobStatus


@dataclass(frozen=True)
class Point:
    """Steps at one moment. ``furthest``: the most ever done, the high-water mark."""

    at: float
    attempt: int
    step: int
    furthest: int
    loss: float | None = None
    step_seconds: float = 0.0


@dataclass(frozen=True)
class SizePoint:
    """From ``at`` on that many workers trained; 0: none."""

    at: float
    size: int


def step_points(facts: Facts, status: JobStatus) -> Iterable[Point]:
    """Where each attempt began, what it was seen to do, and how far it had come when it was lost."""
    begin, furthest = status.ledger.started_at / 1000, 0
    restarts = {item.attempt: item for item in facts.restarts}
    endings = {item.attempt: item for item in status.interruptions}
    by_attempt = _grouped(facts.seen)
    for attempt in sorted(by_attempt.keys() | endings.keys() | {status.attempt.number}):
        group = by_attempt.get(attempt, [])
        found = _seen(group, restarts.get(attempt)) if group else _told(attempt, status)
        lost = _lost_at(endings.get(attempt), group)
        for at, step, loss, step_seconds in [*found, *([(*lost, None, 0.0)] if lost else [])]:
            furthest = max(furthest, step)
            yield Point(max(0.0, at - begin), attempt, step, furthest, loss, step_seconds)


_Row = tuple[float, int, float | None, float]  # wall clock in seconds, step, loss, seconds of a step


def _seen(group: Sequence[Seen], start: Restart | None) -> Iterable[_Row]:
    """Before it has restored, a rank's steps say nothing."""
    if start is None:
        kept: Sequence[Seen] = [seen for seen in group if seen.step]
    else:
        kept = [seen for seen in group if seen.at >= start.at and seen.step >= start.step]
        if start.at <= group[-1].at:
            yield start.at / 1000, start.step, None, 0.0
    for seen in kept:
        yield seen.at / 1000, seen.step, seen.loss, seen.step_seconds


def _told(attempt: int, status: JobStatus) -> Iterable[_Row]:
    """The beginning, by the ending before it; of the newest attempt also where it stands."""
    before = [item for item in status.interruptions if item.attempt < attempt]
    if before and before[-1].resumed_step is not None and before[-1].recover_seconds is not None:
        yield before[-1].at + before[-1].recover_seconds, before[-1].resumed_step, None, 0.0
    newest = status.attempt
    if attempt == newest.number and newest.first_step_at is not None and newest.last_progress_at is not None:
        if not before:
            yield newest.first_step_at, newest.start_step, None, 0.0
        if newest.last_progress_at > newest.first_step_at:
            yield newest.last_progress_at, status.step, status.loss, status.step_seconds


def _lost_at(ending: Interruption | None, group: Sequence[Seen]) -> tuple[float, int] | None:
    """(when, step) of the furthest that an interrupted attempt had come after its last note."""
    if ending is None or ending.planned or ending.resumed_step is None:
        return None
    reached, at = ending.resumed_step + ending.rework_steps, ending.at - ending.detect_seconds
    if not group:
        return at, reached
    return (max(at, group[-1].at / 1000), reached) if reached > group[-1].step else None


def _grouped(seen: Iterable[Seen]) -> dict[int, list[Seen]]:
    groups: dict[int, list[Seen]] = {}
    for each in seen:
        groups.setdefault(each.attempt, []).append(each)
    return groups


def size_points(facts: Facts, status: JobStatus) -> Iterable[SizePoint]:
    """Workers of each attempt, from when its ranks began (or trained, where that is not known) to its end."""
    begin = status.ledger.started_at / 1000
    sizes = _sizes(status)
    starts = {
        attempt: min(each.started for each in group) / 1000 for attempt, group in _grouped(facts.seen).items()
    }
    for item in status.interruptions:
        if item.recover_seconds is not None:
            starts.setdefault(item.attempt + 1, item.at + item.recover_seconds)
    if status.attempt.first_step_at is not None:
        starts.setdefault(status.attempt.number, status.attempt.first_step_at)
    endings = {item.attempt: item for item in status.interruptions}
    points = []
    for attempt, size in sizes.items():
        if attempt in starts and size:
            points.append(SizePoint(max(0.0, starts[attempt] - begin), size))
        if attempt in endings:
            points.append(SizePoint(max(0.0, endings[attempt].at - begin), 0))
    return sorted(points, key=lambda point: point.at)


def _sizes(status: JobStatus) -> dict[int, int]:
    """By attempt."""
    sizes = {item.attempt: item.size_before for item in status.interruptions}
    for before, after in pairwise(status.interruptions):
        if before.size_after is not None and before.attempt + 1 == after.attempt:
            sizes.setdefault(after.attempt, before.size_after)
    if status.size:
        sizes[status.attempt.number] = status.size
    elif status.interruptions and status.interruptions[-1].size_after:
        sizes.setdefault(status.attempt.number, status.interruptions[-1].size_after)
    return dict(sorted(sizes.items()))


def logged_values(facts: Facts, begin: int) -> dict[str, tuple[tuple[float, float], ...]]:
    """What scripts logged beside the loss, by name: (at, value). ``begin``: of the job, in milliseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for seen in facts.seen:
        for name, value in seen.values.items():
            found.setdefault(name, []).append(((seen.at - begin) / 1000, value))
    return {name: tuple(points) for name, points in found.items() if len(points) > 1}
