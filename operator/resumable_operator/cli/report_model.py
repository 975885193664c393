"""What a report says, built from a job's status and its history. Pure; rendering is in ``report.py``.

All times are seconds. JSON names are camelCase, as everywhere in a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean, median

from resumable_operator.cli.rundir import HistoryEvent, JobFile, Lines
from resumable_operator.decide import goodput as formulas
from resumable_operator.decide.ledger import UNACCOUNTED, milliseconds, phases_at, unsettled_ms
from resumable_operator.model import Interruption, JobStatus, Model, SaveInterval
from resumable_training.checkpoint.interval import auto_interval
from resumable_training.contract import events
from resumable_training.contract.exitcodes import describe_exit
from resumable_training.contract.metrics import INTERRUPTION_CAUSES


class GoodputNumbers(Model):
    """``goodput = scheduling x runtime``. A ratio is None while there is nothing to divide by."""

    goodput: float | None
    scheduling: float | None
    runtime: float | None
    age_seconds: float
    suspended_seconds: float
    queued_seconds: float
    productive_seconds: float
    lost_seconds: float
    unsettled_seconds: float
    opaque_seconds: float  # ran without the library: in the denominators, what it produced is not known


class PhaseShare(Model):
    phase: str
    seconds: float
    share: float  # of the age


class Ending(Model):
    """One ending of an attempt, as told to people."""

    attempt: int
    cause: str
    planned: bool
    at_seconds: float  # age of the job when it was declared
    detect_seconds: float
    recover_seconds: float | None
    rework_steps: int | None  # None: the script does not use the library, so nobody knows
    worker: str
    rank: int | None
    exit_code: int | None
    evidence: str
    tail: tuple[str, ...]
    size_before: int
    size_after: int | None


class Fallback(Model):
    """A checkpoint that was not resumed from because it was proved damaged."""

    attempt: int
    checkpoint: str
    why: str


class CheckpointNumbers(Model):
    """What only a history of all saves tells is None where none is kept (in a cluster)."""

    made: int | None
    failed: int | None
    newest: str | None
    newest_bytes: int
    total_bytes: int | None
    blocking_seconds: float | None  # mean cost of one save to training; without a history: of the newest
    durable_seconds: float | None  # mean time until a save was committed; likewise
    blocking_total_seconds: float | None
    fallbacks: tuple[Fallback, ...] | None


class IntervalAdvice(Model):
    """What the save interval should have been, by Daly, for the costs that were measured."""

    used_seconds: float | None
    used_steps: int | None
    recommended_seconds: float
    recommended_steps: int | None
    blocking_seconds: float
    durable_seconds: float
    restart_seconds: float
    mtbf_seconds: float
    interruptions: int  # 0: mtbf_seconds is a lower bound
    expected_goodput_used: float | None
    expected_goodput_recommended: float


class Report(Model):
    namespace: str
    name: str
    uid: str
    phase: str
    reason: str
    attempts: int
    size: int
    step: int
    high_water_step: int
    rework_steps: int
    goodput: GoodputNumbers
    phases: tuple[PhaseShare, ...]
    endings: tuple[Ending, ...]
    endings_not_shown: int
    checkpoints: CheckpointNumbers
    interval: IntervalAdvice | None
    damaged_lines: int | None  # of the history, skipped; None: none is kept


def build_report(
    job: JobFile,
    status: JobStatus,
    history: Lines[HistoryEvent] | None,
    now: float,
    interval: SaveInterval | str = "auto",
) -> Report:
    """The whole report of a job as it stands at ``now`` (seconds on the operator's clock).

    Args:
        history: of all agents' events; None: none is kept.
        interval: ``spec.checkpoint.interval``; tells the interval that was used where no history does.
    """
    if history is None:
        checkpoints, used = newest_numbers(status), _wanted_seconds(interval, status)
    else:
        checkpoints, used = checkpoint_numbers(status, history.items), used_seconds(history.items)
    numbers = goodput_numbers(status, now)
    counted = sum(status.interruption_counts.values())
    return Report(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        phase=status.phase,
        reason=status.reason,
        attempts=status.attempt.number,
        size=status.size,
        step=status.step,
        high_water_step=status.high_water_step,
        rework_steps=status.ledger.rework_steps,
        goodput=numbers,
        phases=phase_shares(status, now),
        endings=tuple(ending(item, status) for item in status.interruptions),
        endings_not_shown=max(0, counted - len(status.interruptions)),
        checkpoints=checkpoints,
        interval=interval_advice(status, numbers, checkpoints, used),
        damaged_lines=None if history is None else history.damaged,
    )


def goodput_numbers(status: JobStatus, now: float) -> GoodputNumbers:
    """Goodput and what it is made of."""
    result = formulas.goodput(status.ledger, milliseconds(now))
    return GoodputNumbers(
        goodput=result.goodput,
        scheduling=result.scheduling,
        runtime=result.runtime,
        age_seconds=result.age_seconds,
        suspended_seconds=result.suspended_seconds,
        queued_seconds=result.queued_seconds,
        productive_seconds=result.productive_seconds,
        lost_seconds=result.lost_seconds,
        unsettled_seconds=result.unsettled_seconds,
        opaque_seconds=result.opaque_seconds,
    )


def phase_shares(status: JobStatus, now: float) -> tuple[PhaseShare, ...]:
    """Every phase that took time, longest first; with the unsettled seconds they sum to the age.

    What training ranks did since their last report is not unaccounted for: it is unsettled, and most likely
    explained by the next one.
    """
    settled, at = status.ledger, milliseconds(now)
    phases = phases_at(settled, at)
    age = sum(phases.values())
    if settled.open_phase == UNACCOUNTED:
        phases[UNACCOUNTED] -= unsettled_ms(settled, at)
    longest_first = sorted(phases.items(), key=lambda item: -item[1])
    return tuple(
        PhaseShare(phase=phase, seconds=amount / 1000, share=amount / age)
        for phase, amount in longest_first
        if amount
    )


def ending(item: Interruption, status: JobStatus) -> Ending:
    """An interruption or planned ending, with what was seen of it in words."""
    return Ending(
        attempt=item.attempt,
        cause=item.cause,
        planned=item.planned,
        at_seconds=max(0.0, item.at - status.ledger.started_at / 1000),
        detect_seconds=item.detect_seconds,
        recover_seconds=item.recover_seconds,
        rework_steps=None if status.uses_library is False else item.rework_steps,
        worker=item.worker,
        rank=item.rank,
        exit_code=item.code,
        evidence=evidence(item),
        tail=item.tail,
        size_before=item.size_before,
        size_after=item.size_after,
    )


def evidence(item: Interruption) -> str:
    """What was seen: the message, and the exit status unless the message tells it already."""
    how = "" if item.code is None else describe_exit(item.code)
    if how and how not in item.message:
        return f"{item.message} ({how})" if item.message else how
    return item.message or "no details"


def sighting(item: Ending) -> str:
    """``worker rank N: what was seen``; without the place when what was seen names it already."""
    rank = "" if item.rank is None else f"rank {item.rank}"
    place = " ".join(part for part in (item.worker, rank) if part)
    if not place or (item.worker and item.worker in item.evidence and rank in item.evidence):
        return item.evidence
    return f"{place}: {item.evidence}"


def checkpoint_numbers(status: JobStatus, history: Iterable[HistoryEvent]) -> CheckpointNumbers:
    """How many saves there were and what they cost."""
    events_seen = list(history)
    saves = _saves(events_seen)
    newest = status.checkpoint
    blocking = [_number(save, "blocking_ms") / 1000 for save in saves]
    durable = [_number(save, "durable_ms") / 1000 for save in saves]
    return CheckpointNumbers(
        made=len(saves),
        failed=sum(event.kind == events.CHECKPOINT_FAILED for event in events_seen),
        newest=newest.name if newest else None,
        newest_bytes=newest.bytes if newest else 0,
        total_bytes=int(sum(_number(save, "bytes") for save in saves)),
        blocking_seconds=fmean(blocking) if blocking else None,
        durable_seconds=fmean(durable) if durable else None,
        blocking_total_seconds=sum(blocking),
        fallbacks=tuple(_fallbacks(events_seen)),
    )


def newest_numbers(status: JobStatus) -> CheckpointNumbers:
    """What the status alone tells: the newest checkpoint."""
    newest = status.checkpoint
    return CheckpointNumbers(
        made=None,
        failed=None,
        newest=newest.name if newest else None,
        newest_bytes=newest.bytes if newest else 0,
        total_bytes=None,
        blocking_seconds=newest.blocking_ms / 1000 if newest else None,
        durable_seconds=newest.durable_ms / 1000 if newest else None,
        blocking_total_seconds=None,
        fallbacks=None,
    )


def _wanted_seconds(interval: SaveInterval | str, status: JobStatus) -> float | None:
    """The interval that the spec sets, in seconds; None: it was chosen by measurement."""
    if isinstance(interval, str):
        return None
    steps = interval.steps * status.step_seconds if interval.steps and status.step_seconds else None
    return min((seconds for seconds in (interval.seconds, steps) if seconds), default=None)


def interval_advice(
    status: JobStatus, numbers: GoodputNumbers, checkpoints: CheckpointNumbers, used: float | None
) -> IntervalAdvice | None:
    """Daly's interval for the measured costs; None before a save was measured.

    Args:
        used: the interval that was used, in seconds, if it is known.
    """
    blocking, durable = checkpoints.blocking_seconds, checkpoints.durable_seconds or 0.0
    training = numbers.age_seconds - numbers.suspended_seconds - numbers.queued_seconds
    if blocking is None or blocking + durable <= 0 or training <= 0:
        return None
    interruptions = sum(status.interruption_counts.get(cause, 0) for cause in INTERRUPTION_CAUSES)
    mtbf = training / max(1, interruptions)
    restart = restart_seconds(status)
    best = auto_interval(blocking_seconds=blocking, durable_seconds=durable, mtbf_seconds=mtbf).seconds
    return IntervalAdvice(
        used_seconds=used,
        used_steps=_in_steps(used, status),
        recommended_seconds=best,
        recommended_steps=_in_steps(best, status),
        blocking_seconds=blocking,
        durable_seconds=durable,
        restart_seconds=restart,
        mtbf_seconds=mtbf,
        interruptions=interruptions,
        expected_goodput_used=formulas.exact_goodput(used, mtbf, blocking, restart) if used else None,
        expected_goodput_recommended=formulas.exact_goodput(best, mtbf, blocking, restart),
    )


def restart_seconds(status: JobStatus) -> float:
    """Mean time from the last progress before an interruption to the first step after it."""
    costs = [
        item.detect_seconds + item.recover_seconds
        for item in status.interruptions
        if not item.planned and item.recover_seconds is not None
    ]
    return fmean(costs) if costs else status.restart_seconds


def used_seconds(history: Iterable[HistoryEvent]) -> float | None:
    """Median training time between two saves of one attempt; None when no attempt saved twice."""
    saves = _saves(history)
    gaps = [
        later.at - earlier.at - _number(later, "blocking_ms") / 1000
        for earlier, later in pairwise(saves)
        if earlier.attempt == later.attempt
    ]
    gaps = [gap for gap in gaps if gap > 0]
    return median(gaps) if gaps else None


def _saves(history: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Events of completed saves; one that was replayed counts once."""
    by_name = {
        str(event.data.get("checkpoint")): event for event in history if event.kind == events.CHECKPOINT
    }
    return sorted(by_name.values(), key=lambda event: event.at)


def _fallbacks(history: Iterable[HistoryEvent]) -> Iterable[Fallback]:
    for event in history:
        skipped = event.data.get("fallback") if event.kind == events.RESTORED else None
        for item in skipped if isinstance(skipped, list) else []:
            if isinstance(item, dict):
                yield Fallback(
                    attempt=event.attempt,
                    checkpoint=str(item.get("checkpoint", "?")),
                    why=str(item.get("why", "?")),
                )


def _number(event: HistoryEvent, key: str) -> float:
    value = event.data.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _in_steps(seconds: float | None, status: JobStatus) -> int | None:
    if seconds is None or status.step_seconds <= 0:
        return None
    return max(1, round(seconds / status.step_seconds))
