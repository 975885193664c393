"""The reconciler as the operator's process runs it: every pass is logged with its reason, counted and timed.

A pass that did something is one line; what it was about is in the fields ``job`` and ``attempt``. The
``PassMeter`` is what ``/healthz`` looks at for a pass that is stuck.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from resumable_operator.clock import Clock
from resumable_operator.decide.actions import Action, Plan, SendAssignment
from resumable_operator.decide.observation import Observation
from resumable_operator.errors import ConflictError, ResumableError
from resumable_operator.jsonlog import about
from resumable_operator.model import AttemptStatus
from resumable_operator.reconcile import Reconciler
from resumable_training.contract import metrics as names

logger = logging.getLogger(__name__)

RESULTS = ("acted", "idle", "gone", "conflict", "failed", "error")
_PASS_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ASSIGNMENT_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 120.0)


class PassMeter:
    """What passes there were, how long they took, and which run now."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, float] = {}  # job -> start
        self._lines: dict[str, str] = {}  # job -> newest line, so that a repetition is quiet
        self._recoveries = Recoveries()
        self._passes = Counter(names.OPERATOR_PASSES_TOTAL, "Passes.", ["result"], registry=registry)
        self._seconds = Histogram(
            names.OPERATOR_PASS_SECONDS, "Length of a pass.", registry=registry, buckets=_PASS_BUCKETS
        )
        self._waits = Histogram(
            names.OPERATOR_QUEUE_SECONDS,
            "How long jobs with news waited for a pass.",
            registry=registry,
            buckets=_WAIT_BUCKETS,
        )
        self._latency = Histogram(
            names.OPERATOR_EVENT_TO_ASSIGNMENT_SECONDS,
            "From the first evidence that an attempt is over to the last assignment of the next.",
            registry=registry,
            buckets=_ASSIGNMENT_BUCKETS,
        )
        for result in RESULTS:
            self._passes.labels(result)

    def longest_running(self) -> tuple[str, float] | None:
        """The job whose pass has run longest, and for how many seconds."""
        if not self._running:
            return None
        job, since = min(self._running.items(), key=lambda item: item[1])
        return job, self._clock.now() - since

    def waited(self, seconds: float) -> None:
        """A job with news gets its pass (``Settings.on_wait``)."""
        self._waits.observe(seconds)

    @contextmanager
    def running(self, key: str) -> Iterator[None]:
        """One pass over one job."""
        self._running[key] = started = self._clock.now()
        try:
            yield
        except ConflictError:
            self._passes.labels("conflict").inc()
            raise
        except ResumableError:
            self._passes.labels("failed").inc()
            raise
        except Exception:
            self._passes.labels("error").inc()
            raise
        finally:
            del self._running[key]
            self._seconds.observe(self._clock.now() - started)

    def decided(self, observation: Observation, plan: Plan) -> None:
        """A pass has decided; told before anything is done (``Settings.on_pass``)."""
        key, attempt = observation.job.key, plan.status.attempt
        self._recoveries.saw(key, attempt)
        if not _does_something(observation, plan):
            return
        line = _line(plan)
        level = logging.DEBUG if self._lines.get(key) == line else logging.INFO
        self._lines[key] = line
        extra = {"job": key, "attempt": attempt.number, "event": "pass"}
        logger.log(level, "%s", line, extra=extra)

    def done(self, key: str, plan: Plan | None) -> None:
        """A pass has ended without an error."""
        if plan is None:
            self._passes.labels("gone").inc()
            self._recoveries.forget(key)
            self._lines.pop(key, None)
            return
        self._passes.labels("acted" if plan.actions else "idle").inc()
        taken = self._recoveries.done(key, plan, self._clock.now())
        if taken is not None:
            self._latency.observe(taken)


class Recoveries:
    """How long it takes from the evidence that an attempt is over until all of the next have assignments."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[int, float]] = {}  # job -> attempt, time of its first evidence
        self._sent: dict[str, float] = {}  # job -> when assignments of a later attempt were sent last

    def saw(self, key: str, attempt: AttemptStatus) -> None:
        """The attempt as a pass found it."""
        if attempt.evidence and self._ended.get(key, (0, 0.0))[0] != attempt.number:
            self._ended[key] = attempt.number, min(witness.at for witness in attempt.evidence)
            self._sent.pop(key, None)

    def done(self, key: str, plan: Plan, now: float) -> float | None:
        """A pass has done what it planned; the seconds of a recovery that is complete with it."""
        if key not in self._ended:
            return None
        number, since = self._ended[key]
        if any(_assigns_after(number, action) for action in plan.actions):
            self._sent[key] = now
        attempt = plan.status.attempt
        if attempt.number <= number or attempt.state != "running" or key not in self._sent:
            return None
        del self._ended[key]
        return max(0.0, self._sent.pop(key) - since)

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._ended.pop(key, None)
        self._sent.pop(key, None)


class MeteredReconciler(Reconciler):
    """A ``Reconciler`` whose passes are metered, and whose log lines know their job."""

    def __init__(self, *args: Any, meter: PassMeter, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._meter = meter

    async def step(self, key: str) -> Plan | None:
        with about(key), self._meter.running(key):
            plan = await super().step(key)
        self._meter.done(key, plan)
        return plan


def _assigns_after(number: int, action: Action) -> bool:
    return isinstance(action, SendAssignment) and action.assignment.attempt > number


def _does_something(observation: Observation, plan: Plan) -> bool:
    return bool(plan.actions) or (plan.must_write and plan.status != observation.job.status)


def _line(plan: Plan) -> str:
    """``reason [2 x CreateWorker, 1 x EmitEvent]``."""
    counts = Tally(type(action).__name__ for action in plan.actions)
    doing = ", ".join(f"{count} x {name}" for name, count in counts.items())
    reason = plan.reason or plan.status.phase
    return f"{reason} [{doing}]" if doing else reason
