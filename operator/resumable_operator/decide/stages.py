"""What each recovery took, by stage: where the ledger's time went between an interruption and the first step.

Pure. A recovery begins when the end of an attempt begins, with the time that its detection took, and is over
when the next attempt has done a step. An attempt that is interrupted before that ends one recovery and begins
another, so that each second is in one of them. Time without any reason in it (suspended, unaccounted) is in
none. Milliseconds here, as in the ledger; seconds on the interruption, for people.

GPU time is charged to the cause of an interruption: its recovery, and the steps that are done again after it.
"""

from __future__ import annotations

from collections.abc import Mapping

from resumable_operator.decide import ledger
from resumable_operator.decide.draft import Draft
from resumable_operator.model import Interruption, JobStatus, LedgerStatus
from resumable_training.contract.metrics import RECOVERY_STAGES

STAGE_OF = {
    ledger.DETECTING: "detect",
    ledger.QUEUED: "reschedule",
    ledger.STARTING: "reschedule",
    ledger.RECOVERING: "reschedule",  # set-up of the new ranks included
    ledger.RESIZING: "reschedule",
    ledger.RENDEZVOUS: "rendezvous",
    ledger.RESTORING: "restore",
    ledger.WARMUP: "warmup",
}


_LOST_TO_INTERRUPTIONS = (*STAGE_OF, "rework")


def stage_times(settled: LedgerStatus, now: int) -> dict[str, int]:
    """All that the ledger has of each stage at ``now``, from the job's start on."""
    phases = ledger.phases_at(settled, now)
    totals = dict.fromkeys(RECOVERY_STAGES, 0)
    for phase, stage in STAGE_OF.items():
        totals[stage] += phases[phase]
    return totals


def spent(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What came to each stage between two ``stage_times``."""
    return {stage: max(0, after.get(stage, 0) - before.get(stage, 0)) for stage in RECOVERY_STAGES}


def lost_gpu_time(settled: LedgerStatus, now: int) -> int:
    """GPU-milliseconds until ``now`` that go into stages of recoveries, or of starts, and into rework."""
    waiting = ledger.unsettled_ms(settled, now) if settled.open_phase in _LOST_TO_INTERRUPTIONS else 0
    credited = sum(settled.gpu_phases.get(phase, 0) for phase in _LOST_TO_INTERRUPTIONS)
    return credited + waiting * settled.gpus


def gpu_time_by_cause(status: JobStatus) -> dict[str, int]:
    """GPU-milliseconds that interruptions have cost, as far as they are settled."""
    recovery, attempt, settled = status.recovery, status.attempt, status.ledger
    if not recovery.cause:
        return recovery.gpu_ms
    until = lost_gpu_time(settled, settled.settled_at)
    if attempt.state != "ended" and attempt.stages_before is not None:  # what follows is charged to its end
        until = min(until, attempt.lost_before)
    more = max(0, until - recovery.gpu_before)
    return {**recovery.gpu_ms, recovery.cause: recovery.gpu_ms.get(recovery.cause, 0) + more}


def note_begin(draft: Draft) -> None:
    """The attempt begins to end: what that costs counts from here."""
    if draft.attempt.stages_before is None:
        draft.set_attempt(
            stages_before=stage_times(draft.status.ledger, draft.now_ms),
            lost_before=lost_gpu_time(draft.status.ledger, draft.now_ms),
        )


def charge_time(draft: Draft, cause: str, planned: bool) -> None:
    """What the attempt's end costs is charged to its cause.

    After an interruption a recovery begins, and ends one that goes on. What a planned end takes is nobody's
    fault.
    """
    recovery, attempt = draft.status.recovery, draft.attempt
    before = attempt.stages_before
    assert before is not None, "note_begin comes first"
    charged = dict(recovery.gpu_ms)
    if recovery.cause:
        cost = max(0, attempt.lost_before - recovery.gpu_before)
        charged[recovery.cause] = charged.get(recovery.cause, 0) + cost
    account = {"gpu_ms": charged, "cause": "" if planned else cause, "gpu_before": attempt.lost_before}
    draft.set(recovery=recovery.model_copy(update=account))
    if not planned:
        _close(draft, before)
        opened = {"since": before, "attempt": attempt.number}
        draft.set(recovery=draft.status.recovery.model_copy(update=opened))


def trains_again(draft: Draft) -> None:
    """The new attempt has done its first step; told late, it may be ending again already."""
    ended = draft.attempt.stages_before
    _close(draft, stage_times(draft.status.ledger, draft.now_ms) if ended is None else ended)


def _close(draft: Draft, until: Mapping[str, int]) -> None:
    recovery = draft.status.recovery
    if recovery.since is None:
        return
    took = spent(recovery.since, until)
    total = {stage: recovery.stage_ms.get(stage, 0) + took[stage] for stage in RECOVERY_STAGES}
    endings = tuple(_with(ending, recovery.attempt, took) for ending in draft.status.interruptions)
    closed = recovery.model_copy(update={"stage_ms": total, "since": None})
    draft.set(recovery=closed, interruptions=endings)
    last = draft.status.last_interruption
    if last is not None:
        draft.set(last_interruption=_with(last, recovery.attempt, took))


def _with(ending: Interruption, attempt: int, took: Mapping[str, int]) -> Interruption:
    if ending.attempt != attempt or ending.planned:
        return ending
    return ending.model_copy(update={"stages": {stage: took[stage] / 1000 for stage in took}})
