"""PURE: how a run went over time, told by the ledger's own code.

The ledger keeps sums, not when they grew. So the facts that are known are folded again, in order, by the same
functions that the operator uses, and what each one credits to a phase is a segment of the time line. Where
nothing was noted (between the last commit and a crash, say) the segment is a guess, made so that the sums
come out as the ledger has them; ``Course.off_seconds`` says how far they are apart.

Times of the result are seconds since the job began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from resumable_operator.cli.report_facts import Facts, Seen
from resumable_operator.cli.report_points import Point, SizePoint, logged_values, size_points, step_points
from resumable_operator.decide import ledger as book
from resumable_operator.decide.goodput import goodput
from resumable_operator.model import Interruption, JobStatus, LedgerStatus
from resumable_training.contract.metrics import LEDGER_PHASES

# Within one stretch that is known by its sums only: as a rank's life goes.
ORDER = (
    "suspended",
    "queued",
    "detecting",
    "starting",
    "resizing",
    "recovering",
    "rendezvous",
    "restoring",
    "warmup",
    "rework",
    "productive",
    "running_opaque",
    "data_stall",
    "evaluating",
    "checkpointing",
    "unaccounted",
)
assert set(ORDER) == set(LEDGER_PHASES)
_IN_THE_LOOP = ("rework", "productive", "data_stall", "evaluating", "checkpointing")
WINDOWS = 60  # stretches that goodput is shown for, one by one


@dataclass(frozen=True)
class Segment:
    """Time in one phase. ``guessed``: nothing was noted then; the sums say so."""

    start: float
    end: float
    phase: str
    guessed: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class GoodputPoint:
    """Goodput of all time up to ``at``."""

    at: float
    goodput: float


@dataclass(frozen=True)
class Window:
    """Productive share of one stretch, without what was suspended; None: all of it was."""

    start: float
    end: float
    share: float | None


@dataclass(frozen=True)
class SavePoint:
    """One save; costs are None where they were never told."""

    at: float
    attempt: int
    step: int
    name: str
    bytes: int | None
    blocking_seconds: float | None
    durable_seconds: float | None
    message: str = ""


@dataclass(frozen=True)
class Course:
    """``recorded``: whether anybody noted steps. ``values``: by name, (at, value) of what else was logged."""

    age: float
    segments: tuple[Segment, ...] = ()
    points: tuple[Point, ...] = ()
    goodput: tuple[GoodputPoint, ...] = ()
    windows: tuple[Window, ...] = ()
    sizes: tuple[SizePoint, ...] = ()
    saves: tuple[SavePoint, ...] = ()
    values: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    off_seconds: float = 0.0
    recorded: bool = False


def build_course(status: JobStatus, facts: Facts, now: float) -> Course:
    """The course of a job up to ``now`` (seconds on the operator's clock)."""
    begin = status.ledger.started_at
    replay = _Replay(status)
    replay.run(facts, book.milliseconds(now))
    age = book.age_ms(status.ledger, book.milliseconds(now)) / 1000
    segments = tuple(_merged(replay.segments))
    return Course(
        age=age,
        segments=segments,
        points=tuple(step_points(facts, status)),
        goodput=_with_the_end(replay.goodput, status, now),
        windows=_windows(segments, age),
        sizes=tuple(size_points(facts, status)),
        saves=tuple(
            SavePoint(
                (save.at - begin) / 1000,
                save.attempt,
                save.step,
                save.name,
                save.bytes,
                save.blocking_seconds,
                save.durable_seconds,
                save.message,
            )
            for save in facts.saves
        ),
        values=logged_values(facts, begin),
        off_seconds=_off(segments, status, now),
        recorded=any(seen.uses_library for seen in facts.seen),
    )


class _Replay:
    """Folds facts into a ledger of its own, and notes what each one credits."""

    def __init__(self, status: JobStatus) -> None:
        self._status = status
        self._ledger = book.open_ledger(status.ledger.started_at)
        self._furthest = 0
        self._uncosted: set[int] = set()  # attempts whose last save nobody told the cost of
        self._save_ms = 0  # what a save usually costs
        self.segments: list[Segment] = []
        self.goodput: list[GoodputPoint] = []

    def run(self, facts: Facts, now: int) -> None:
        status = self._status
        by_attempt: dict[int, list[Seen]] = {}
        for seen in facts.seen:
            at = min(seen.at, now)  # a clock that is ahead
            by_attempt.setdefault(seen.attempt, []).append(seen if at == seen.at else replace(seen, at=at))
        self._uncosted = {save.attempt for save in facts.saves if save.blocking_seconds is None}
        self._uncosted -= {save.attempt for save in facts.saves if save.message}
        costs = [save.blocking_seconds for save in facts.saves if save.blocking_seconds is not None]
        self._save_ms = book.milliseconds(median(costs)) if costs else 0
        endings = {item.attempt: item for item in status.interruptions}
        self._before_the_first(by_attempt)
        for attempt in sorted(by_attempt.keys() | endings.keys()):
            self._attempt(attempt, by_attempt.get(attempt, []), endings.get(attempt))
        self._rest(min(now, status.ledger.settled_at))
        self._to(book.settle(self._ledger, status.ledger.open_phase, now), guessed=False)

    def _before_the_first(self, by_attempt: dict[int, list[Seen]]) -> None:
        """First there was no room, then workers came up; how long each took is known by its sum only."""
        phases, begin = self._status.ledger.phases, self._status.ledger.started_at
        first = min((seen.started for group in by_attempt.values() for seen in group), default=None)
        queued = phases.get(book.QUEUED, 0)
        until = begin + queued if first is None else min(begin + queued, max(begin, first))
        self._to(book.enter(self._ledger, book.STARTING, until))
        if first is None:
            self._to(book.settle(self._ledger, book.STARTING, until + phases.get(book.STARTING, 0)))

    def _attempt(self, attempt: int, seen: Sequence[Seen], ending: Interruption | None) -> None:
        if self._ledger.open_phase in (book.UNACCOUNTED, book.RUNNING_OPAQUE):  # nobody told of the last end
            self._to(book.enter(self._ledger, book.RECOVERING, self._ledger.settled_at))
        if not seen:
            self._unseen(ending)
        for each in seen:
            if each.at > self._ledger.settled_at:
                self._to(book.fold_progress(self._ledger, each.report(), attempt, each.at))
                self._furthest = max(self._furthest, each.step)
                self._note_goodput()
        if ending is not None:
            self._end(ending, seen[-1] if seen else None)

    def _unseen(self, ending: Interruption | None) -> None:
        """An attempt that nothing is known of: it recovers, and then it runs."""
        before = [item for item in self._status.interruptions if ending is None or item.at < ending.at]
        if before and before[-1].recover_seconds is not None:
            until = book.milliseconds(before[-1].at + before[-1].recover_seconds)
            self._to(book.settle(self._ledger, self._ledger.open_phase, until))
            self._to(book.enter(self._ledger, book.RUNNING_OPAQUE, until))
        elif not before:
            self._to(book.enter(self._ledger, book.RUNNING_OPAQUE, self._ledger.settled_at))

    def _end(self, ending: Interruption, last: Seen | None) -> None:
        at = book.milliseconds(ending.at)
        detected_from = at - book.milliseconds(ending.detect_seconds)
        if last is not None:
            self._work(last, ending, at if ending.planned else detected_from)
        else:
            self._to(book.settle(self._ledger, self._ledger.open_phase, detected_from), guessed=True)
        if not ending.planned:
            self._to(book.declare_failure(self._ledger, at))
        else:
            phase = book.SUSPENDED if ending.cause == "suspend" else book.RESIZING
            self._to(book.settle(self._ledger, book.CHECKPOINTING, at), guessed=True)  # its last save
            self._to(book.enter(self._ledger, phase, at))
        self._note_goodput()

    def _work(self, last: Seen, ending: Interruption, until: int) -> None:
        """What rank 0 did after its last note, and took with it: a save, steps done before, then new ones."""
        if ending.planned or until <= self._ledger.settled_at:
            return
        if ending.attempt in self._uncosted:
            saved = min(until, self._ledger.settled_at + self._save_ms)
            self._to(book.settle(self._ledger, book.CHECKPOINTING, saved), guessed=True)
        gap = until - self._ledger.settled_at
        reached = max(last.step, (ending.resumed_step or 0) + ending.rework_steps)
        again = min(max(self._furthest - last.step, 0), reached - last.step)
        redone = gap * again // (reached - last.step) if reached > last.step else 0
        self._to(book.settle(self._ledger, "rework", self._ledger.settled_at + redone), guessed=True)
        self._to(book.settle(self._ledger, book.PRODUCTIVE, until), guessed=True)
        self._furthest = max(self._furthest, reached)

    def _rest(self, until: int) -> None:
        """What the ledger has and nobody noted, in the time that is left."""
        gap = until - self._ledger.settled_at
        if gap <= 0:
            return
        known, have = self._status.ledger.phases, self._ledger.phases
        possible = _IN_THE_LOOP if self._ledger.open_phase == book.UNACCOUNTED else ORDER
        missing = {phase: max(0, known.get(phase, 0) - have.get(phase, 0)) for phase in possible}
        whole = sum(missing.values())
        for phase, amount in missing.items():
            share = amount * gap // whole if whole else 0
            self._to(book.settle(self._ledger, phase, self._ledger.settled_at + share), guessed=True)
        self._to(book.settle(self._ledger, self._status.ledger.open_phase, until), guessed=True)
        self._note_goodput()

    def _to(self, after: LedgerStatus, guessed: bool = False) -> None:
        """Take the ledger on, and lay out what came to it."""
        at = self._ledger.settled_at
        for phase in ORDER:
            amount = after.phases.get(phase, 0) - self._ledger.phases.get(phase, 0)
            if amount > 0:
                begin = self._status.ledger.started_at
                self.segments.append(
                    Segment((at - begin) / 1000, (at + amount - begin) / 1000, phase, guessed)
                )
                at += amount
        self._ledger = after

    def _note_goodput(self) -> None:
        settled = self._ledger
        ratio = goodput(settled, settled.settled_at).goodput
        if ratio is not None:
            self.goodput.append(GoodputPoint((settled.settled_at - settled.started_at) / 1000, ratio))


def _merged(segments: Iterable[Segment]) -> Iterable[Segment]:
    open_: Segment | None = None
    for segment in segments:
        if open_ and (open_.phase, open_.guessed, open_.end) == (
            segment.phase,
            segment.guessed,
            segment.start,
        ):
            open_ = Segment(open_.start, segment.end, open_.phase, open_.guessed)
            continue
        if open_:
            yield open_
        open_ = segment
    if open_:
        yield open_


def _with_the_end(found: Sequence[GoodputPoint], status: JobStatus, now: float) -> tuple[GoodputPoint, ...]:
    """The last point is the ledger's own word."""
    at_ms = book.milliseconds(now)
    age, ratio = book.age_ms(status.ledger, at_ms) / 1000, goodput(status.ledger, at_ms).goodput
    kept = [point for point in found if point.at < age]
    return (*kept, *([] if ratio is None else [GoodputPoint(age, ratio)]))


def _windows(segments: Sequence[Segment], age: float) -> tuple[Window, ...]:
    edges = [age * number / WINDOWS for number in range(WINDOWS + 1)]
    spent = [dict.fromkeys((book.PRODUCTIVE, book.SUSPENDED), 0.0) for _ in range(WINDOWS)]
    for segment in segments:
        if segment.phase in spent[0]:
            first = max(0, bisect_right(edges, segment.start) - 1)
            for number in range(first, WINDOWS):
                if edges[number] >= segment.end:
                    break
                inside = min(segment.end, edges[number + 1]) - max(segment.start, edges[number])
                spent[number][segment.phase] += max(0.0, inside)
    result = []
    for (start, end), each in zip(pairwise(edges), spent, strict=True):
        counted = end - start - each[book.SUSPENDED]
        share = each[book.PRODUCTIVE] / counted if counted > (end - start) * 0.01 else None
        result.append(Window(start, end, None if share is None else min(1.0, share)))
    return tuple(result)


def _off(segments: Iterable[Segment], status: JobStatus, now: float) -> float:
    """The most by which a phase of the time line differs from the ledger's."""
    drawn = dict.fromkeys(ORDER, 0.0)
    for segment in segments:
        drawn[segment.phase] += segment.seconds
    known = book.phases_at(status.ledger, book.milliseconds(now))
    return max(abs(drawn[phase] - known[phase] / 1000) for phase in ORDER)
