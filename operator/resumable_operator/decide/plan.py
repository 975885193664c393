"""``decide``: from what is seen to what is done. Pure: no I/O, clock, randomness or logging.

This is the table of contents; each line is a policy in a file of its own. The reconciler calls it, the local
cluster and the operator alike.
"""

from __future__ import annotations

from collections.abc import Callable

from resumable_operator.decide import draining, ending, forming, running, waiting
from resumable_operator.decide.actions import Plan
from resumable_operator.decide.avoid import forget_old
from resumable_operator.decide.claim import note_operator
from resumable_operator.decide.distrust import forget_former_members, note_distrust
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.evidence import gather
from resumable_operator.decide.fold import fold_events
from resumable_operator.decide.ledger import milliseconds, open_ledger
from resumable_operator.decide.mend import mend
from resumable_operator.decide.observation import Observation
from resumable_operator.decide.phase import hold_gpus, settle_control_phase, summarize
from resumable_operator.decide.refusals import note_refusal
from resumable_operator.decide.terminal import clean_up
from resumable_operator.decide.validity import note_problems
from resumable_operator.decide.workers import note_arrivals, tend_workers
from resumable_operator.decide.zombies import stop_zombies

_STEPS: dict[str, Callable[[Draft], None]] = {
    "forming": forming.step,
    "running": running.step,
    "draining": draining.step,
    "ending": ending.step,
    "ended": waiting.step,
}
_MOST_STEPS = 10  # running -> draining -> ending -> ended -> forming is the longest way in one pass


def decide(observation: Observation, now: float) -> Plan:
    """What to write and do now. Deciding again on the same world changes nothing but repeats what is not
    acknowledged.

    Args:
        now: seconds on the operator's clock.
    """
    draft = Draft(observation, now, observation.job.status)
    mend(draft)
    note_operator(draft)
    _start_clock(draft)
    note_problems(draft)
    note_refusal(draft)
    note_distrust(draft)
    fold_events(draft)
    if draft.alive:
        gather(draft)
    note_arrivals(draft)
    _advance(draft)
    if draft.finished:
        clean_up(draft)
    else:
        tend_workers(draft)
        stop_zombies(draft)
    forget_old(draft)
    forget_former_members(draft)
    settle_control_phase(draft)
    hold_gpus(draft)
    summarize(draft)
    reason = "; ".join(draft.notes)
    return Plan(
        draft.status,
        tuple(draft.actions),
        reason,
        draft.must_write,
        draft.wake_at,
        draft.look_at,
        draft.soon,
    )


def _start_clock(draft: Draft) -> None:
    if draft.status.started_at is None:
        draft.set(started_at=draft.now, ledger=open_ledger(milliseconds(draft.now)))
        draft.reserve()


def _advance(draft: Draft) -> None:
    """Run the state's policy until it leads nowhere else."""
    for _ in range(_MOST_STEPS):
        if draft.finished:
            return
        before = (draft.attempt.number, draft.attempt.state)
        _STEPS[draft.attempt.state](draft)
        if (draft.attempt.number, draft.attempt.state) == before:
            return
