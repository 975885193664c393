"""The ranks of one attempt, all together: where they are in their life, computed instead of stepped.

Times are integer milliseconds, so that what they report adds up exactly. They do what the worker library
does: restore the newest durable checkpoint, warm up with one step, train, save when it is due, drain at the
end of a step. Steps below the high-water mark are rework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from resumable_training.contract.events import ProgressReport

Told = Literal["nothing", "restored", "first step", "committed", "drained"]
_NEXT = {"setup": "rendezvous", "rendezvous": "restoring", "restoring": "warmup"}


@dataclass(frozen=True)
class Timing:
    """Milliseconds. ``interval``: of work from the end of a save to the start of the next, asked at that
    time; its argument tells whether a save has been measured before."""

    setup: int
    rendezvous: int
    restoring: int
    warmup: int
    step: int
    blocking: int
    durable: int
    interval: Callable[[bool], int]


@dataclass
class Ranks:
    """Begun at ``since``; ``proceed`` is to be called at ``next_at``, until they have ``stopped``.

    ``step``: steps done, of those settled. ``committed``: step of the newest durable checkpoint, which is
    where they begin. ``high_water``: the most steps ever done before this attempt.
    """

    timing: Timing
    since: int
    committed: int
    high_water: int
    has_checkpoint: bool
    stage: str = "setup"
    step: int = 0
    stopped: bool = False
    totals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.since
        self.step = self.committed
        self._until = self.since + self.timing.setup
        self._first = self.step
        self._drains = False
        self._saved = self.step if self.has_checkpoint else -1  # newest step that a save was begun for
        self._commit_at: int | None = None

    @property
    def next_at(self) -> int:
        """When something happens next."""
        return self._until if self._commit_at is None else min(self._until, self._commit_at)

    @property
    def phase(self) -> str:
        """As on the progress page."""
        if self.stage == "training":
            return "rework" if self.step < self.high_water else "productive"
        return {"saving": "checkpointing"}.get(self.stage, self.stage)

    def proceed(self) -> Told:
        """What is due at ``next_at`` happens."""
        if self._commit_at is not None and self._commit_at <= self._until:
            return self._commit()
        at = self._until
        self._settle(at)
        match self.stage:
            case "setup" | "rendezvous":
                self._enter(_NEXT[self.stage], at)
                return "nothing"
            case "restoring":
                self._enter("warmup", at)
                return self._stop() if self._drains else "restored"
            case "warmup":
                self._go_on(at)
                return "first step"
            case _:
                return self._go_on(at)

    def drain(self, at: int) -> None:
        """They were asked to: save after the step in the making, then stop."""
        if self._drains or self.stopped:
            return
        self._drains = True
        if self.stage == "training":
            self._settle(at)
            self._until = self.since + (self.timing.step if at > self.since else 0)

    def kill(self, at: int) -> None:
        """They end now: a step in the making and a save that is not durable are lost."""
        if not self.stopped:
            self._settle(at)
            self.stopped = True

    def report(self, at: int) -> ProgressReport:
        """Rank 0's totals as its agent would tell them at ``at``."""
        totals, step = dict(self.totals), self.step
        if self.stage == "training" and not self.stopped:
            step += self._steps_until(at)
            _add(totals, self._worth(step))
        return ProgressReport(
            rank=0,
            started_ms=self.started,
            settled_ms=self.started + sum(totals.values()),
            phase=self.phase,
            step=step,
            samples=step,
            phase_ms=totals,
            rework_steps=max(0, min(step, self.high_water) - self._first),
            step_seconds=self.timing.step / 1000,
        )

    # ---- inside --------------------------------------------------------------------------------------

    def _settle(self, at: int) -> None:
        """Count what is over at ``at``: whole steps, whole stages."""
        if self.stage == "training":
            done = self._steps_until(at)
            _add(self.totals, self._worth(self.step + done))
            self.step += done
            self.since += done * self.timing.step
        elif at >= self._until:
            _add(self.totals, {self.phase: self._until - self.since})
            self.step += self.stage == "warmup"
            self.since = self._until

    def _steps_until(self, at: int) -> int:
        return max(0, min(at, self._until) - self.since) // self.timing.step

    def _worth(self, until: int) -> dict[str, int]:
        """Milliseconds by phase of the steps from the settled ones to ``until``."""
        again = max(0, min(until, self.high_water) - self.step)
        return {
            "rework": again * self.timing.step,
            "productive": (until - self.step - again) * self.timing.step,
        }

    def _enter(self, stage: str, at: int) -> None:
        self.stage, self.since = stage, at
        if stage in ("rendezvous", "restoring", "warmup"):
            self._until = at + getattr(self.timing, stage)

    def _go_on(self, at: int) -> Told:
        """Save if that is due, else train until it is."""
        if self._drains and self._commit_at is None and self._saved == self.step:
            return self._stop()
        if self.stage == "training" or self._drains:
            self._save(at)
            return "nothing"
        work = self.timing.interval(self.has_checkpoint)
        if self._commit_at is not None:  # one save at a time
            work = max(work, self._commit_at - at)
        steps = max(1, round(work / self.timing.step))
        self._enter("training", at)
        self._until = at + steps * self.timing.step
        return "nothing"

    def _save(self, at: int) -> None:
        """Begin one; or, when draining, wait for the one in flight."""
        self._enter("saving", at)
        if self._commit_at is not None:
            self._until = max(at, self._commit_at)
            return
        self._saved = self.step
        self._commit_at = at + max(self.timing.blocking, self.timing.durable)
        self._until = self._commit_at if self._drains else at + self.timing.blocking

    def _commit(self) -> Told:
        self.committed, self.has_checkpoint, self._commit_at = self._saved, True, None
        return "committed"

    def _stop(self) -> Told:
        self.stopped = True
        return "drained"


def _add(totals: dict[str, int], more: dict[str, int]) -> None:
    for phase, amount in more.items():
        if amount:
            totals[phase] = totals.get(phase, 0) + amount
