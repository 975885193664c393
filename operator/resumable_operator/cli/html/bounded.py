"""PURE: a course with no more in it than a screen can show, so that every page can be opened.

A job that was interrupted thousands of times has more stretches than there are pixels. Only the drawing
becomes coarser: sums and tables are made from the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from resumable_operator.cli.report_course import Course, Segment
from resumable_operator.cli.report_points import Point, SizePoint

MOST = 4000  # stretches, points
T = TypeVar("T")


def bounded(course: Course) -> Course:
    """The same, unless there is too much of something."""
    return replace(
        course,
        segments=_coarser(course.segments, course.age) if len(course.segments) > MOST else course.segments,
        points=_of_some_attempts(course.points) if len(course.points) > MOST else course.points,
        goodput=_some(course.goodput),
        sizes=_sizes(course.sizes, course.age) if len(course.sizes) > MOST else course.sizes,
        values={name: _some(points) for name, points in course.values.items()},
    )


def _coarser(segments: Sequence[Segment], age: float) -> tuple[Segment, ...]:
    """Stretches of equal length, each in the phase that is most behind with being shown: so that one which
    never takes most of a stretch is seen, too."""
    width = age / MOST
    spent: dict[int, defaultdict[tuple[str, bool], float]] = {}
    for segment in segments:
        for number in range(max(0, int(segment.start / width)), min(MOST, int(segment.end / width) + 1)):
            inside = min(segment.end, (number + 1) * width) - max(segment.start, number * width)
            if inside > 0:
                spent.setdefault(number, defaultdict(float))[segment.phase, segment.guessed] += inside
    found: list[Segment] = []
    behind: defaultdict[tuple[str, bool], float] = defaultdict(float)
    for number, times in sorted(spent.items()):
        for key, seconds in times.items():
            behind[key] += seconds
        phase, guessed = shown = max(behind, key=lambda key: behind[key])
        behind[shown] -= width
        last, start = found[-1] if found else None, number * width
        if last and (last.phase, last.guessed) == (phase, guessed) and last.end >= start - width / 2:
            found[-1] = replace(last, end=start + width)
        else:
            found.append(Segment(start, start + width, phase, guessed))
    return tuple(found)


def _of_some_attempts(points: Sequence[Point]) -> tuple[Point, ...]:
    """Every so many attempts whole, for a line has to have two points; and the newest."""
    attempts = list(dict.fromkeys(point.attempt for point in points))
    kept = {*attempts[:: -(-len(points) // MOST)], *attempts[-1:]}
    return tuple(point for point in points if point.attempt in kept)


def _some(items: Sequence[T]) -> tuple[T, ...]:
    """Every so many; the last one stays."""
    every = -(-len(items) // MOST)
    return tuple(items) if every < 2 else (*items[:-1:every], items[-1])


def _sizes(points: Iterable[SizePoint], age: float) -> tuple[SizePoint, ...]:
    """The largest of each short stretch: between two attempts there is none for a moment."""
    largest: dict[int, int] = {}
    for point in points:
        number = int(point.at / age * MOST)
        largest[number] = max(point.size, largest.get(number, 0))
    return tuple(SizePoint(number * age / MOST, size) for number, size in sorted(largest.items()))
