"""What this rank is doing, and for how long: the clock that fills the progress page.

Phases are exclusive and sum to the time since the process started. Time inside a step is ``productive``
beyond the high-water mark and ``rework`` below it, in proportion when a step crosses it; the first step of an
attempt is ``warmup``. A stretch is counted when it is over.

While rank 0 is in a declared evaluation the others wait for it inside a step; their page then shows
``evaluating``, so that their silence is not taken for a hang. What is counted does not change.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from resumable_training.contract.progress import PHASES, Progress, ProgressPage

_MEMORY = 0.3  # weight of the newest step in the recent step time


@dataclass(frozen=True)
class StepKind:
    """How to count the time of the step in the making."""

    first: bool = False
    rework_share: float = 0.0

    @property
    def phase(self) -> str:
        """The phase that is shown while the step runs."""
        if self.first:
            return "warmup"
        return "rework" if self.rework_share >= 0.5 else "productive"


def rework_share(start: int, stop: int, high_water: int) -> float:
    """The part of samples ``start .. stop - 1`` that had been done before."""
    return min(1.0, max(0.0, (high_water - start) / (stop - start))) if stop > start else 0.0


class PhaseClock:
    """Times are CLOCK_MONOTONIC in nanoseconds. ``page`` None: only counts."""

    def __init__(
        self,
        page: ProgressPage | None,
        started_ns: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._page = page
        self._now_ns = now_ns
        self._lock = threading.Lock()  # the watcher's thread shows and beats too
        self._phase = "setup"
        self._rank_0_evaluates = False
        self._kind: StepKind | None = None
        self._step_ns = 0
        self.progress = Progress(
            pid=os.getpid(),
            started_ns=started_ns,
            beat_ns=now_ns(),
            phase_since_ns=started_ns,
            phase_ns=dict.fromkeys(PHASES, 0),
        )
        self._write()

    @property
    def phase(self) -> str:
        """What this rank is counted as doing."""
        return self._phase

    def enter(self, phase: str) -> None:
        """Close the open stretch and open ``phase``."""
        with self._lock:
            self._settle()
            self._kind = None
            self._show(phase)

    def begin_step(self, kind: StepKind) -> None:
        """Open a step."""
        with self._lock:
            self._settle()
            self._kind = kind
            self._step_ns = 0
            if self._phase != kind.phase:  # else the page says so since the last step's end
                self._show(kind.phase)

    def begin_data_wait(self) -> None:
        """Inside a step: what follows is waiting for the loader; in an attempt's first step still warm-up."""
        if self._kind is None or self._kind.first:
            return
        with self._lock:
            self._settle()
            self._show("data_stall")

    def end_data_wait(self) -> None:
        """The batch is there; the step goes on."""
        if self._kind is None or self._kind.first:
            return
        with self._lock:
            self._settle()
            self._show(self._kind.phase)

    def end_step(self, step: int, samples: int, rework_steps: int, loss: float | None) -> None:
        """The step is done; ``step`` and ``samples`` are the job's totals."""
        with self._lock:
            self._settle()
            progress = self.progress
            if self._kind is not None and not self._kind.first:
                seconds = self._step_ns / 1e9
                known = progress.step_seconds
                progress.step_seconds = known + _MEMORY * (seconds - known) if known else seconds
            progress.step, progress.samples, progress.rework_steps = step, samples, rework_steps
            progress.loss = loss
            self._show(self._phase)

    def at(self, step: int, samples: int) -> None:
        """The totals after a restore."""
        with self._lock:
            self.progress.step, self.progress.samples = step, samples
            self._write()

    def in_loop(self, yes: bool) -> None:
        """A loop begins, or has come to its end."""
        with self._lock:
            self.progress.in_loop = yes
            self._write()

    def beat(self) -> None:
        """A sign of life during a declared wait."""
        with self._lock:
            self.progress.beat_ns = self._now_ns()
            self._write()

    def rank_0_evaluates(self, yes: bool) -> None:
        """Rank 0 enters or leaves a declared evaluation (called by the watcher's thread)."""
        with self._lock:
            self._rank_0_evaluates = yes
            self.progress.beat_ns = self._now_ns()
            self._write()

    def _settle(self) -> None:
        progress, now = self.progress, self._now_ns()
        elapsed = now - progress.phase_since_ns
        progress.phase_since_ns = progress.beat_ns = now
        kind = self._kind
        if kind is None or kind.first or self._phase == "data_stall":
            progress.phase_ns[self._phase] += elapsed
        else:
            redone = int(elapsed * kind.rework_share)
            progress.phase_ns["rework"] += redone
            progress.phase_ns["productive"] += elapsed - redone
        if kind is not None:
            self._step_ns += elapsed

    def _show(self, phase: str) -> None:
        self._phase = phase
        self._write()

    def _write(self) -> None:
        if self._page is None:
            return
        waits = self._rank_0_evaluates and self._kind is not None
        self.progress.phase = "evaluating" if waits else self._phase
        self._page.write(self.progress)


def started_ns(wanted_ns: int = 0) -> int:
    """When this rank was started, on CLOCK_MONOTONIC; now, where the system does not say.

    ``wanted_ns``: when its agent wanted it. A process that is older has waited for that.
    """
    now = time.monotonic_ns()
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, IndexError, ValueError):
        return now
    age = boot_ns - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return min(now, max(now - age, wanted_ns))
