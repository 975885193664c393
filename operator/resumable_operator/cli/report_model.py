"""What a report says, built from a job's status and its history. Pure; rendering is in ``report.py``.

All times are seconds. JSON names are camelCase, as everywhere in a job.
"""

from __future__ import annotations

from statistics import fmean

from resumable_operator.cli.report_checkpoints import (
    CheckpointNumbers,
    checkpoint_numbers,
    newest_numbers,
    noted_events,
    noted_numbers,
    used_seconds,
)
from resumable_operator.cli.report_resumed import Resumed, resumed_by_attempt
from resumable_operator.cli.run_history import HistoryEvent, Lines
from resumable_operator.cli.rundir import JobFile
from resumable_operator.cli.save_interval import saves_told, wanted_seconds
from resumable_operator.cli.standing import is_cut_off
from resumable_operator.cli.units import duration
from resumable_operator.decide import goodput as formulas
from resumable_operator.decide.assign import interruptions, mtbf_seconds
from resumable_operator.decide.ledger import CHECKPOINTING, UNACCOUNTED, milliseconds, phases_at, unsettled_ms
from resumable_operator.model import Checkpoint, Interruption, JobStatus, Model
from resumable_operator.words import counted
from resumable_training.checkpoint.history import AttemptHistory
from resumable_training.contract.exitcodes import describe_exit
from resumable_training.contract.formulas import auto_interval
from resumable_training.contract.metrics import RECOVERY_STAGES

LEAST_WAIT_SECONDS = 0.1  # less is how clocks are read


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
    recover_seconds: float | None  # None: not yet, or the job was suspended in between
    stages: dict[str, float] | None  # seconds of the recovery by stage; None: planned, or it goes on
    rework_steps: int | None  # lost by it; None: not known, as of a script that does not use the library
    done_again: bool  # those steps have been done again
    committed: bool  # before a planned ending all that was done went into a checkpoint
    worker: str
    rank: int | None
    exit_code: int | None
    evidence: str
    tail: tuple[str, ...]
    size_before: int
    size_after: int | None
    resumed: Resumed | None = None  # where the next attempt began, if a history tells


class IntervalAdvice(Model):
    """What the save interval should have been for the costs that were measured."""

    used: str  # how often it saved, in words; empty: not known
    used_seconds: float | None
    used_steps: int | None
    recommended_seconds: float
    recommended_steps: int | None
    blocking_seconds: float
    durable_seconds: float
    restart_seconds: float
    mtbf_seconds: float  # as the operator has it: one interruption is assumed in the first hour
    interruptions: int  # that were seen
    expected_goodput_used: float | None
    expected_goodput_recommended: float


class Report(Model):
    namespace: str
    name: str
    uid: str
    phase: str
    reason: str
    cut_off: bool  # its `rtj run` was killed: phase and reason are its last word
    attempts: int
    size: int
    step: int
    high_water_step: int
    rework_steps: int  # done again so far
    steps_to_redo: int  # done before, and not again yet
    goodput: GoodputNumbers
    phases: tuple[PhaseShare, ...]
    endings: tuple[Ending, ...]
    endings_not_shown: int
    has_recovered: bool  # after any interruption
    recovery_seconds: dict[
        str, float
    ]  # by stage, of all recoveries that ended: in a step, or another interruption
    checkpoints: CheckpointNumbers
    interval: IntervalAdvice | None
    damaged_lines: int | None  # of the history, skipped; None: none is kept


def build_report(
    job: JobFile,
    status: JobStatus,
    history: Lines[HistoryEvent] | None,
    now: float,
    saving: Checkpoint | None = None,
    histories: tuple[AttemptHistory, ...] = (),
    runs: bool = True,
) -> Report:
    """The whole report of a job as it stands at ``now`` (seconds on the operator's clock).

    Args:
        history: of all agents' events; None: none is kept.
        saving: ``spec.checkpoint``; an interval that is fixed there is the one that was used, another is told
            by a history alone. None: all defaults.
        histories: of this job, found beside its checkpoints; they count where ``history`` is None.
        runs: somebody looks after it now: an `rtj run`, or a cluster.
    """
    told = list(history.items) if history is not None else noted_events(histories)
    if history is not None:
        checkpoints = checkpoint_numbers(status, told)
    else:
        checkpoints = noted_numbers(status, histories) if histories else newest_numbers(status)
    used, resumed = used_seconds(told), resumed_by_attempt(told)
    saving = saving or Checkpoint()
    used = wanted_seconds(saving, status) or used
    numbers = goodput_numbers(status, now)
    counted = sum(status.interruption_counts.values())
    return Report(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        phase=status.phase,
        reason=status.reason,
        cut_off=is_cut_off(status, runs),
        attempts=status.attempt.number,
        size=status.size,
        step=status.step,
        high_water_step=status.high_water_step,
        rework_steps=status.ledger.rework_steps,
        steps_to_redo=max(0, status.high_water_step - status.step) if status.finished_at is None else 0,
        goodput=numbers,
        phases=phase_shares(status, now),
        endings=tuple(ending(item, status, resumed.get(item.attempt + 1)) for item in status.interruptions),
        endings_not_shown=max(0, counted - len(status.interruptions)),
        has_recovered=_has_recovered(status),
        recovery_seconds={stage: status.recovery.stage_ms.get(stage, 0) / 1000 for stage in RECOVERY_STAGES},
        checkpoints=checkpoints,
        interval=interval_advice(status, numbers, checkpoints, saving, used),
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


def not_reported_seconds(report: Report) -> float:
    """What ranks that train have not told yet, of the age; 0 when less than a millisecond."""
    seconds = report.goodput.age_seconds - sum(item.seconds for item in report.phases)
    return seconds if seconds >= 0.001 else 0.0


def waits_told(report: Report) -> str:
    """What of the phase ``checkpointing`` no save's own cost explains; empty: nothing, or not known.

    Before a drain or the job's end training waits until the last save is durable. Its own cost is only what
    it took from training to begin it.
    """
    begun = report.checkpoints.blocking_total_seconds
    whole = sum(item.seconds for item in report.phases if item.phase == CHECKPOINTING)
    if begun is None or whole - begun < LEAST_WAIT_SECONDS:
        return ""
    rest = f"the other {duration(whole - begun)} of checkpointing"
    return f"{rest} went into waiting for the last save of an attempt, or into failed ones"


def ending(item: Interruption, status: JobStatus, resumed: Resumed | None = None) -> Ending:
    """An interruption or planned ending, with what was seen of it in words.

    ``resumed``: where the attempt after it began, if that is known.
    """
    return Ending(
        attempt=item.attempt,
        cause=item.cause,
        planned=item.planned,
        at_seconds=max(0.0, item.at - status.ledger.started_at / 1000),
        detect_seconds=item.detect_seconds,
        recover_seconds=None if item.planned and item.cause == "suspend" else item.recover_seconds,
        stages=item.stages,
        rework_steps=_lost_steps(item, status),
        done_again=_is_done_again(item, status),
        committed=item.committed,
        worker=item.worker,
        rank=item.rank,
        exit_code=item.code,
        evidence=evidence(item),
        tail=item.tail,
        size_before=item.size_before,
        size_after=item.size_after,
        resumed=resumed,
    )


def _has_recovered(status: JobStatus) -> bool:
    """Of interruptions that are no longer kept it is taken for granted."""
    shown = [item for item in status.interruptions if not item.planned]
    return interruptions(status) > len(shown) or any(item.recover_seconds is not None for item in shown)


def _lost_steps(item: Interruption, status: JobStatus) -> int | None:
    """Not known before the next attempt says where it begins, or if nobody ever says."""
    begins = item.resumed_step is not None or item.recover_seconds is not None or item.rework_steps
    return item.rework_steps if begins and status.uses_library is not False else None


def _is_done_again(item: Interruption, status: JobStatus) -> bool:
    """The job is where it was, or a later attempt has lost steps of its own account."""
    if item.resumed_step is None:
        return item.recover_seconds is not None
    return status.attempt.number > item.attempt + 1 or status.step >= item.resumed_step + item.rework_steps


def steps_told(item: Ending, short: bool = False) -> str:
    """``33 steps done again``, before that ``33 steps to redo``; of a planned ending ``went back 33 steps``.

    Args:
        short: for a column that is about steps done again.
    """
    lost = item.rework_steps
    if lost is None:
        return "-" if short else "steps to redo are not known"
    steps = str(lost) if short else counted(lost, "step")
    if item.planned and item.committed and lost:  # somebody wanted an older checkpoint
        return f"went back {steps}"
    if item.done_again or not lost:
        return steps if short else f"{steps} done again"
    return f"{steps} to redo"


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


def interval_advice(
    status: JobStatus,
    numbers: GoodputNumbers,
    checkpoints: CheckpointNumbers,
    saving: Checkpoint,
    used: float | None,
) -> IntervalAdvice | None:
    """What ``auto`` is, by the library's own word, or would be by the same formula, for the measured costs.

    None before a save was measured.

    Args:
        used: the interval that was used, in seconds, if it is known.
    """
    blocking, durable = checkpoints.blocking_seconds, max(0.0, checkpoints.durable_seconds or 0.0)
    training = numbers.age_seconds - numbers.suspended_seconds - numbers.queued_seconds
    if blocking is None or blocking < 0 or blocking + durable <= 0 or training <= 0:
        return None
    mtbf, restart = mtbf_seconds(status), restart_seconds(status)
    best = auto_interval(
        blocking_seconds=blocking,
        durable_seconds=durable,
        mtbf_seconds=mtbf,
        cap_seconds=saving.max_interval_seconds,
    ).seconds
    if saving.interval == "auto" and status.checkpoint is not None:
        best = status.checkpoint.interval_seconds or best
    return IntervalAdvice(
        used=_used_told(saving, status, used),
        used_seconds=used,
        used_steps=_in_steps(used, status),
        recommended_seconds=best,
        recommended_steps=_in_steps(best, status),
        blocking_seconds=blocking,
        durable_seconds=durable,
        restart_seconds=restart,
        mtbf_seconds=mtbf,
        interruptions=interruptions(status),
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


def _used_told(saving: Checkpoint, status: JobStatus, used: float | None) -> str:
    if saving.interval != "auto":
        return saves_told(saving, status)
    return f"every {duration(used)} (auto, the median)" if used else ""


def in_steps_too(seconds: float, steps: int | None) -> str:
    """``12.0 s (30 steps)``; without the steps where they are not known."""
    return f"{duration(seconds)} ({counted(steps, 'step')})" if steps else duration(seconds)


def _in_steps(seconds: float | None, status: JobStatus) -> int | None:
    if seconds is None or status.step_seconds <= 0:
        return None
    return max(1, round(seconds / status.step_seconds))
