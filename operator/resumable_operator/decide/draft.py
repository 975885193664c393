"""One pass in the making: the status being built and the actions collected. ``decide`` makes and ends it.

Policies read the observation and write here; nothing leaves before ``conclude`` in ``plan.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import is_
from typing import Any, Literal

from resumable_operator.decide.actions import Action, EmitEvent
from resumable_operator.decide.ledger import milliseconds
from resumable_operator.decide.observation import Observation
from resumable_operator.model import AttemptStatus, JobSpec, JobStatus


@dataclass
class Draft:
    """Everything one ``decide`` works on. ``now`` in seconds."""

    observation: Observation
    now: float
    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    must_write: bool = False
    soon: bool = False  # to be written within seconds, for people to see
    wake_at: float | None = None
    look_at: float | None = None
    _memos: dict[str, tuple[tuple[Any, ...], dict[Any, Any]]] = field(default_factory=dict)

    @property
    def spec(self) -> JobSpec:
        return self.observation.job.spec

    @property
    def attempt(self) -> AttemptStatus:
        return self.status.attempt

    @property
    def now_ms(self) -> int:
        return milliseconds(self.now)

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def alive(self) -> bool:
        """An attempt exists that has not ended."""
        return self.attempt.number > 0 and self.attempt.state != "ended"

    def set(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def set_attempt(self, **changes: Any) -> None:
        """Change fields of the attempt."""
        self.set(attempt=self.attempt.model_copy(update=changes))

    def reserve(self) -> None:
        """Write the status of this pass before its actions: it reserves, tells, or starts a timer."""
        self.must_write = True

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def tell(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Tell people, once: the status that makes it old news is written with it."""
        self.act(EmitEvent(kind, reason, message))
        self.reserve()

    def memo(self, name: str, *depends_on: Any) -> dict[Any, Any]:
        """A dict that this pass may fill, empty again when a value it depends on has been replaced.

        Look-ups over all workers are made once: with 1,000 workers anything made for each of them would cost
        a million steps.
        """
        known = self._memos.get(name)
        if known is not None and all(map(is_, known[0], depends_on)):
            return known[1]
        self._memos[name] = (depends_on, {})
        return self._memos[name][1]

    def note(self, text: str) -> None:
        """Add to the plan's reason."""
        if text not in self.notes:
            self.notes.append(text)

    def wake(self, at: float) -> None:
        """Decide again no later than ``at``, if that is still ahead."""
        if at > self.now and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def look_again(self, at: float) -> None:
        """Decide again at ``at`` even if nothing was told and no time is over: something may go untold."""
        self.look_at = at if self.look_at is None else min(at, self.look_at)
