"""PURE: where to resume from. One question, asked again after each checkpoint that proved damaged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from resumable_training.checkpoint import wanted
from resumable_training.checkpoint.errors import NoResumePoint
from resumable_training.checkpoint.listing import Survey
from resumable_training.contract.assignment import CheckpointConfig
from resumable_training.contract.manifest import Record

SUPERSEDED = "superseded"  # a newer attempt of this job has its record already
DELIBERATE = "deliberate"  # the user's resumeFrom, once
NEWEST = "newest"  # newest on the chain that is not rejected
FRESH = "fresh"  # start from nothing
POOR_LISTING = "poor_listing"  # a checkpoint is known of and not seen: cannot tell
ALL_DAMAGED = "all_damaged"


@dataclass(frozen=True)
class Choice:
    kind: str
    name: str = ""  # of the checkpoint, for DELIBERATE and NEWEST
    reason: str = ""
    by_hand: bool = False  # the newest record is a roll-back, by a person: of NEWEST


def choose(
    seen: Survey, config: CheckpointConfig, job_uid: str, attempt: int | None, rejected: Collection[str] = ()
) -> Choice:
    """Decide what to resume from.

    ``attempt``: None where nobody numbers attempts over all starts of the job, so that no number is old.
    ``rejected``: proven damaged in this restore.

    Raises:
        NoResumePoint: ``resumeFrom`` is a step that is not on the chain.
    """
    newest = _newest_record(seen)
    if attempt is not None and newest and newest.job_uid == job_uid and newest.attempt > attempt:
        return Choice(
            SUPERSEDED, reason=f"attempt {newest.attempt} has record {newest.seq}; this is {attempt}"
        )
    if config.resume_from and not _applied(newest, config.resume_from, job_uid):
        return Choice(DELIBERATE, _meant(seen, config.resume_from), "resumeFrom")
    missing = _missing(seen, config, rejected)
    if missing:
        return Choice(POOR_LISTING, reason=missing)
    candidates = [*seen.resume_points, *([seen.chain.origin] if seen.chain.origin else [])]
    for name in candidates:
        if name not in rejected:
            rolled_back = newest is not None and newest.by_hand
            return Choice(NEWEST, name, "newest on the chain", rolled_back)
    return _nothing(seen, config, newest, job_uid, bool(candidates))


def _meant(seen: Survey, wish: str) -> str:
    """A step becomes a name. A name is looked for later, patiently: it may be seen late here."""
    text = wanted.without_serial(wish)
    if not wanted.is_step(text):
        return text
    try:
        return wanted.find(seen, text)
    except NoResumePoint as error:
        raise NoResumePoint(f"resumeFrom: {error}") from error


def _missing(seen: Survey, config: CheckpointConfig, rejected: Collection[str]) -> str:
    """Why a listing is poorer than what the job's status remembers; or "".

    Where the chain goes past the newest checkpoint (a roll-back), nobody needs it any more. All else that
    retention or ``prune`` deletes is older than what can be resumed; status may be behind by many saves.
    """
    known = config.newest_checkpoint
    if not known or config.start_fresh or known in rejected or known in seen.complete:
        return ""
    if not seen.chain.contains(known):
        return ""
    usable = [name for name in seen.resume_points if name not in rejected]
    if usable and seen.chain.newest_first([known, *usable])[0] != known:
        return ""
    return (
        f"the job's status knows of {known}, and it is not seen: the listing may be old. If it was deleted on"
        " purpose, say from where to go on: `rtj checkpoints rollback --to STEP`, or resumeFrom"
    )


def _newest_record(seen: Survey) -> Record | None:
    whole = [record for record in seen.records.values() if record]
    return max(whole, key=lambda record: record.seq, default=None)


def _applied(newest: Record | None, resume_from: str, job_uid: str) -> bool:
    """The same wish is granted once: later attempts of the job go on from what followed it."""
    return newest is not None and newest.requested == resume_from and newest.job_uid == job_uid


def _nothing(
    seen: Survey, config: CheckpointConfig, newest: Record | None, job_uid: str, had_candidates: bool
) -> Choice:
    if config.start_fresh:
        return Choice(FRESH, reason="nothing to resume from, and startFresh is set")
    if had_candidates:
        return Choice(ALL_DAMAGED, reason="every checkpoint on the chain is damaged")
    if newest and newest.deliberate and newest.parent is None and newest.job_uid == job_uid:
        return Choice(FRESH, reason="the user had this job start afresh, and there is no checkpoint since")
    if config.known_checkpoint or _records_know(seen):
        known = "the job's status" if config.known_checkpoint else "the store's records"
        return Choice(POOR_LISTING, reason=f"{known} know of a checkpoint, and none is seen")
    return Choice(FRESH, reason="no checkpoint yet")


def _records_know(seen: Survey) -> bool:
    on_chain = [seen.records.get(seq) for seq, _ in seen.chain.reach]
    return seen.chain.cut or any(record and record.parent for record in on_chain)
