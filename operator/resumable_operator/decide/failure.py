"""From witnesses to one cause: what ended an attempt, and who pays for it.

Order of trust: pod conditions, node state, out of memory, signal, exit code, hang. A rank that failed because
a peer went away is a consequence, never the cause, unless nothing else was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from resumable_operator.decide.budget import BudgetClass, budget_class
from resumable_operator.model import AttemptStatus, Evidence
from resumable_training.contract import events, exitcodes
from resumable_training.contract.events import RankExit
from resumable_training.contract.metrics import PLANNED_CAUSES

TOGETHER_SECONDS = 2.0  # witnesses this close together tell of one event; later ones are consequences
WORKER_LOST = ("preempted", "evicted", "node_lost")
WINDOW_SLACK_SECONDS = 0.2  # agents keep a drain's window by their own clocks
TAIL_LINES = 20
TAIL_CHARACTERS = 300
_KEPT_EVIDENCE = 16

_SEVERITY = {"preempted": 0, "evicted": 0, "node_lost": 1, "oom": 2, "numeric": 4, "crash": 4, "hang": 5}
_CODE_CAUSE = {
    exitcodes.NUMERIC: "numeric",
    exitcodes.PEER_LOST: "unknown",
    exitcodes.MASTER_BIND: "unknown",
    exitcodes.SUPERSEDED: "unknown",
    exitcodes.STORAGE: "unknown",
    exitcodes.START_TIMEOUT: "unknown",
}
_OWN_ERROR = re.compile(r"(?:\[rank\d+\]: )?resumable_training\.[\w.]+: (.+)")
_OUT_OF_MEMORY = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "MemoryError",
    "DefaultCPUAllocator: can't allocate",
)


@dataclass(frozen=True)
class Verdict:
    """Why an attempt ended. ``paying`` None: nobody pays."""

    cause: str
    planned: bool
    message: str
    evidence: Evidence | None = None
    paying: BudgetClass | None = None


def judge(attempt: AttemptStatus, committed: bool, trained: bool) -> Verdict:
    """The one cause of an attempt's ending.

    Args:
        committed: a checkpoint was committed since the drain began, so a drain's purpose was fulfilled.
        trained: every member had started its ranks, or some step was told.
    """
    found = first_witness(attempt.evidence)
    if found is not None and not found.primary and attempt.left is not None:
        found = attempt.left  # its peers only lost it
    if _drained_unasked(attempt):
        found = found if found is not None and found.primary else attempt.left
    elif attempt.drain_cause is not None and (committed or _nobody_failed(attempt, found)):
        return _drained(attempt.drain_cause, attempt.drain_reason + _cut_short(attempt, found))
    if found is None:
        message = "the attempt ended and nobody said why"
        return Verdict("unknown", False, message, paying="infrastructure")
    paying: BudgetClass | None = budget_class(found.cause, found.code)
    if not found.primary:
        paying = "infrastructure"  # some network between workers, most likely
    bind_failed = found.code == exitcodes.MASTER_BIND and attempt.first_step_at is None
    if bind_failed or (not trained and found.cause in WORKER_LOST):
        paying = None  # the next try waits: ``ending``
    return Verdict(found.cause, False, found.message + _cut_short(attempt, found), found, paying)


def _drained_unasked(attempt: AttemptStatus) -> bool:
    """A rank ended with the code of a drain that neither the operator nor any agent had asked for."""
    left = attempt.left
    return left is not None and left.code == exitcodes.DRAINED and not attempt.asked


def _nobody_failed(attempt: AttemptStatus, found: Evidence | None) -> bool:
    """The drain itself ended ranks before they could commit together, and others only lost them as peers."""
    if found is None:
        return True
    return not found.primary and (events.DRAINED in attempt.outcomes.values() or _window_was_over(attempt))


def _window_was_over(attempt: AttemptStatus) -> bool:
    until, at = attempt.drain_deadline, attempt.ending_since
    return until is not None and at is not None and at >= until - WINDOW_SLACK_SECONDS


def _drained(cause: str, message: str) -> Verdict:
    planned = cause in PLANNED_CAUSES
    return Verdict(cause, planned, message, paying=None if planned else budget_class(cause, None))


def _cut_short(attempt: AttemptStatus, found: Evidence | None) -> str:
    """What to add to a message when a drain's window was over before all ranks had ended by themselves."""
    good = (events.SUCCEEDED, events.DRAINED)
    finished = all(attempt.outcomes.get(member.worker) in good for member in attempt.members)
    since, until = attempt.draining_since, attempt.drain_deadline
    if finished or since is None or until is None or not _window_was_over(attempt):
        return ""
    if found is not None and found.primary and found.cause not in WORKER_LOST:
        return ""  # that ended them, and not the window
    return f"; the window of {until - since:.1f} s was over before all ranks had saved and ended"


def first_witness(evidence: tuple[Evidence, ...]) -> Evidence | None:
    """The most trusted of the first primary witnesses; a consequence only when there is nothing else."""
    candidates = [item for item in evidence if item.primary] or list(evidence)
    if not candidates:
        return None
    first = min(item.at for item in candidates)
    return min(
        (item for item in candidates if item.at <= first + TOGETHER_SECONDS),
        key=lambda item: (_severity(item), item.at, item.rank if item.rank is not None else -1),
    )


def _severity(item: Evidence) -> int:
    if item.cause == "crash" and item.code is not None and item.code < 0:
        return 3
    return _SEVERITY.get(item.cause, 6)


def add_evidence(known: tuple[Evidence, ...], new: Evidence) -> tuple[Evidence, ...]:
    """Keep each witness once, and the first few, so that status stays small.

    One that spoke of a consequence first and of a cause later is kept as the cause.
    """
    same = [old for old in known if _who(old) == _who(new)]
    if same and (same[0].primary or not new.primary):
        return known
    kept = (*(old for old in known if old not in same), new)
    if len(kept) <= _KEPT_EVIDENCE:
        return kept
    weakest = max(kept, key=lambda item: (not item.primary, _severity(item), item.at))
    if weakest is new:
        return known
    return tuple(item for item in kept if item is not weakest)


def _who(item: Evidence) -> tuple[str, str, int | None]:
    return item.cause, item.worker, item.rank


def of_rank_exit(exit_: RankExit, worker: str, at: float) -> Evidence | None:
    """What a rank's end tells; None when it is no failure or the agent did it itself."""
    if not exit_.own or exit_.code in (exitcodes.SUCCESS, exitcodes.DRAINED):
        return None
    early = " before its first step" if exit_.early else ""
    return Evidence(
        at=at,
        cause=_cause_of_exit(exit_),
        worker=worker,
        rank=exit_.rank,
        code=exit_.code,
        message=f"rank {exit_.rank} on {worker}: {exitcodes.describe_exit(exit_.code)}{early}{_words(exit_)}",
        tail=_short(exit_.tail),
        primary=not (exit_.peer_suspect or exit_.code == exitcodes.PEER_LOST),
        in_loop=exit_.in_loop,
    )


def _words(exit_: RankExit) -> str:
    """What the library itself said of the store, at the end of a traceback that may be on no screen."""
    told = [match[1] for line in exit_.tail if (match := _OWN_ERROR.match(line))]
    return f": {told[-1][:TAIL_CHARACTERS]}" if told and exit_.code == exitcodes.STORAGE else ""


def of_leaving(exit_: RankExit, worker: str, at: float) -> Evidence:
    """A rank that returned 0. When its peers lose a peer and nobody else failed, it left them too early.

    Or one that ended as drained: when nobody turns out to have asked, that was the script's own idea.
    """
    how = "returned 0 while others trained on: all ranks must take the same steps"
    if exit_.code == exitcodes.DRAINED:
        how = f"ended with exit code {exit_.code}, which says drained, and nobody had asked it to drain"
    return Evidence(
        at=at,
        cause="crash",
        worker=worker,
        rank=exit_.rank,
        code=exit_.code,
        message=f"rank {exit_.rank} on {worker} {how}",
        tail=_short(exit_.tail),
    )


def _short(tail: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line[:TAIL_CHARACTERS] for line in tail[-TAIL_LINES:])


def _cause_of_exit(exit_: RankExit) -> str:
    if exit_.code in _CODE_CAUSE:
        return _CODE_CAUSE[exit_.code]
    if exit_.code > 0 and any(word in line for line in exit_.tail for word in _OUT_OF_MEMORY):
        return "oom"
    return "crash"
