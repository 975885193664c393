"""What a job that was stopped on purpose has done and not kept: nobody may promise more than there is.

A drain commits its last step and ends with nothing lost. It can fail: storage that is away or full, a window
that is too short. The job is suspended all the same, and goes on from the checkpoint before.
"""

from __future__ import annotations

from resumable_operator.model import Interruption, JobStatus


def unsaved(status: JobStatus) -> str:
    """Which steps of an attempt that was asked to drain are in no checkpoint, and why; "" when all are.

    What an interruption cost is not meant: that is told by itself. Of a script without the library nobody
    knows.
    """
    attempt, made = status.attempt, status.checkpoint
    if attempt.drain_cause is None or not attempt.restored or status.uses_library is not True:
        return ""
    kept, last = attempt.start_step, _ending(status)
    committed = last is not None and last.planned and last.committed
    if made is not None and (committed or made.at >= attempt.reserved_at):  # a clock may have been set back
        kept = max(kept, made.step)
    if status.step <= kept:
        return ""
    steps = f"step {status.step} is" if status.step == kept + 1 else f"steps {kept + 1} to {status.step} are"
    return f"{steps} in no checkpoint{_why(status, last)}"


def suspended_text(status: JobStatus, by: str = "") -> str:
    """For people: that the job is suspended, by what if not by its spec alone, and what was not kept."""
    lost = unsaved(status)
    return f"suspended by {by or 'spec.suspend'}" + (f"; {lost}" if lost else "")


def _ending(status: JobStatus) -> Interruption | None:
    """Of the newest attempt."""
    last = status.interruptions[-1] if status.interruptions else None
    return last if last is not None and last.attempt == status.attempt.number else None


def _why(status: JobStatus, last: Interruption | None) -> str:
    if last is None:
        return ""
    told = last.message.partition("\n")[0].removeprefix(status.attempt.drain_reason).removeprefix("; ")
    return f": {told}" if told else ""
