"""Exit codes of ``rtj``, so that a shell script can tell what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_operator.errors import ResumableError, SpecError, UserError

if TYPE_CHECKING:  # pydantic is slow to import and `rtj --help` needs none of it
    from resumable_operator.model import JobStatus

SUCCESS = 0
CHECK_FAILED = 1
USAGE = 2
USER_ERROR = 3
BUDGET = 4
DRAINED = 5
INTERNAL = 6
UNSAVED = 7
INTERRUPTED = 130  # as shells do: 128 + SIGINT

MEANING = {
    SUCCESS: "success",
    CHECK_FAILED: "a check did not hold: demo; a checkpoint is damaged",
    USAGE: "usage error: the command line or the job's spec is wrong",
    USER_ERROR: "the job failed for an error of its own: its script, its model or its data",
    BUDGET: "the job ran out of another budget: too many failures of machines, no progress, its deadline",
    DRAINED: "drained or suspended with everything committed: the same command line continues"
    " (steps that an interruption before it cost are not counted)",
    INTERNAL: "infrastructure or internal error",
    UNSAVED: "drained or suspended, but not all was saved: the same command line continues from before",
}
IN_CLUSTER = {  # what the commands for jobs in a cluster exit with
    SUCCESS: MEANING[SUCCESS],
    CHECK_FAILED: "a check did not hold: a checkpoint is damaged",
    USAGE: MEANING[USAGE],
    INTERNAL: MEANING[INTERNAL],
}
_FAILED = {"user": USER_ERROR, "budget": BUDGET, "deadline": BUDGET}


class UsageProblem(UserError):
    """The command line names something that is not there or not what it must be."""


class DamagedFound(ResumableError):
    """What a command was to read is proved damaged: no mistake of the command line's, and no trouble."""


def for_error(error: ResumableError) -> int:
    """What the process exits with when ``error`` ends it."""
    if isinstance(error, (SpecError, UsageProblem)):
        return USAGE
    if isinstance(error, DamagedFound):
        return CHECK_FAILED
    return USER_ERROR if isinstance(error, UserError) else INTERNAL


def for_status(status: JobStatus) -> int:
    """What a command that ran the job exits with when it leaves it in this state.

    A job that is neither finished nor suspended was left by trouble of ours.
    """
    from resumable_operator.decide.kept import unsaved

    if status.phase == "Succeeded":
        return SUCCESS
    if status.phase == "Suspended":
        return UNSAVED if unsaved(status) else DRAINED
    if status.phase == "Failed" and status.failure_class is not None:
        return _FAILED[status.failure_class]
    return INTERNAL
