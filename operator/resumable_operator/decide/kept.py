"""What a job that was stopped on purpose has done and not kept: nobody may promise more than there is.

A drain commits its last step and ends with nothing lost. It can fail: storage that is away or full, a window
that is too short. The job is suspended all the same, and goes on from the checkpoint before.
"""

from __future__ import annotations

from resumable_operator.model import JobStatus


def unsaved(status: JobStatus) -> str:
    """Which steps of an attempt that was asked to drain are in no checkpoint, and why; "" when all are.

    What an interruption cost is not meant: that is told by itself. Of a script without the library nobody
    knows.
    """
    attempt, made = status.attempt, status.checkpoint
    if attempt.drain_cause is None or status.uses_library is not True:
        return ""
    kept = attempt.start_step
    if made is not None and made.at >= attempt.reserved_at:
        kept = max(kept, made.step)
    if status.step <= kept:
        return ""
    steps = f"step {status.step} is" if status.step == kept + 1 else f"steps {kept + 1} to {status.step} are"
    return f"{steps} in no checkpoint{_why(status)}"


def suspended_text(status: JobStatus) -> str:
    """For people: that the job is suspended, and what was not kept."""
    lost = unsaved(status)
    return "suspended by spec.suspend" + (f"; {lost}" if lost else "")


def _why(status: JobStatus) -> str:
    last = status.interruptions[-1] if status.interruptions else None
    if last is None or last.attempt != status.attempt.number:
        return ""
    told = last.message.partition("\n")[0].removeprefix(status.attempt.drain_reason).removeprefix("; ")
    return f": {told}" if told else ""
