"""What a decision asks for.

Every action is level-triggered: doing it twice, or again after a crash, is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from resumable_operator.model import JobStatus
from resumable_training.contract.assignment import Assignment, Request


@dataclass(frozen=True)
class CreateWorker:
    """Create the worker of this name; "already there" is success."""

    name: str
    place: int
    incarnation: int
    avoid: tuple[str, ...] = ()  # nodes to place it on only if there is no other


@dataclass(frozen=True)
class DeleteWorker:
    """Delete it, giving its agent ``grace_seconds``; "not there" is success. 0: force."""

    name: str
    grace_seconds: float
    reason: str


@dataclass(frozen=True)
class SendAssignment:
    """PUT it to the agent of ``assignment.worker`` at the member's address."""

    assignment: Assignment


@dataclass(frozen=True)
class SendRequest:
    """POST it to one agent."""

    worker: str
    request: Request


@dataclass(frozen=True)
class EmitEvent:
    """A Kubernetes Event, or a line for people locally."""

    kind: Literal["Normal", "Warning"]
    reason: str  # CamelCase
    message: str


@dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, and all that it owns with it; "not there" is success."""

    reason: str


Action = CreateWorker | DeleteWorker | DeleteJob | SendAssignment | SendRequest | EmitEvent


@dataclass(frozen=True)
class Plan:
    """The outcome of ``decide``.

    ``status`` is written first when ``must_write`` (something is reserved or worth telling), then the actions
    are done. When it is not written, nothing is lost: the next pass computes it again from the same events.
    """

    status: JobStatus
    actions: tuple[Action, ...]
    reason: str
    must_write: bool
    due_at: float | None = None  # then a wait is over, so decide again no later (seconds)
    look_at: float | None = None  # look no later than this, in case that something was not told

    @property
    def wake_at(self) -> float | None:
        """Decide again no later than this (seconds)."""
        times = [at for at in (self.due_at, self.look_at) if at is not None]
        return min(times, default=None)
