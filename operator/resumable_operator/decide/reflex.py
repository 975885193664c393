"""What is done to an attempt's ranks before a status is written, since nothing has to be reserved for it.

One event of an agent may end the attempt beyond doubt. Then its other ranks need not live on until a pass has
been made, which may have to wait for an API server. Stricter than what passes decide: where a pass might see
a drain, a success or a mere consequence, it is left to the pass.
"""

from __future__ import annotations

import signal

from resumable_operator.decide.failure import of_rank_exit
from resumable_operator.model import AttemptStatus
from resumable_training.contract import events
from resumable_training.contract.codec import ContractError, from_plain
from resumable_training.contract.events import Event, RankExit

_ASKED = (-signal.SIGTERM, 128 + signal.SIGTERM)


def to_stop(attempt: AttemptStatus, worker: str, event: Event) -> tuple[str, ...]:
    """The members whose ranks are to be ended because of what ``worker`` has told.

    Args:
        attempt: as the last pass left it.
    """
    peers = tuple(member.worker for member in attempt.members if member.worker != worker)
    is_member = len(peers) < len(attempt.members)
    return peers if is_member and _is_running(attempt) and _is_failure(attempt, worker, event) else ()


def begins_to_end(before: AttemptStatus, after: AttemptStatus) -> bool:
    """This pass ends the attempt, and its ranks are being stopped. They mostly have gone within milliseconds:
    who looks again then sees the whole end, and what comes after it, and has one status to write for all."""
    same = (before.number, "ending") == (after.number, after.state)
    return same and before.state in ("forming", "running", "draining")


def _is_running(attempt: AttemptStatus) -> bool:
    planned = attempt.drain_cause is not None or attempt.doomed
    return attempt.state == "running" and not planned and attempt.rank0_returned_at is None


def _is_failure(attempt: AttemptStatus, worker: str, event: Event) -> bool:
    """A rank failed by itself, and not because of a peer."""
    if event.kind != events.RANK_EXITED or event.attempt != attempt.number:
        return False
    try:
        exit_ = from_plain(RankExit, event.data)
    except ContractError:
        return False
    witness = of_rank_exit(exit_, worker, at=0.0)
    return witness is not None and witness.primary and exit_.code not in _ASKED
