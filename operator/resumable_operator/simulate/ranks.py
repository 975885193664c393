"""The ranks of one attempt, all together: where they are in their life, computed instead of stepped.

Times are integer milliseconds, so that what they report adds up exactly. They do what the worker library
does: restore the newest durable checkpoint, warm up with one step, train, save when it is due, drain at the
end of a step. Steps below the high-water mark are rework. Where they copy in memory between saves they do so
at multiples of ``copy_every``, unless a save is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from resumable_training.contract.events import ProgressReport

Told = Literal["nothing", "restored", "first step", "committed", "drained"]
_NEXT = {"setup": "rendezvous", "rendezvous": "restoring", "restoring": "warmup"}


@dataclass(frozen=True)
class Timing:
    """Milliseconds. ``interval``: of work from the end of a save to the start of the next, asked at that
    time; its argument tells whether a save has been measured before. ``copy``: what a copy in memory takes,
    after each step that is a multiple of ``copy_every``; 0: there are none."""

    setup: int
    rendezvous: int
    restoring: int
    warmup: int
    step: int
    blocking: int
    durable: int
    interval: Callable[[bool], int]
    copy: int = 0
    copy_every: int = 0


@dataclass(frozen=True)
class _Stretch:
    """What of a stretch of training is over: whole steps and whole copies. ``copying``: one is being made."""

    steps: int
    copies: int = 0
    copying: bool = False


@dataclass
class Ranks:
    """Begun at ``since``; ``proceed`` is to be called at ``next_at``, until they have ``stopped``.

    ``step``: steps done, of those settled. ``committed``: step of the newest durable checkpoint, which is
    where they begin. ``high_water``: the most steps ever done before this attempt. ``restores_at``: no
    earlier, as they wait for a checkpoint to be stored that the attempt before has left in memory.
    """

    timing: Timing
    since: int
    committed: int
    high_water: int
    has_checkpoint: bool
    restores_at: int = 0
    stage: str = "setup"
    step: int = 0
    stopped: bool = False
    totals: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.since
        self._until = self.since + self.timing.setup
        self._drains = False
        self._commit_at: int | None = None
        self._held: int | None = None  # step of the last copy that was settled
        self._begin()

    def _begin(self) -> None:
        self.step = self._first = self.committed
        self._saved = self.step if self.has_checkpoint else -1  # newest step that a save was begun for
        self._goal = self.step  # at which this stretch of training ends

    def go_back(self, at: int, committed: int, has_checkpoint: bool) -> None:
        """What they wait for does not come: they restore at once, and ``committed`` instead.

        They have not restored yet: they would have waited.
        """
        self.committed, self.has_checkpoint, self.restores_at = committed, has_checkpoint, at
        self._begin()
        if self.stage == "restoring":
            self._until = max(self.since, at) + self.timing.restoring

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
        if self.stage == "training" and (over := self._over(at)).copying:
            self._until = self.since + over.steps * self.timing.step + (over.copies + 1) * self.timing.copy
        elif self.stage == "training":
            self._settle(at)
            self._until = self.since + (self.timing.step if at > self.since else 0)

    def held(self, at: int) -> int | None:
        """Step of the copy that is whole in memory at ``at``; None: there is none.

        The memory is that of saves too: one in flight has it. A copy in the making is over the one before.
        """
        if self.stage != "training" or self._commit_at is not None or self.stopped:
            return None
        over = self._over(at)
        if over.copying:
            return None
        return self._step_of_copy(over.copies) if over.copies else self._held

    def kill(self, at: int) -> None:
        """They end now: a step in the making and a save that is not durable are lost."""
        if not self.stopped:
            self._settle(at)
            self.stopped = True

    def report(self, at: int) -> ProgressReport:
        """Rank 0's totals as its agent would tell them at ``at``."""
        totals, step = dict(self.totals), self.step
        if self.stage == "training" and not self.stopped:
            over = self._over(at)
            step += over.steps
            _add(totals, self._worth(step, over.copies))
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
            over = self._over(at)
            _add(self.totals, self._worth(self.step + over.steps, over.copies))
            self._held = self._step_of_copy(over.copies) if over.copies else self._held
            self.step += over.steps
            self.since += over.steps * self.timing.step + over.copies * self.timing.copy
        elif at >= self._until:
            _add(self.totals, {self.phase: self._until - self.since})
            self.step += self.stage == "warmup"
            self.since = self._until

    @property
    def _copies(self) -> bool:
        return self.timing.copy_every > 0 and self._commit_at is None

    @property
    def _since_copy(self) -> int:
        """Steps from the last multiple of ``copy_every`` to the settled ones."""
        return self.step % self.timing.copy_every

    def _over(self, at: int) -> _Stretch:
        """Of the steps that are not settled. A round is ``copy_every`` steps and the copy after them."""
        elapsed, step = max(0, min(at, self._until) - self.since), self.timing.step
        if not self._copies:
            return _Stretch(elapsed // step)
        every, before = self.timing.copy_every, self._since_copy
        rounds, rest = divmod(elapsed + before * step, every * step + self.timing.copy)
        steps = rounds * every + min(every, rest // step) - before
        return _Stretch(steps, rounds, rest > every * step)

    def _span(self, steps: int) -> int:
        """Milliseconds that so many steps take from now on, with the copies between them."""
        copies = (self._since_copy + steps - 1) // self.timing.copy_every if self._copies and steps else 0
        return steps * self.timing.step + copies * self.timing.copy

    def _step_of_copy(self, number: int) -> int:
        return self.step - self._since_copy + number * self.timing.copy_every

    def _worth(self, until: int, copies: int) -> dict[str, int]:
        """Milliseconds by phase of the steps from the settled ones to ``until``, and of copies."""
        again = max(0, min(until, self.high_water) - self.step)
        return {
            "rework": again * self.timing.step,
            "productive": (until - self.step - again) * self.timing.step,
            "checkpointing": copies * self.timing.copy,
        }

    def _enter(self, stage: str, at: int) -> None:
        self.stage, self.since = stage, at
        if stage in ("rendezvous", "restoring", "warmup"):
            begun = max(at, self.restores_at) if stage == "restoring" else at
            self._until = begun + getattr(self.timing, stage)

    def _go_on(self, at: int) -> Told:
        """Save if that is due, else train until it is."""
        if self._drains and self._commit_at is None and self._saved == self.step:
            return self._stop()
        if self.stage == "training" or self._drains:
            self._save(at)
            return "nothing"
        steps = max(1, round(self.timing.interval(self.has_checkpoint) / self.timing.step))
        if self._commit_at is not None:  # one save at a time: after the step in which it is durable
            steps = max(steps, math.ceil((self._commit_at - at) / self.timing.step))
        self._enter("training", at)
        self._goal = self.step + steps
        self._until = at + self._span(steps)
        return "nothing"

    def _save(self, at: int) -> None:
        """Begin one; or, when draining, wait for the one in flight."""
        self._enter("saving", at)
        self._held = None
        if self._commit_at is not None:
            self._until = max(at, self._commit_at)
            return
        self._saved = self.step
        self._commit_at = at + max(self.timing.blocking, self.timing.durable)
        self._until = self._commit_at if self._drains else at + self.timing.blocking

    def _commit(self) -> Told:
        assert self._commit_at is not None
        self._settle(self._commit_at)
        self.committed, self.has_checkpoint, self._commit_at = self._saved, True, None
        if self.stage == "training" and not self._drains:  # copies are made again
            self._until = self.since + self._span(self._goal - self.step)
        return "committed"

    def _stop(self) -> Told:
        self.stopped = True
        return "drained"


def _add(totals: dict[str, int], more: dict[str, int]) -> None:
    for phase, amount in more.items():
        if amount:
            totals[phase] = totals.get(phase, 0) + amount
