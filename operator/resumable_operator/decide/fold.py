"""Fold what agents reported into status: progress, checkpoints, witnesses of failure, outcomes.

Each event is folded once: the cursor (newest event number, by boot of an agent) is written in the same patch.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from resumable_operator.decide import ledger, saved
from resumable_operator.decide.draft import Draft
from resumable_operator.decide.failure import add_evidence, of_leaving, of_rank_exit
from resumable_operator.decide.interruptions import credit_rework, recovered
from resumable_operator.decide.observation import TimedEvent
from resumable_operator.model import CheckpointStatus, Evidence
from resumable_training.contract import events, exitcodes, formulas
from resumable_training.contract.assignment import ASKED_BY_RANKS
from resumable_training.contract.codec import ContractError, from_plain
from resumable_training.contract.events import Event, ProgressReport, RankExit
from resumable_training.contract.manifest import parse_checkpoint_name

_LARGEST = 2**53  # of whole numbers that every JSON reader keeps exactly
_FALLBACKS: Any = tuple[dict[str, Any], ...]
_LEFT_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)
_BOUNDS = (formulas.OPTIMUM, formulas.FIRST, formulas.DURABLE, formulas.CAP, "fixed")
_BEFORE_RESTORED = ("setup", "rendezvous", "restoring")


def fold_events(draft: Draft) -> None:
    """Fold all events above the cursors, in order of time, and move the cursors."""
    cursors = _over_gaps(draft, dict(draft.status.cursors))
    for timed in in_order(draft.observation.events):
        event = timed.event
        if event.seq <= cursors.get(event.boot_id, 0):
            continue
        cursors[event.boot_id] = event.seq
        fold = _FOLDS.get(event.kind)
        if fold is not None and _concerns(draft, event):
            _fold_one(draft, timed, fold)
    draft.set(cursors=_without_dead_boots(draft, cursors))


def _fold_one(draft: Draft, timed: TimedEvent, fold: Callable[[Draft, TimedEvent], None]) -> None:
    """A malformed event must not stop the job: it is passed over and said."""
    try:
        fold(draft, timed)
    except ContractError as error:
        draft.note(f"an event of {timed.worker} was not understood: {error}")


def _over_gaps(draft: Draft, cursors: dict[str, int]) -> dict[str, int]:
    """Step over events that an agent dropped before anybody read them, and say so.

    What they told is lost: time becomes ``unaccounted``, a checkpoint is learned of by the next one. How an
    attempt ended is in the agent's state, too.
    """
    for name, agent in draft.observation.agents.items():
        if agent.state is None or agent.state.first_seq - 1 <= cursors.get(agent.state.boot_id, 0):
            continue
        first, last = cursors.get(agent.state.boot_id, 0) + 1, agent.state.first_seq - 1
        cursors[agent.state.boot_id] = last
        text = f"{name} dropped its events {first} to {last} before they could be read"
        draft.tell("Warning", "EventsLost", text)
    return cursors


def _concerns(draft: Draft, event: Event) -> bool:
    """Of the living attempt; a save may still be told when the attempt is over, a warning at any time."""
    if event.kind == events.WARNING:
        return True
    also_later = event.kind in (events.CHECKPOINT, events.CHECKPOINT_FAILED)
    return event.attempt == draft.attempt.number > 0 and (draft.alive or also_later)


def in_order(found: Iterable[TimedEvent]) -> list[TimedEvent]:
    """Merged by time; those of one agent in order of number, though its clock was mapped anew in between."""
    newest: dict[str, float] = {}
    timed = []
    for item in sorted(found, key=lambda item: (item.event.boot_id, item.event.seq)):
        at = max(item.at, newest.get(item.event.boot_id, item.at))
        newest[item.event.boot_id] = at
        timed.append(replace(item, at=at))
    return sorted(timed, key=lambda item: item.at)


def _without_dead_boots(draft: Draft, cursors: dict[str, int]) -> dict[str, int]:
    """Forget boots that can't speak again. Only when the boot of every worker that may have spoken is known:
    a cursor that is dropped too early would have its events folded twice."""
    observation = draft.observation
    speakers = [worker.name for worker in observation.workers if worker.phase == "running"]
    states = {name: agent.state for name, agent in observation.agents.items()}
    if any(states.get(name) is None for name in speakers):
        return cursors
    speaking = {state.boot_id for state in states.values() if state}
    speaking |= {timed.event.boot_id for timed in observation.events}
    return {boot: seq for boot, seq in cursors.items() if boot in speaking}


def _count(data: dict[str, Any], name: str) -> int:
    """A number of things.

    Raises:
        ContractError: it is none, or one that JSON and the API server could not keep.
    """
    value = from_plain(float, data.get(name, 0), name)
    _plausible(value, name)
    return int(value)


def _seconds(data: dict[str, Any], name: str) -> float:
    """A time; 0 when it is not told.

    Raises:
        ContractError: as ``_count``.
    """
    value = from_plain(float, data.get(name) or 0.0, name)
    _plausible(value, name)
    return value


def _plausible(value: float, name: str) -> None:
    if not 0 <= value <= _LARGEST:
        raise ContractError(f"{name} must lie between 0 and {_LARGEST}, not {value}")


# ---- progress ----------------------------------------------------------------------------------------


def _progress(draft: Draft, timed: TimedEvent) -> None:
    report = from_plain(ProgressReport, timed.event.data)
    for name in ("rank", "step", "samples", "rework_steps"):
        _plausible(getattr(report, name), name)
    for name, value in report.phase_ms.items():
        _plausible(value, name)
    settled_at = min(timed.at, timed.at - (timed.event.at_ms - report.settled_ms) / 1000)
    draft.set_attempt(last_progress_at=max(settled_at, draft.attempt.last_progress_at or settled_at))
    if report.phase not in _BEFORE_RESTORED:
        draft.set(
            high_water_step=max(draft.status.high_water_step, report.step),
            high_water_samples=max(draft.status.high_water_samples, report.samples),
        )
        _note_slowest(draft, timed.worker, report)
    if report.rank == 0:
        _progress_of_rank_zero(draft, report, settled_at)


def _note_slowest(draft: Draft, worker: str, report: ProgressReport) -> None:
    """Keep the slowest of what workers tell of their ranks.

    Only one of them is remembered, however many there are. When it speaks again its new time counts, be it
    shorter; then the next report of a slower one takes its place, so that the truth is a report away.
    """
    told, attempt = report.slowest_step_seconds or report.step_seconds, draft.attempt
    if not 0 < told < _LARGEST:
        return
    if worker == attempt.slowest_worker or told > attempt.slowest_step_seconds:
        draft.set_attempt(slowest_worker=worker, slowest_step_seconds=told)


def _progress_of_rank_zero(draft: Draft, report: ProgressReport, settled_at: float) -> None:
    if draft.attempt.state != "ending":  # there, all time up to now has been settled as detection
        at_ms = ledger.milliseconds(settled_at)
        folded = ledger.fold_progress(draft.status.ledger, report, draft.attempt.number, at_ms)
        draft.set(ledger=folded)
    draft.set(uses_library=report.uses_library or draft.status.uses_library is True)
    if not report.uses_library:
        recovered(draft, settled_at)  # it tells no steps: running is all that can be seen
    if report.phase not in _BEFORE_RESTORED:
        if not draft.attempt.restored:  # a script that has no checkpoints never says where it starts
            _begins_at(draft, report.step, report.samples)
        draft.set(step=report.step, samples=report.samples)
    if 0 < report.step_seconds < math.inf:
        draft.set(step_seconds=report.step_seconds)
    if report.loss is not None:
        draft.set(loss=report.loss if math.isfinite(report.loss) else None)  # JSON has neither NaN nor inf
    if _did_a_step(draft, report):
        recovered(draft, settled_at)


def _did_a_step(draft: Draft, report: ProgressReport) -> bool:
    if report.phase in _BEFORE_RESTORED:
        return False
    worked = report.phase_ms.get("productive", 0) + report.phase_ms.get("rework", 0)
    return worked > 0 or report.phase in ("productive", "rework") or report.step > draft.attempt.start_step


def _connected(draft: Draft, _timed: TimedEvent) -> None:
    draft.set(uses_library=True)


def _begins_at(draft: Draft, step: int, samples: int) -> None:
    """The attempt builds on this step: what was done beyond it before is lost."""
    credit_rework(draft, step)
    draft.set(step=step, samples=samples)
    draft.set_attempt(start_step=step, start_samples=samples, restored=True)


# ---- checkpoints -------------------------------------------------------------------------------------


def _restored(draft: Draft, timed: TimedEvent) -> None:
    data, samples = timed.event.data, _count(timed.event.data, "samples")
    _begins_at(draft, _count(data, "step"), samples)
    wanted = draft.spec.checkpoint.resume_from
    if wanted is not None and wanted != draft.status.resumed_from:
        draft.set(resumed_from=wanted)
        saved.begin_anew(draft, samples)
    else:
        _note_found(draft, timed)
        deliberate = data.get("deliberate") is True  # older agents don't tell
        saved.note_choice(draft, deliberate, str(data.get("checkpoint") or ""), samples)
    for passed_over in from_plain(_FALLBACKS, data.get("fallback") or [], "fallback"):
        why = f"{passed_over.get('checkpoint')} was not resumed: {passed_over.get('why')}"
        draft.tell("Warning", "CheckpointRefused", why)


def _note_found(draft: Draft, timed: TimedEvent) -> None:
    """It resumed from a checkpoint beyond the newest that was told: that one landed when nobody was there to
    tell. It is progress as any other, and costs what the one before did."""
    data, before = timed.event.data, draft.status.checkpoint
    name, samples = str(data.get("checkpoint") or ""), _count(data, "samples")
    if parse_checkpoint_name(name) is None or (before is not None and samples <= before.samples):
        return  # none, or one of another store, or one that was told
    found = CheckpointStatus(name=name, step=_count(data, "step"), samples=samples, at=timed.at)
    if before is not None:
        costs = before.model_dump(exclude={"name", "step", "samples", "at"})
        found = found.model_copy(update=costs)
    saved.credit(draft, samples)
    draft.set(checkpoint=found)
    draft.reserve()


def _checkpoint(draft: Draft, timed: TimedEvent) -> None:
    """A rank's word, or its agent's when it landed after the rank's death: that one knows no costs."""
    data, before = timed.event.data, draft.status.checkpoint
    if before is not None and "blocking_ms" not in data:
        told = ("blocking_ms", "interval_seconds", "interval_bound")
        data = {**{name: getattr(before, name) for name in told}, **data}
    made = CheckpointStatus(
        name=str(data.get("checkpoint", "")),
        step=_count(data, "step"),
        samples=_count(data, "samples"),
        at=timed.at,
        bytes=_count(data, "bytes"),
        blocking_ms=_count(data, "blocking_ms"),
        durable_ms=_count(data, "durable_ms"),
        interval_seconds=_seconds(data, "interval_seconds"),
        interval_bound=bound if (bound := data.get("interval_bound")) in _BOUNDS else "",
    )
    saved.credit(draft, made.samples)
    draft.set(checkpoint=made)
    if made.step > draft.status.step:  # what it holds has been done, though no report has come yet
        draft.set(
            step=made.step,
            samples=made.samples,
            high_water_step=max(draft.status.high_water_step, made.step),
            high_water_samples=max(draft.status.high_water_samples, made.samples),
        )
    if draft.attempt.storing:
        draft.set_attempt(storing=False)
    draft.reserve()


def _checkpoint_failed(draft: Draft, timed: TimedEvent) -> None:
    data = timed.event.data
    text = f"the save at step {data.get('step')} failed, training goes on: {data.get('message')}"
    draft.tell("Warning", "CheckpointFailed", text)


def _warning(draft: Draft, timed: TimedEvent) -> None:
    draft.tell("Warning", "WorkerWarning", f"{timed.worker}: {timed.event.data.get('message')}")


# ---- witnesses of an ending ----------------------------------------------------------------------------


def _rank_exited(draft: Draft, timed: TimedEvent) -> None:
    exit_ = from_plain(RankExit, timed.event.data)
    if exit_.rank == 0 and exit_.code == 0:
        draft.set_attempt(rank0_returned_at=timed.at)
    if _left(exit_) and not _told_to_drain(draft, timed):
        known = draft.attempt.left
        if known is None or (known.code == 0 and exit_.code != 0):
            draft.set_attempt(left=of_leaving(exit_, timed.worker, timed.at))
    if exit_.idle and not exit_.own and draft.attempt.state == "draining":
        draft.set_attempt(not_begun=True)
    if _ended_as_asked(draft, exit_, timed):
        return
    witness = of_rank_exit(exit_, timed.worker, timed.at)
    if witness is not None:
        witnessed(draft, witness)


def _left(exit_: RankExit) -> bool:
    """By itself, without a failure: with 0, or with the word of a drain that its agent knows nothing of."""
    return exit_.own and (exit_.code == 0 or (exit_.code == exitcodes.DRAINED and exit_.asked is False))


def _told_to_drain(draft: Draft, timed: TimedEvent) -> bool:
    return draft.attempt.drain_cause is not None or timed.worker in draft.attempt.doomed


def _ended_as_asked(draft: Draft, exit_: RankExit, timed: TimedEvent) -> bool:
    """By the SIGTERM of a drain: a rank that has not connected (yet) can be asked in no other way."""
    if exit_.code in _LEFT_BY_SIGTERM and _told_to_drain(draft, timed):
        return True
    return draft.attempt.state == "draining" and draft.status.uses_library is not True


def _hang(draft: Draft, timed: TimedEvent) -> None:
    data = timed.event.data
    rank, silent = _count(data, "rank"), _count(data, "silent_ms") / 1000
    how = "is stopped (state T)" if data.get("stopped") else f"made no progress for {silent:.1f} s"
    message = f"rank {rank} on {timed.worker} {how} in phase {data.get('phase')}"
    witnessed(draft, Evidence(at=timed.at, cause="hang", worker=timed.worker, rank=rank, message=message))


def _drain_requested(draft: Draft, timed: TimedEvent) -> None:
    """Also by an operator before this one, which may not have written it down."""
    data, doomed = timed.event.data, draft.attempt.doomed
    if _somebody_asked(draft, data):
        draft.set_attempt(asked=True)
    if data.get("reason") == "sigterm" and timed.worker not in doomed:
        draft.set_attempt(doomed=(*doomed, timed.worker))


def _somebody_asked(draft: Draft, data: dict[str, Any]) -> bool:
    """Not when ranks are asked to follow others that drain: it is those that are to say why.

    An older agent repeats a request's reason alone. That of the drain in status was asked for by this status,
    which has it already if somebody had asked.
    """
    asked_by = data.get("asked_by")
    if asked_by is None:
        return data.get("reason") != draft.attempt.drain_reason
    return bool(asked_by != ASKED_BY_RANKS)


def _attempt_ended(draft: Draft, timed: TimedEvent) -> None:
    outcome = timed.event.data.get("outcome")
    if outcome not in events.OUTCOMES:
        raise ContractError(f"outcome must be one of {events.OUTCOMES}, not {str(outcome)[:80]}")
    note_outcomes(draft, {timed.worker: str(outcome)})
    if timed.event.data.get("storing") is True:
        draft.set_attempt(storing=True)


def note_outcomes(draft: Draft, found: dict[str, str]) -> None:
    """The attempt has ended on these workers (name -> how); the first word counts."""
    known = draft.attempt.outcomes
    if not found.keys() <= known.keys():
        draft.set_attempt(outcomes={**found, **known})


def witnessed(draft: Draft, witness: Evidence) -> None:
    """Keep a witness of the attempt's ending."""
    known = draft.attempt.evidence
    kept = add_evidence(known, witness)
    if kept is not known:
        dated = witness.model_copy(update={"last_progress": draft.attempt.last_progress_at})
        draft.set_attempt(evidence=tuple(dated if item is witness else item for item in kept))


_FOLDS: dict[str, Callable[[Draft, TimedEvent], None]] = {
    events.PROGRESS: _progress,
    events.RANK_CONNECTED: _connected,
    events.RESTORED: _restored,
    events.CHECKPOINT: _checkpoint,
    events.CHECKPOINT_FAILED: _checkpoint_failed,
    events.WARNING: _warning,
    events.RANK_EXITED: _rank_exited,
    events.HANG: _hang,
    events.DRAIN_REQUESTED: _drain_requested,
    events.ATTEMPT_ENDED: _attempt_ended,
}
