"""Prometheus metrics: what jobs' statuses say, read when scraped, and what the operator's own process counts.

Only what is stored is exported, so that values survive a restart of the operator, never run backwards, and
vanish with their job. Labels are namespace and job, plus one closed enumeration at most.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from resumable_operator.decide.assign import mtbf_seconds
from resumable_operator.decide.budget import remaining
from resumable_operator.decide.claim import hands_off_seconds
from resumable_operator.decide.goodput import goodput
from resumable_operator.decide.ledger import milliseconds, unsettled_ms
from resumable_operator.decide.observation import Job
from resumable_operator.decide.stages import gpu_time_by_cause
from resumable_operator.metrics_page import Family, JobsPage, Values
from resumable_operator.model import JobPhase
from resumable_training.contract import CONTRACT_VERSION
from resumable_training.contract import metrics as names
from resumable_training.contract.formulas import auto_interval

DISTRIBUTION = "resumable-training"
_API_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


def _phase_seconds(job: Job, _now: float) -> Values:
    return {phase: job.status.ledger.phases.get(phase, 0) / 1000 for phase in names.LEDGER_PHASES}


def _phase_gpu_seconds(job: Job, _now: float) -> Values:
    return {phase: job.status.ledger.gpu_phases.get(phase, 0) / 1000 for phase in names.LEDGER_PHASES}


def _recovery_seconds(job: Job, _now: float) -> Values:
    return {stage: job.status.recovery.stage_ms.get(stage, 0) / 1000 for stage in names.RECOVERY_STAGES}


def _interruption_gpu_seconds(job: Job, _now: float) -> Values:
    cost = gpu_time_by_cause(job.status)
    return {cause: cost.get(cause, 0) / 1000 for cause in names.INTERRUPTION_CAUSES}


def _resizes(job: Job, _now: float) -> Values:
    return {direction: job.status.resizes.get(direction, 0) for direction in names.RESIZE_DIRECTIONS}


def _budgets_left(job: Job, now: float) -> Values:
    return remaining(job.status.budgets, job.spec.recovery.budgets, now)


def _attempt_began(job: Job, _now: float) -> Values:
    return job.status.attempt.reserved_at if job.status.attempt.number else None


def _endings(causes: Iterable[str]) -> Callable[[Job, float], Values]:
    return lambda job, _now: {cause: job.status.interruption_counts.get(cause, 0) for cause in causes}


def _recoveries(job: Job, _now: float) -> Values:
    counts, endings = job.status.interruption_counts, job.status.interruptions
    open_ones = sum(not ending.planned and ending.recover_seconds is None for ending in endings)
    return max(0, sum(counts.get(cause, 0) for cause in names.INTERRUPTION_CAUSES) - open_ones)


def _phase(job: Job, _now: float) -> Values:
    return {phase: float(job.status.phase == phase) for phase in get_args(JobPhase)}


def _workers(job: Job, _now: float) -> Values:
    workers = job.spec.workers
    counts = (workers.replicas, job.status.replicas, workers.min_size, workers.max_size)
    return dict(zip(names.WORKER_KINDS, map(float, counts), strict=True))


def _goodput(job: Job, now: float) -> Values:
    return goodput(job.status.ledger, _ledger_time(job, now)).goodput if _began(job) else None


def _unsettled(job: Job, now: float) -> Values:
    return unsettled_ms(job.status.ledger, _ledger_time(job, now)) / 1000 if _began(job) else 0.0


def _ledger_time(job: Job, now: float) -> int:
    """Now, in the ledger's unit; the ledger of a job that is over does not go on."""
    over = job.status.phase in ("Succeeded", "Failed")
    return job.status.ledger.settled_at if over else milliseconds(now)


def _slowest_rank(job: Job, _now: float) -> Values:
    attempt = job.status.attempt
    return attempt.slowest_step_seconds or None if attempt.state in ("running", "draining") else None


def _began(job: Job) -> bool:
    return job.status.ledger.started_at > 0


def _saved_at(job: Job, _now: float) -> Values:
    return job.status.checkpoint.at if job.status.checkpoint else None


def _recommended_interval(job: Job, _now: float) -> float | None:
    """What the interval ``auto`` is, or would be: the library's own word, or by the same formula."""
    saved, checkpoint = job.status.checkpoint, job.spec.checkpoint
    if saved is None:
        return None
    if checkpoint.interval == "auto" and saved.interval_seconds:
        return saved.interval_seconds
    found = auto_interval(
        blocking_seconds=saved.blocking_ms / 1000,
        durable_seconds=saved.durable_ms / 1000,
        mtbf_seconds=mtbf_seconds(job.status),
        cap_seconds=checkpoint.max_interval_seconds,
    )
    return found.seconds or None


def _interval(job: Job, now: float) -> Values:
    checkpoint = job.spec.checkpoint
    interval = checkpoint.interval
    if interval == "auto":
        return _recommended_interval(job, now)
    by_steps = (interval.steps or 0) * job.status.step_seconds
    given = [seconds for seconds in (interval.seconds, by_steps, checkpoint.max_interval_seconds) if seconds]
    return min(given, default=None)


JOB_FAMILIES = (
    Family(names.INFO, "1 for each job.", lambda _job, _now: 1.0),
    Family(names.JOB_PHASE, "1 for the phase that the job is in.", _phase, "phase"),
    Family(names.RUNNING, "1 while ranks run.", lambda job, _now: float(job.status.phase == "Running")),
    Family(names.PHASE_SECONDS_TOTAL, "Where the job's time went.", _phase_seconds, "phase"),
    Family(
        names.PHASE_GPU_SECONDS_TOTAL,
        "The same for each GPU that the job had at the time.",
        _phase_gpu_seconds,
        "phase",
    ),
    Family(names.UNSETTLED_SECONDS, "Newest seconds, not yet explained.", _unsettled, moves=True),
    Family(
        names.GOODPUT_RATIO, "Productive share of the job's age without suspension.", _goodput, moves=True
    ),
    Family(
        names.INTERRUPTIONS_TOTAL,
        "Attempts ended by something that nobody planned.",
        _endings(names.INTERRUPTION_CAUSES),
        "cause",
    ),
    Family(
        names.PLANNED_ENDINGS_TOTAL, "Attempts ended on purpose.", _endings(names.PLANNED_CAUSES), "cause"
    ),
    Family(names.RECOVERIES_TOTAL, "Interruptions after which the job trained again.", _recoveries),
    Family(
        names.RECOVERY_SECONDS_TOTAL,
        "From an interruption to the first step after it.",
        _recovery_seconds,
        "stage",
    ),
    Family(
        names.INTERRUPTION_GPU_SECONDS_TOTAL,
        "GPU time that interruptions cost: recoveries, and steps done again.",
        _interruption_gpu_seconds,
        "cause",
    ),
    Family(names.RESIZES_TOTAL, "Changes of size.", _resizes, "direction"),
    Family(
        names.BUDGET_LEFT,
        "Further endings that the job may have before it is given up.",
        _budgets_left,
        "budget",
        moves=True,
    ),
    Family(
        names.REWORK_STEPS_TOTAL, "Steps done again.", lambda job, _now: float(job.status.ledger.rework_steps)
    ),
    Family(names.ATTEMPTS_TOTAL, "Attempts begun.", lambda job, _now: float(job.status.attempt.number)),
    Family(names.ATTEMPT_TIMESTAMP_SECONDS, "When the attempt began.", _attempt_began),
    Family(names.WORKERS, "Workers.", _workers, "kind"),
    Family(names.SIZE, "Workers that train.", lambda job, _now: float(job.status.size)),
    Family(names.STEP, "Newest step.", lambda job, _now: float(job.status.step)),
    Family(
        names.HIGH_WATER_STEP,
        "Highest step ever done.",
        lambda job, _now: float(job.status.high_water_step),
    ),
    Family(names.STEP_SLOWEST_RANK_SECONDS, "Recent step time of the slowest rank.", _slowest_rank),
    Family(
        names.LAST_PROGRESS_TIMESTAMP_SECONDS,
        "When a rank last reported progress.",
        lambda job, _now: job.status.attempt.last_progress_at,
    ),
    Family(
        names.CHECKPOINT_LAST_SUCCESS_TIMESTAMP_SECONDS,
        "When the newest checkpoint was committed.",
        _saved_at,
    ),
    Family(names.CHECKPOINT_INTERVAL_SECONDS, "Time between saves, as set.", _interval),
    Family(
        names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS,
        "Time between saves by Daly's formula for the costs measured.",
        _recommended_interval,
    ),
)


@dataclass(frozen=True)
class Facts:
    """What the process knows of itself, asked when scraped."""

    queue_length: Callable[[], int]
    agents_connected: Callable[[], int]
    relisted_at: Callable[[], float | None]
    requests: Mapping[tuple[str, str, int], int]  # (verb, resource, code) -> number; 0: no answer


class FactsCollector(Collector):
    """``Facts`` as metrics."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield GaugeMetricFamily(
            names.OPERATOR_QUEUE_LENGTH, "Jobs waiting for a pass.", value=facts.queue_length()
        )
        yield GaugeMetricFamily(
            names.OPERATOR_AGENTS_CONNECTED,
            "Agents whose event stream is open.",
            value=facts.agents_connected(),
        )
        relisted = GaugeMetricFamily(
            names.OPERATOR_RELIST_TIMESTAMP_SECONDS, "Last successful comparison with the API server."
        )
        at = facts.relisted_at()
        if at is not None:
            relisted.add_metric((), at)
        yield relisted
        requests = CounterMetricFamily(
            names.OPERATOR_API_REQUESTS_TOTAL,
            "Requests to the API server, without watches; code 0: no answer.",
            labels=("verb", "resource", "code"),
        )
        for (verb, resource, code), count in list(facts.requests.items()):
            requests.add_metric((verb, resource, str(code)), count)
        yield requests


def own_registry() -> CollectorRegistry:
    """A registry for the process's own metrics, with its memory, CPU time and garbage collection."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    build = {"version": version(DISTRIBUTION), "contract_version": str(CONTRACT_VERSION)}
    labels = (*build, "python_version")
    info = Gauge(names.OPERATOR_BUILD_INFO, "1; its labels say what runs.", labels, registry=registry)
    info.labels(*build.values(), platform.python_version()).set(1)
    return registry


def api_seconds(registry: CollectorRegistry) -> Callable[[str, float], None]:
    """A histogram of the API server's answers in the registry; to be told verb and seconds of each."""
    histogram = Histogram(
        names.OPERATOR_API_REQUEST_SECONDS,
        "From a request to the API server to its answer, without watches.",
        ["verb"],
        registry=registry,
        buckets=_API_BUCKETS,
    )
    return lambda verb, seconds: histogram.labels(verb).observe(seconds)


def jobs_page() -> JobsPage:
    """A page of these metrics, to be rendered again and again."""
    return JobsPage(JOB_FAMILIES)


def render(own: CollectorRegistry, jobs: Iterable[Job], now: float, accept: str) -> tuple[bytes, str]:
    """Everything, once, in the format that ``accept`` asks for, with its content type."""
    return jobs_page().render(own, jobs, now, accept)


def looked_after(jobs: Iterable[Job], operators: tuple[str, ...], now: float) -> list[Job]:
    """Those that no other operator exports: each job is on one page only, or sums over all would be wrong.

    An operator says so at jobs that it works on; of finished or suspended ones it does not. So what names
    another is left to it as long as that one speaks at any job.

    Args:
        operators: names of this operator, as of ``hands_off_seconds``.
    """
    seen = list(jobs)
    others = {job.status.operator for job in seen if hands_off_seconds(job.status, operators, now)}
    return [job for job in seen if job.status.operator not in others]
