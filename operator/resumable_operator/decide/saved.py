"""The most samples that a checkpoint has held: what progress is measured by, and where that begins anew.

Anew only by a person's word, and once for each: else a job that falls back again and again would have its
budgets given back each time, and go on for ever at no cost.
"""

from __future__ import annotations

from resumable_operator.decide import ledger
from resumable_operator.decide.budget import give_back
from resumable_operator.decide.draft import Draft
from resumable_operator.model import JobStatus


def credit(draft: Draft, samples: int) -> None:
    """A checkpoint is progress when none before has held as many samples.

    One that is saved again, since a later one proved damaged, is not. To be called before the checkpoint is
    put into status.
    """
    before = _most(draft.status)
    if samples > before:
        draft.set(budgets=give_back(draft.status.budgets), ledger=ledger.commit(draft.status.ledger))
    draft.set(saved_samples=max(before, samples))


def begin_anew(draft: Draft, samples: int) -> None:
    """The job goes on from so many samples since somebody wants it: to save more than them is progress."""
    draft.set(saved_samples=samples)
    draft.reserve()


def note_choice(draft: Draft, deliberate: bool, checkpoint: str, samples: int) -> None:
    """Begin anew where the attempt resumed what a person has chosen, beside ``resumeFrom``.

    ``deliberate``: rank 0 found a roll-back to be the newest record. The attempt's own record follows it, so
    that no later restore says so. ``startFresh`` stays in the spec, and a store whose checkpoints are all
    damaged is started over again and again by it: it counts once, until an attempt restores without it.
    """
    status, allowed = draft.status, draft.spec.checkpoint.start_fresh
    if status.started_fresh and not allowed:
        draft.set(started_fresh=False)
    if deliberate:
        begin_anew(draft, samples)
    elif allowed and not checkpoint and not status.started_fresh and _most(status) > 0:
        draft.set(started_fresh=True)
        begin_anew(draft, samples)


def _most(status: JobStatus) -> int:
    """-1: none yet. An older operator kept no count: the newest checkpoint that it knew of has counted."""
    if status.saved_samples is not None:
        return status.saved_samples
    return status.checkpoint.samples if status.checkpoint is not None else -1
