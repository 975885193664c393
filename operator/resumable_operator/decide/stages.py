"""What each recovery took, by stage: where the ledger's time went between an interruption and the first step.

Pure. A recovery begins when the end of an attempt begins, with the time that its detection took, and is over
when the next attempt has done a step. An attempt that is interrupted before that ends one recovery and begins
another, so that each second is in one of them. Time without any reason in it (suspended, unaccounted) is in
none. Milliseconds here, as in the ledger; seconds on the interruption, for people.
"""

from __future__ import annotations

from collections.abc import Mapping

from resumable_operator.decide import ledger
from resumable_operator.decide.draft import Draft
from resumable_operator.model import Interruption, LedgerStatus, RecoveryStatus
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


def note_begin(draft: Draft) -> None:
    """The attempt begins to end: what its recovery takes counts from here, should it need one."""
    if draft.attempt.stages_before is None:
        draft.set_attempt(stages_before=stage_times(draft.status.ledger, draft.now_ms))


def interrupted(draft: Draft) -> None:
    """The attempt's end was an interruption: a recovery begins, at the cost of one that goes on."""
    before = draft.attempt.stages_before
    assert before is not None, "note_begin comes first"
    _close(draft, before)
    number = draft.attempt.number
    draft.set(recovery=draft.status.recovery.model_copy(update={"since": before, "attempt": number}))


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
    draft.set(recovery=RecoveryStatus(stage_ms=total), interruptions=endings)
    last = draft.status.last_interruption
    if last is not None:
        draft.set(last_interruption=_with(last, recovery.attempt, took))


def _with(ending: Interruption, attempt: int, took: Mapping[str, int]) -> Interruption:
    if ending.attempt != attempt or ending.planned:
        return ending
    return ending.model_copy(update={"stages": {stage: took[stage] / 1000 for stage in took}})
