"""Collects rank 0's history for reports, in memory, at a price that the loop does not notice.

A step costs a comparison of two integers; one that is noted costs a few microseconds and never waits for a
GPU: a tensor there is copied on the device, and fetched with the next save, which waits for the device
anyway. Lines and their bounds: :mod:`resumable_training.checkpoint.history`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from resumable_training.checkpoint.history import (
    Begin,
    Committing,
    Journal,
    Restored,
    Save,
    Step,
    Stop,
    bounded_values,
)

if TYPE_CHECKING:
    from resumable_training.checkpoint.reports import RestoreReport, SaveReport
    from resumable_training.session import Session

_LOSS = "loss"
_MOST_WAITING = 256  # steps noted whose values are still on the device
_MS = 1_000_000


class Recorder:
    """Of one attempt, on rank 0 alone. ``restored`` comes first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._started_ns = session.clock.progress.started_ns
        launch = session.launch
        self._journal = Journal(
            Begin(*self._now(), launch.attempt, launch.world_size, launch.job, launch.job_uid)
        )
        self._waiting: list[tuple[Step, dict[str, Any]]] = []
        self._due_ns = 0

    def restored(self, report: RestoreReport | None) -> None:
        """Where the attempt begins; None: at nothing."""
        if report is None:
            self._journal.restored(Restored(*self._now(), 0, 0))
            return
        passed = tuple(asdict(item) for item in report.fallback)
        line = Restored(*self._now(), report.step, report.samples, report.checkpoint, report.seconds, passed)
        self._journal.restored(
            replace(line, memory_bytes=report.memory_bytes, storage_bytes=report.storage_bytes)
        )

    def after_step(self, values: Mapping[str, Any]) -> None:
        """The step was just counted; ``values`` is what the script logged with it."""
        now_ns = self._session.clock.progress.phase_since_ns
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self._journal.pace_ms * _MS
        self._waiting.append((self._step(), {name: _kept(value) for name, value in values.items()}))
        if len(self._waiting) > _MOST_WAITING:
            self._fetch()

    def saved(self, report: SaveReport, interval_seconds: float | None) -> None:
        """A save has ended, well or not; ``interval_seconds``: the wanted time to the next one."""
        line = Save(
            *self._now(),
            report.step,
            report.name,
            report.bytes,
            report.blocking_ms,
            report.durable_ms,
            interval_seconds,
            "" if report.ok else report.message or "failed",
        )
        self._journal.save(line)

    def stopped(self, reason: str) -> None:
        """A drain was agreed on; what follows is the last save."""
        self._journal.stop(Stop(*self._now(), self._session.step, reason))

    def lines(self) -> tuple[str, ...]:
        """All lines so far, up to this moment, for the save that begins now."""
        self._fetch()
        now = self._step()
        if now.ms > self._journal.last_ms:
            self._journal.step(replace(now, loss=self._session.clock.progress.loss))
        return self._journal.lines(Committing(*self._now(), self._session.step))

    def _now(self) -> tuple[float, int]:
        return round(time.time(), 3), (time.monotonic_ns() - self._started_ns) // _MS

    def _step(self) -> Step:
        """The totals as they were when the open stretch began."""
        progress = self._session.clock.progress
        since_ns = time.monotonic_ns() - progress.phase_since_ns
        return Step(
            at=round(time.time() - since_ns / 1e9, 3),
            ms=(progress.phase_since_ns - self._started_ns) // _MS,
            step=progress.step,
            samples=progress.samples,
            step_seconds=round(progress.step_seconds, 6),
            rework_steps=progress.rework_steps,
            phase_ms={name: spent // _MS for name, spent in progress.phase_ns.items() if spent >= _MS},
        )

    def _fetch(self) -> None:
        """Make numbers of what was noted; the only place that may wait for the device."""
        for step, values in self._waiting:
            numbers = {name: float(value) for name, value in values.items() if value is not None}
            loss = numbers.pop(_LOSS, None)
            finite = loss if loss is not None and abs(loss) < float("inf") else None
            self._journal.step(replace(step, loss=finite, values=bounded_values(numbers.items())))
        self._waiting.clear()


def _kept(value: Any) -> Any:
    """What can become a number later, safe from being changed in place until then; None: it never can."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return value.detach().clone() if value.device.type != "cpu" else float(value.detach())
    return float(value) if isinstance(value, (int, float)) else None
