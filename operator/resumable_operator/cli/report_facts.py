"""PURE: what is known of a run moment by moment, whoever told it.

A run directory keeps what agents told the operator; beside the checkpoints lies what rank 0 noted itself
(``checkpoint.history``). Both become the same facts here, on the operator's clock, in whole milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resumable_operator.model import Interruption, JobStatus
from resumable_training.checkpoint.history import AttemptHistory, thinned
from resumable_training.contract import events
from resumable_training.contract.codec import ContractError, from_plain
from resumable_training.contract.events import ProgressReport
from resumable_training.contract.manifest import checkpoint_name

if TYPE_CHECKING:
    from resumable_operator.cli.run_history import HistoryEvent

MOST_SEEN = 1500  # moments: more than a screen has pixels


@dataclass(frozen=True)
class Seen:
    """Rank 0 at the end of a stretch of time. ``phase_ms``: totals since its process began."""

    at: int
    attempt: int
    step: int
    samples: int
    loss: float | None = None
    step_seconds: float = 0.0
    rework_steps: int = 0
    phase_ms: dict[str, int] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    uses_library: bool = True

    @property
    def started(self) -> int:
        """When the process began."""
        return self.at - sum(self.phase_ms.values())

    def report(self) -> ProgressReport:
        """As its agent would have told it."""
        return ProgressReport(
            rank=0,
            started_ms=self.started,
            settled_ms=self.at,
            phase="",
            step=self.step,
            samples=self.samples,
            phase_ms=self.phase_ms,
            rework_steps=self.rework_steps,
            step_seconds=self.step_seconds,
            loss=self.loss,
            uses_library=self.uses_library,
        )


@dataclass(frozen=True)
class Restart:
    """Where an attempt began. ``checkpoint`` empty: at nothing."""

    at: int
    attempt: int
    step: int
    checkpoint: str = ""
    world_size: int | None = None


@dataclass(frozen=True)
class SaveSeen:
    """One save. ``message``: why it failed. Costs None: they were never told."""

    at: int
    attempt: int
    step: int
    name: str
    bytes: int | None = None
    blocking_seconds: float | None = None
    durable_seconds: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Facts:
    """All of it in order of time, ``seen`` by attempt first; at most about ``MOST_SEEN`` moments."""

    seen: tuple[Seen, ...] = ()
    restarts: tuple[Restart, ...] = ()
    saves: tuple[SaveSeen, ...] = ()


def gather(
    status: JobStatus, history: Iterable[HistoryEvent], histories: Iterable[AttemptHistory], uid: str
) -> Facts:
    """Facts of both sources; what both tell counts once.

    Args:
        history: agents' events, on the operator's clock.
        histories: found beside the checkpoints; those of another job (``uid``) are passed over.
    """
    told = list(history)
    ours = [item for item in histories if item.begin.job_uid in ("", uid)]
    shifts = _shifts(ours, status)
    noted = [each for item, shift in zip(ours, shifts, strict=True) for each in _seen_by_rank(item, shift)]
    seen = _together(noted, _seen_by_agents(told, status.uses_library is True))
    restarts = [_restart(item, shift) for item, shift in zip(ours, shifts, strict=True)]
    restarts += _restarts_told(told)
    by_attempt = {each.attempt: each for each in sorted(restarts, key=lambda each: each.at, reverse=True)}
    saves = [save for item, shift in zip(ours, shifts, strict=True) for save in _saves_noted(item, shift)]
    newest = _newest_save(status)
    known = _by_name([*saves, *_saves_told(told), *([newest] if newest else [])])
    return Facts(
        seen=_fewer(seen),
        restarts=tuple(sorted(by_attempt.values(), key=lambda each: each.attempt)),
        saves=tuple(sorted(known, key=lambda save: save.at)),
    )


def _together(noted: Sequence[Seen], told: Sequence[Seen]) -> list[Seen]:
    """What agents tell comes a little late, so of an attempt it only counts after rank 0's own last note."""
    last: dict[int, int] = {}
    for each in noted:
        last[each.attempt] = max(each.at, last.get(each.attempt, each.at))
    later = [each for each in told if each.at > last.get(each.attempt, -1)]
    return sorted((*noted, *later), key=lambda each: (each.attempt, each.at))


def _fewer(seen: list[Seen]) -> tuple[Seen, ...]:
    """The first and the last of each attempt stay."""
    while len(seen) > MOST_SEEN:
        groups: dict[int, list[Seen]] = {}
        for each in seen:
            groups.setdefault(each.attempt, []).append(each)
        fewer = [each for group in groups.values() for each in thinned(group)]
        if len(fewer) == len(seen):
            break
        seen = fewer
    return tuple(seen)


# ---- agents' events --------------------------------------------------------------------------------------


def _seen_by_agents(history: Sequence[HistoryEvent], speaks: bool) -> list[Seen]:
    """``speaks``: ranks of this job tell steps, so that one that does not has only not connected yet."""
    reports = []
    for event in history:
        if event.kind == events.PROGRESS:
            try:
                report = from_plain(ProgressReport, event.data)
            except ContractError:  # another version's; it costs a point
                continue
            if report.rank == 0 and (report.uses_library or not speaks):
                reports.append((event, report))
    offsets: dict[tuple[int, str], int] = {}  # operator's clock minus the agent's
    for event, report in reports:
        key = (event.attempt, event.worker)
        offset = round(event.at * 1000) - report.settled_ms
        offsets[key] = min(offset, offsets.get(key, offset))  # the one that was told with the least delay
    return [
        Seen(
            at=report.settled_ms + offsets[event.attempt, event.worker],
            attempt=event.attempt,
            step=report.step,
            samples=report.samples,
            loss=report.loss,
            step_seconds=report.step_seconds,
            rework_steps=report.rework_steps,
            phase_ms=report.phase_ms,
            uses_library=report.uses_library,
        )
        for event, report in reports
    ]


def _restarts_told(history: Sequence[HistoryEvent]) -> list[Restart]:
    sizes = {
        event.attempt: event.data.get("world_size") for event in history if event.kind == events.ASSIGNED
    }
    return [
        Restart(
            at=round(event.at * 1000),
            attempt=event.attempt,
            step=whole(event.data.get("step")),
            checkpoint=str(event.data.get("checkpoint") or ""),
            world_size=whole(sizes.get(event.attempt)) or None,
        )
        for event in history
        if event.kind == events.RESTORED
    ]


def _saves_told(history: Sequence[HistoryEvent]) -> list[SaveSeen]:
    found = []
    for event in history:
        at, data = round(event.at * 1000), event.data
        step = whole(data.get("step"))
        if event.kind == events.CHECKPOINT:
            found.append(
                SaveSeen(
                    at=at,
                    attempt=event.attempt,
                    step=step,
                    name=str(data.get("checkpoint")),
                    bytes=whole(data.get("bytes")),
                    blocking_seconds=whole(data.get("blocking_ms")) / 1000,
                    durable_seconds=whole(data.get("durable_ms")) / 1000,
                )
            )
        elif event.kind == events.CHECKPOINT_FAILED:
            message = str(data.get("message") or "failed")
            found.append(SaveSeen(at, event.attempt, step, f"failed-{step}", message=message))
    return found


# ---- beside the checkpoints ----------------------------------------------------------------------------


def _shifts(histories: Sequence[AttemptHistory], status: JobStatus) -> list[int]:
    """By how much each attempt's lines are moved to fit between the ends that the operator declared.

    Rank 0 writes its machine's wall clock, which may be wrong; the order of attempts can't be.
    """
    ends = {item.attempt: round(item.at * 1000) for item in status.interruptions}
    return [_shift(item, ends, status.ledger.started_at) for item in histories]


def _shift(history: AttemptHistory, ends: dict[int, int], begin: int) -> int:
    attempt = history.begin.attempt
    low = max((at for number, at in ends.items() if number < attempt), default=begin)
    times = [round(history.begin.at * 1000), *(round(each.at * 1000) for each in history.steps)]
    if times[0] < low:
        return low - times[0]
    high = ends.get(attempt)
    return min(0, high - times[-1]) if high is not None and high >= low else 0


def _seen_by_rank(history: AttemptHistory, shift: int) -> list[Seen]:
    """At the process's beginning plus all its phases, as agents reckon: so nothing is lost by rounding."""
    started = round(history.begin.at * 1000) - history.begin.ms + shift
    return [
        Seen(
            at=started + (sum(each.phase_ms.values()) or each.ms),
            attempt=history.begin.attempt,
            step=each.step,
            samples=each.samples,
            loss=each.loss,
            step_seconds=each.step_seconds,
            rework_steps=each.rework_steps,
            phase_ms=each.phase_ms,
            values=each.values,
        )
        for each in history.steps
    ]


def _restart(history: AttemptHistory, shift: int) -> Restart:
    begin, restored = history.begin, history.restored
    return Restart(
        at=round((restored.at if restored else begin.at) * 1000) + shift,
        attempt=begin.attempt,
        step=restored.step if restored else 0,
        checkpoint=restored.checkpoint if restored else "",
        world_size=begin.world_size,
    )


def _saves_noted(history: AttemptHistory, shift: int) -> list[SaveSeen]:
    attempt = history.begin.attempt
    found = [
        SaveSeen(
            at=round(each.at * 1000) + shift,
            attempt=attempt,
            step=each.step,
            name=each.checkpoint if not each.message else f"failed-{each.step}",
            bytes=each.bytes if not each.message else None,
            blocking_seconds=each.blocking_ms / 1000 if not each.message else None,
            durable_seconds=each.durable_ms / 1000 if not each.message else None,
            message=each.message,
        )
        for each in history.saves
    ]
    last = history.committing
    if last is not None:
        at, name = round(last.at * 1000) + shift, checkpoint_name(last.step, history.record)
        found.append(SaveSeen(at, attempt, last.step, name))
    return found


def _newest_save(status: JobStatus) -> SaveSeen | None:
    newest = status.checkpoint
    if newest is None:
        return None
    return SaveSeen(
        at=round(newest.at * 1000),
        attempt=_attempt_at(status.interruptions, newest.at, status.attempt.number),
        step=newest.step,
        name=newest.name,
        bytes=newest.bytes,
        blocking_seconds=newest.blocking_ms / 1000,
        durable_seconds=newest.durable_ms / 1000,
    )


def _attempt_at(endings: Sequence[Interruption], at: float, newest: int) -> int:
    return min((item.attempt for item in endings if item.at >= at), default=newest)


def _by_name(saves: Iterable[SaveSeen]) -> list[SaveSeen]:
    """Of what is told of one save more than once, the word that knows its cost; at the earliest time."""
    known: dict[tuple[str, int], SaveSeen] = {}
    for save in saves:
        key = (save.name, save.attempt if save.message else 0)
        before = known.get(key)
        if before is None or (before.blocking_seconds is None and save.blocking_seconds is not None):
            known[key] = save
    return list(known.values())


def whole(value: object) -> int:
    """Another version's event costs its number, not the report."""
    return round(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else 0
