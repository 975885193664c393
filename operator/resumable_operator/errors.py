"""Errors by what the caller should do.

::

    ResumableError
    |-- UserError            the job or the command line is wrong; show it, don't retry
    |   `-- SpecError        names the field and the fix
    |-- RetryableError       try again later (network, conflict, agent away)
    |   |-- ConflictError    somebody else wrote the status first; observe again
    |   `-- AgentUnreachable
    |       `-- AgentNotBelieved   something answers, but not as an agent of ours
    |-- AgentRefused         the agent understood and said no (older attempt, other job, bad signature)
    |-- ClusterRefused       the cluster understood and said no (quota, admission, rights)
    `-- FatalError           our own bug or a broken installation
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


class ResumableError(Exception):
    """Base of everything this package raises on purpose."""


class UserError(ResumableError):
    """The user's input is wrong; the message says which and how to mend it."""


class SpecError(UserError):
    """A job spec that cannot be run. ``field`` is its path, e.g. ``spec.workers.min``.

    ``lines``: it and what else is wrong, each for itself.
    """

    def __init__(self, field: str, message: str, more: Sequence[str] = ()) -> None:
        self.field = field
        self.lines = (f"{field}: {message}", *more)
        super().__init__("; ".join(self.lines))


class RetryableError(ResumableError):
    """Failed for now; the same call may work later."""


class ConflictError(RetryableError):
    """The stored status is newer than the one this write was based on."""


class AgentUnreachable(RetryableError):
    """No answer from an agent."""


class AgentNotBelieved(AgentUnreachable):
    """What answers at the agent's address knows none of our keys (``key``) or does not sign (``words``)."""

    def __init__(self, kind: Literal["key", "words"], message: str) -> None:
        super().__init__(message)
        self.kind: Literal["key", "words"] = kind


class AgentRefused(ResumableError):
    """The agent answered no. ``code`` is its machine-readable reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ClusterRefused(ResumableError):
    """The cluster will go on saying no until somebody changes something. ``reason``: CamelCase."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FatalError(ResumableError):
    """Cannot go on; a person has to look."""


def first_leaf(error: BaseException) -> BaseException:
    """The first error within groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def raise_if_fatal(error: ResumableError) -> None:
    """Errors that a later try may not meet are dealt with by the caller; others end the program.

    Raises:
        FatalError: it is one.
    """
    if isinstance(error, FatalError):
        raise error
