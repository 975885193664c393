"""PURE: what a job is doing now and how well it did lately, from looks at its ledger one after the other.

The ledger has sums only: what grew most since the last look is what ranks were doing, and the productive part
of the last half minute is goodput as it is now, where that of the whole life would hardly move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from resumable_operator.decide.ledger import PRODUCTIVE, SUSPENDED, UNACCOUNTED
from resumable_operator.model import LedgerStatus

WINDOW_MS = 30_000
LEAST_MS = 2_000  # less says nothing about goodput


@dataclass(frozen=True)
class Lately:
    """``phase``: of the ledger; empty: not known yet. ``goodput``: of the last ``seconds``, if known."""

    phase: str = ""
    goodput: float | None = None
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """``now productive, goodput 93 % of the last 30 s``; may be empty."""
        parts = [f"now {self.phase.replace('_', ' ')}"] if self.phase else []
        if self.goodput is not None:
            parts.append(f"goodput {self.goodput:.0%} of the last {self.seconds:.0f} s".replace("%", " %"))
        return ", ".join(parts)


class Looks:
    """Looks at one job's ledger. Call ``look`` with each status."""

    def __init__(self) -> None:
        self._seen: deque[LedgerStatus] = deque()
        self._phase = ""

    def look(self, ledger: LedgerStatus) -> Lately:
        """What this look and those before it tell. A ledger that has not begun is at 1970."""
        if ledger.settled_at <= 0:
            return Lately(self._phase)
        if not self._seen or ledger.settled_at > self._seen[-1].settled_at:
            self._phase = self._doing(ledger)
            self._seen.append(ledger)
        elif ledger.open_phase != UNACCOUNTED:
            self._phase = ledger.open_phase
        while len(self._seen) > 2 and self._seen[1].settled_at <= self._seen[-1].settled_at - WINDOW_MS:
            self._seen.popleft()
        return self._lately()

    def _doing(self, ledger: LedgerStatus) -> str:
        if ledger.open_phase != UNACCOUNTED:  # no ranks report: the open phase is it
            return ledger.open_phase
        if not self._seen:
            return ""
        before = self._seen[-1].phases
        grown = {phase: spent - before.get(phase, 0) for phase, spent in ledger.phases.items()}
        most = max(grown, key=lambda phase: grown[phase], default="")
        return most if most and grown[most] > 0 else self._phase

    def _lately(self) -> Lately:
        first, last = self._seen[0], self._seen[-1]
        suspended = last.phases.get(SUSPENDED, 0) - first.phases.get(SUSPENDED, 0)
        spent = last.settled_at - first.settled_at - suspended
        if spent < LEAST_MS:
            return Lately(self._phase)
        produced = last.phases.get(PRODUCTIVE, 0) - first.phases.get(PRODUCTIVE, 0)
        return Lately(self._phase, min(1.0, produced / spent), spent / 1000)
