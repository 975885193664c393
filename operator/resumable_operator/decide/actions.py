"""What a decision asks for.

Every action is level-triggered: doing it twice, or again after a crash, is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from resumable_operator.model import JobStatus
from resumable_training.contract.assignment import REQUEST_STOP, Assignment, Request


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
    ``soon``: something in it is for people alone, who can wait for seconds.
    """

    status: JobStatus
    actions: tuple[Action, ...]
    reason: str
    must_write: bool
    due_at: float | None = None  # then a wait is over, so decide again no later (seconds)
    look_at: float | None = None  # look no later than this, in case that something was not told
    soon: bool = False

    @property
    def wake_at(self) -> float | None:
        """Decide again no later than this (seconds)."""
        times = [at for at in (self.due_at, self.look_at) if at is not None]
        return min(times, default=None)


@dataclass(frozen=True)
class Rows:
    """A pass's actions by the worker that they are about, which are done in their order.

    ``stops``: calls that only stop ranks; ``calls``: other calls to agents; ``changes``: of the cluster.
    """

    stops: dict[str, list[Action]] = field(default_factory=dict)
    calls: dict[str, list[Action]] = field(default_factory=dict)
    changes: dict[str, list[Action]] = field(default_factory=dict)

    @classmethod
    def of(cls, actions: Iterable[Action]) -> Rows:
        rows: dict[str, list[Action]] = {}
        for action in actions:
            rows.setdefault(_about(action), []).append(action)
        result = cls()
        for worker, row in rows.items():
            if all(_is_stop(action) for action in row):
                result.stops[worker] = row
            elif all(isinstance(action, SendAssignment | SendRequest) for action in row):
                result.calls[worker] = row
            else:
                result.changes[worker] = row
        return result


def _is_stop(action: Action) -> bool:
    return isinstance(action, SendRequest) and action.request.kind == REQUEST_STOP


def _about(action: Action) -> str:
    """The worker that an action is about; events are a row of their own."""
    match action:
        case CreateWorker() | DeleteWorker():
            return action.name
        case SendAssignment():
            return action.assignment.worker
        case SendRequest():
            return action.worker
        case EmitEvent() | DeleteJob():
            return ""
