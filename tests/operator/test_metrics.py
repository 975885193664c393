"""What Prometheus sees of jobs: values as stored, closed labels, and nothing of a job that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from resumable_operator import metrics
from resumable_operator.decide.goodput import goodput
from resumable_operator.decide.observation import Job
from resumable_operator.metrics_page import LABELS, Family
from resumable_operator.model import (
    AttemptStatus,
    BudgetStatus,
    Checkpoint,
    CheckpointStatus,
    Interruption,
    JobSpec,
    JobStatus,
    LedgerStatus,
    RecoveryStatus,
    SaveInterval,
    Workers,
)
from resumable_training.agent.metrics import WorkerMetrics
from resumable_training.contract import metrics as names

NOW = 2000.0
LEDGER = LedgerStatus(
    started_at=1_000_000,
    settled_at=1_900_000,
    open_phase="unaccounted",
    phases={"productive": 600_000, "queued": 100_000, "suspended": 100_000, "recovering": 100_000},
    rework_steps=7,
)
ENDING = Interruption(attempt=1, cause="crash", recover_seconds=5.0)
STATUS = JobStatus(
    phase="Running",
    attempt=AttemptStatus(number=4, state="running", last_progress_at=1999.0, slowest_step_seconds=2.5),
    size=2,
    replicas=3,
    step=90,
    high_water_step=100,
    step_seconds=2.0,
    checkpoint=CheckpointStatus(
        name="step-00000080.1", step=80, samples=1, at=1990.0, blocking_ms=9000, durable_ms=20_000
    ),
    interruptions=(ENDING, ENDING.model_copy(update={"recover_seconds": None})),
    interruption_counts={"crash": 2, "preempted": 1, "scale": 3},
    ledger=LEDGER,
)
SPEC = JobSpec(workers=Workers(replicas=3, min=1, max=4))
# What every job shows, as specified: metric -> type, extra label.
SPECIFIED = {
    "resumable_phase_seconds_total": ("counter", "phase"),
    "resumable_phase_gpu_seconds_total": ("counter", "phase"),
    "resumable_interruptions_total": ("counter", "cause"),
    "resumable_planned_endings_total": ("counter", "cause"),
    "resumable_recoveries_total": ("counter", ""),
    "resumable_recovery_seconds_total": ("counter", "stage"),
    "resumable_rework_steps_total": ("counter", ""),
    "resumable_resizes_total": ("counter", "direction"),
    "resumable_workers": ("gauge", "kind"),
    "resumable_step": ("gauge", ""),
    "resumable_high_water_step": ("gauge", ""),
    "resumable_running": ("gauge", ""),
    "resumable_step_slowest_rank_seconds": ("gauge", ""),
    "resumable_unsettled_seconds": ("gauge", ""),
    "resumable_last_progress_timestamp_seconds": ("gauge", ""),
    "resumable_checkpoint_last_success_timestamp_seconds": ("gauge", ""),
    "resumable_checkpoint_interval_seconds": ("gauge", ""),
    "resumable_checkpoint_recommended_interval_seconds": ("gauge", ""),
    "resumable_info": ("gauge", ""),
}
# And the agent of rank 0.
SPECIFIED_OF_AGENTS = {
    "resumable_step_seconds": "histogram",
    "resumable_data_wait_seconds_total": "counter",
    "resumable_checkpoint_blocking_seconds": "histogram",
    "resumable_checkpoint_durable_seconds": "histogram",
    "resumable_checkpoint_bytes": "gauge",
    "resumable_samples_total": "counter",
}
ENUMERATIONS = {
    names.PHASE_SECONDS_TOTAL: names.LEDGER_PHASES,
    names.PHASE_GPU_SECONDS_TOTAL: names.LEDGER_PHASES,
    names.INTERRUPTIONS_TOTAL: names.INTERRUPTION_CAUSES,
    names.PLANNED_ENDINGS_TOTAL: names.PLANNED_CAUSES,
    names.INTERRUPTION_GPU_SECONDS_TOTAL: names.INTERRUPTION_CAUSES,
    names.RECOVERY_SECONDS_TOTAL: names.RECOVERY_STAGES,
    names.RESIZES_TOTAL: names.RESIZE_DIRECTIONS,
    names.BUDGET_LEFT: names.BUDGETS,
    names.WORKERS: names.WORKER_KINDS,
}
# Names that tests outside of this file, dashboards and rules rely on.
OF_JOBS = {
    value for name, value in vars(names).items() if name.isupper() and str(value).startswith("resumable_")
}


def job(name: str = "train", status: JobStatus = STATUS, **spec: Any) -> Job:
    return Job("ns", name, f"uid-{name}", 1, SPEC.model_copy(update=spec), status)


def samples(*jobs: Job, now: float = NOW) -> dict[str, dict[tuple[str, ...], float]]:
    """name -> (job, extra label) -> value, as scraped."""
    body, _ = metrics.render(metrics.own_registry(), jobs, now, "text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            key = tuple(labels.pop(name, "") for name in LABELS[1:]) + tuple(labels.values())
            found.setdefault(sample.name, {})[tuple(part for part in key if part != "ns")] = sample.value
    return found


def of_one(*, now: float = NOW, **changes: Any) -> dict[str, float]:
    """The metrics without an extra label of a job whose status is changed like this."""
    seen = samples(job(status=STATUS.model_copy(update=changes)), now=now)
    return {name: values[("train",)] for name, values in seen.items() if ("train",) in values}


def test_plain_values() -> None:
    """One number each, as in the status; times are timestamps."""
    expected = {
        names.INFO: 1.0,
        names.RUNNING: 1.0,
        names.SIZE: 2.0,
        names.STEP: 90.0,
        names.HIGH_WATER_STEP: 100.0,
        names.ATTEMPTS_TOTAL: 4.0,
        names.REWORK_STEPS_TOTAL: 7.0,
        names.LAST_PROGRESS_TIMESTAMP_SECONDS: 1999.0,
        names.CHECKPOINT_LAST_SUCCESS_TIMESTAMP_SECONDS: 1990.0,
        names.UNSETTLED_SECONDS: 100.0,
        names.STEP_SLOWEST_RANK_SECONDS: 2.5,
    }
    seen = of_one()
    assert {name: seen[name] for name in expected} == expected


def test_goodput_is_that_of_the_report() -> None:
    """The ratio is the one that the status and the report show."""
    assert of_one()[names.GOODPUT_RATIO] == goodput(LEDGER, 2_000_000).goodput


def test_phases_of_the_ledger() -> None:
    """Every phase has a counter from the start on, in seconds, with settled time only."""
    seen = samples(job())[names.PHASE_SECONDS_TOTAL]
    assert set(seen) == {("train", phase) for phase in names.LEDGER_PHASES}
    assert seen["train", "productive"] == 600.0
    assert sum(seen.values()) == 900.0


def test_endings_by_cause() -> None:
    """Unplanned and planned endings are counted apart, every cause from the start on."""
    seen = samples(job())
    unplanned, planned = seen[names.INTERRUPTIONS_TOTAL], seen[names.PLANNED_ENDINGS_TOTAL]
    assert set(unplanned) == {("train", cause) for cause in names.INTERRUPTION_CAUSES}
    assert {key[1]: value for key, value in unplanned.items() if value} == {"crash": 2.0, "preempted": 1.0}
    assert {key[1]: value for key, value in planned.items()} == {
        cause: 3.0 if cause == "scale" else 0.0 for cause in names.PLANNED_CAUSES
    }


@pytest.mark.parametrize(("name", "words"), ENUMERATIONS.items(), ids=ENUMERATIONS)
def test_every_word_is_there_from_0_on(name: str, words: tuple[str, ...]) -> None:
    """A job that has just begun has all series that it will ever have of this metric."""
    seen = samples(job(status=JobStatus()))[name]
    assert set(seen) == {("train", word) for word in words}
    if name.endswith("_total"):
        assert set(seen.values()) == {0.0}


def test_gpu_time_recoveries_and_resizes() -> None:
    """In seconds, as counted in the status."""
    ledger = LEDGER.model_copy(update={"gpus": 16, "gpu_phases": {"productive": 9_600_000}})
    recovery = RecoveryStatus(stage_ms={"detect": 1500, "warmup": 250}, since={"detect": 1500})
    seen = samples(
        job(status=STATUS.model_copy(update={"ledger": ledger, "recovery": recovery, "resizes": {"grow": 2}}))
    )
    assert seen[names.PHASE_GPU_SECONDS_TOTAL]["train", "productive"] == 9600.0
    assert seen[names.RECOVERY_SECONDS_TOTAL]["train", "detect"] == 1.5
    assert seen[names.RECOVERY_SECONDS_TOTAL]["train", "warmup"] == 0.25
    assert seen[names.RESIZES_TOTAL]["train", "grow"] == 2.0


def test_budgets_left() -> None:
    """How many more endings each budget bears, counted in its window; never below 0."""
    spent = BudgetStatus(user_error=(NOW - 10, NOW - 20), infrastructure=(NOW - 1e6,), without_progress=4)
    seen = samples(job(status=STATUS.model_copy(update={"budgets": spent})))[names.BUDGET_LEFT]
    assert {key[1]: left for key, left in seen.items()} == {
        "user_error": 1.0,
        "infrastructure": 100.0,
        "preemption": 1000.0,
        "without_progress": 0.0,
    }


def test_recoveries() -> None:
    """Interruptions after which training went on: all but the one that is still being recovered from."""
    assert of_one()[names.RECOVERIES_TOTAL] == 2.0


def test_phase_is_a_state_set() -> None:
    """Exactly one phase is 1."""
    seen = samples(job())[names.JOB_PHASE]
    assert [key[1] for key, value in seen.items() if value == 1.0] == ["Running"]
    assert len(seen) == 8


def test_workers() -> None:
    """Wanted, there, and the limits."""
    seen = samples(job())[names.WORKERS]
    assert [seen["train", kind] for kind in names.WORKER_KINDS] == [3.0, 3.0, 1.0, 4.0]


INTERVALS = {
    "by seconds": (SaveInterval(seconds=60.0), 60.0),
    "by steps": (SaveInterval(steps=10), 20.0),
    "whichever is first": (SaveInterval(steps=10, seconds=5.0), 5.0),
}


@pytest.mark.parametrize(("interval", "seconds"), INTERVALS.values(), ids=INTERVALS.keys())
def test_interval_as_set(interval: SaveInterval, seconds: float) -> None:
    """The interval of the spec, in seconds."""
    seen = samples(job(checkpoint=Checkpoint(interval=interval)))
    assert seen[names.CHECKPOINT_INTERVAL_SECONDS]["train",] == seconds


def test_automatic_interval_is_the_recommended_one() -> None:
    """Daly's, but never below what a save needs to become durable."""
    seen = of_one()
    assert seen[names.CHECKPOINT_INTERVAL_SECONDS] == seen[names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS]
    slow = STATUS.checkpoint.model_copy(update={"durable_ms": 10_000_000})  # type: ignore[union-attr]
    assert of_one(checkpoint=slow)[names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS] == 10_000.0


def test_the_library_has_the_last_word_on_the_automatic_interval() -> None:
    """It knows the mean cost of a save and how long nothing has happened; what it told is what is shown."""
    told = STATUS.checkpoint.model_copy(update={"interval_seconds": 77.0})  # type: ignore[union-attr]
    seen = of_one(checkpoint=told)
    assert seen[names.CHECKPOINT_INTERVAL_SECONDS] == seen[names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS]
    assert seen[names.CHECKPOINT_INTERVAL_SECONDS] == 77.0


def test_what_is_not_known_is_not_exported() -> None:
    """A new job has no checkpoint, no progress and no goodput: no series instead of a zero that lies."""
    seen = samples(job(status=JobStatus()))
    unknown = (
        names.GOODPUT_RATIO,
        names.LAST_PROGRESS_TIMESTAMP_SECONDS,
        names.CHECKPOINT_LAST_SUCCESS_TIMESTAMP_SECONDS,
        names.CHECKPOINT_INTERVAL_SECONDS,
        names.CHECKPOINT_RECOMMENDED_INTERVAL_SECONDS,
    )
    assert [name for name in unknown if name in seen] == []
    assert seen[names.UNSETTLED_SECONDS] == {("train",): 0.0}


def test_slowest_rank_of_an_attempt_that_runs() -> None:
    """One that has ended has none, and neither has one that has told no step."""
    ended = STATUS.attempt.model_copy(update={"state": "ended"})
    fresh = STATUS.attempt.model_copy(update={"slowest_step_seconds": 0.0})
    for attempt in (ended, fresh):
        assert names.STEP_SLOWEST_RANK_SECONDS not in of_one(attempt=attempt)


def test_each_job_is_on_the_page_of_its_own_operator() -> None:
    """One that another looks after is left to that one; so are those it has finished, as long as it is heard
    of at any job."""

    def of(operator: str, at: float | None, phase: str = "Running") -> Job:
        changes = {"operator": operator, "operator_at": at, "phase": phase}
        return job(f"{operator or 'new'}-{phase}".lower(), STATUS.model_copy(update=changes))

    new, own, before = of("", None), of("own", NOW - 1000), of("previous", NOW)
    theirs, finished = of("other", NOW - 10), of("other", NOW - 1e6, "Succeeded")
    mine = [new, own, before]
    operators = ("own", "previous")
    assert metrics.looked_after([*mine, theirs, finished], operators, NOW) == mine
    assert metrics.looked_after([*mine, finished], operators, NOW) == [*mine, finished], "it has gone"
    gone = of("other", NOW - 200)
    assert metrics.looked_after([*mine, gone, finished], operators, NOW) == [*mine, gone, finished]
    assert metrics.looked_after([*mine, theirs], (), NOW) == [*mine, theirs], "there can be no other"


def test_finished_job_waits_for_nothing() -> None:
    """The ledger of a job that is over does not grow, nor does its goodput fade."""
    soon, later = (of_one(phase="Failed", now=NOW + seconds) for seconds in (0.0, 1e6))
    assert soon[names.UNSETTLED_SECONDS] == later[names.UNSETTLED_SECONDS] == 0.0
    assert soon[names.GOODPUT_RATIO] == later[names.GOODPUT_RATIO]


def test_counters_show_only_what_is_stored() -> None:
    """As time goes by without a write no counter moves, so that a restart cannot set one back."""
    early, late = samples(job()), samples(job(), now=NOW + 1000.0)
    moved = {name for name, values in early.items() if name in OF_JOBS and values != late[name]}
    assert moved == {names.UNSETTLED_SECONDS, names.GOODPUT_RATIO}


def test_series_go_with_their_job() -> None:
    """A deleted job leaves no series."""
    assert any(key[:1] == ("other",) for values in samples(job(), job("other")).values() for key in values)
    assert not any(key[:1] == ("other",) for values in samples(job()).values() for key in values)


def test_labels_are_few_and_closed() -> None:
    """At most 100 series for a job; its labels are its name and one word of a closed list."""
    busy = STATUS.model_copy(update={"reason": "worker train-0-1 failed"})
    body, _ = metrics.render(metrics.own_registry(), [job(status=busy)], NOW, "text/plain")
    series = [line for line in body.decode().splitlines() if 'training_job="train"' in line]
    assert 0 < len(series) <= 100
    found = {name for line in series for name in re.findall(r"(\w+)=", line)}
    extra = {"phase", "cause", "kind", "stage", "direction", "budget"}
    assert found == {"namespace", "training_job"} | extra


def test_what_is_specified_is_exported() -> None:
    """Names, types and extra labels are those of the specification."""
    page, _ = metrics.render(metrics.own_registry(), [job()], NOW, "text/plain")
    kinds = dict(re.findall(r"^# TYPE (resumable_\w+) (\w+)$", page.decode(), re.MULTILINE))
    extra = {family.name: family.label for family in metrics.JOB_FAMILIES}
    assert {name: (kinds[name], extra[name]) for name in SPECIFIED} == SPECIFIED
    agents = WorkerMetrics("ns/train").render(True)
    told = dict(re.findall(r"^# TYPE (\S+) (\w+)$", agents, re.MULTILINE))
    assert {name: told[name] for name in SPECIFIED_OF_AGENTS} == SPECIFIED_OF_AGENTS


def _described(families: Iterable[Family]) -> set[str]:
    return {family.name for family in families}


def test_names_are_those_of_the_contract() -> None:
    """Every metric of jobs is a name of the contract, and counters are called so."""
    assert _described(metrics.JOB_FAMILIES) <= OF_JOBS
    body, _ = metrics.render(metrics.own_registry(), [job()], NOW, "text/plain")
    kinds = dict(re.findall(r"^# TYPE (resumable_\w+) (\w+)$", body.decode(), re.MULTILINE))
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        name for name in kinds if name.endswith("_total")
    }


def test_the_process_about_itself() -> None:
    """Queue, agents, comparisons and requests are asked for when scraped."""
    requests = {("get", "pods", 200): 3, ("create", "pods", 0): 1}
    registry, connected = metrics.own_registry(), [5]
    facts = metrics.Facts(lambda: 2, lambda: connected[0], lambda: 1234.0, requests)
    registry.register(metrics.FactsCollector(facts))
    connected[0] = 6
    value = registry.get_sample_value
    assert value(names.OPERATOR_QUEUE_LENGTH) == 2.0
    assert value(names.OPERATOR_AGENTS_CONNECTED) == 6.0
    assert value(names.OPERATOR_RELIST_TIMESTAMP_SECONDS) == 1234.0
    labels = {"verb": "create", "resource": "pods", "code": "0"}
    assert value(names.OPERATOR_API_REQUESTS_TOTAL, labels) == 1.0


def test_formats() -> None:
    """Prometheus' own format by default, OpenMetrics when asked for."""
    plain = metrics.render(metrics.own_registry(), [job()], NOW, "")
    modern = metrics.render(metrics.own_registry(), [job()], NOW, "application/openmetrics-text")
    assert plain[1].startswith("text/plain")
    assert modern[1].startswith("application/openmetrics-text")
    assert modern[0].endswith(b"# EOF\n")
    assert all(b"_created" not in body for body, _ in (plain, modern))


def test_every_metric_is_documented() -> None:
    """docs/metrics.md names what operator and agents export, and nothing else."""
    of_process = {str(value) for name, value in vars(names).items() if name.startswith("OPERATOR_")}
    of_agents = set(re.findall(r"^# TYPE (\S+)", WorkerMetrics("ns/train").render(True), re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `resumable_")]
    documented = {name for row in rows for name in re.findall(r"`(resumable_\w+)`", row)}
    assert documented == _described(metrics.JOB_FAMILIES) | of_process | of_agents
