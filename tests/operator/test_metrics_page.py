"""The page of many jobs is what prometheus_client itself would write of them, however much of it was kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from resumable_operator import metrics_page
from resumable_operator.decide.observation import Job
from resumable_operator.metrics import JOB_FAMILIES, jobs_page
from resumable_operator.metrics_page import Family, JobsPage
from resumable_operator.model import JobSpec, JobStatus, LedgerStatus, Workers

SPEC = JobSpec(workers=Workers(replicas=3, min=1, max=4))
LEDGER = LedgerStatus(started_at=1_000_000, settled_at=1_900_000, phases={"productive": 900_000})
STATUS = JobStatus(phase="Running", step=12_345_678, ledger=LEDGER)
FORMATS = (
    "",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
)


class Plainly(Collector):
    """The jobs as metrics of the library, all made anew."""

    def __init__(self, jobs: Iterable[Job], now: float) -> None:
        self._jobs, self._now = list(jobs), now

    def collect(self) -> Iterator[Metric]:
        for family in JOB_FAMILIES:
            metric = family.metric()
            for job in self._jobs:
                values = family.values(job, self._now)
                if isinstance(values, Mapping):
                    for word, value in values.items():
                        metric.add_metric((job.namespace, job.name, word), value)
                elif values is not None:
                    metric.add_metric((job.namespace, job.name), values)
            yield metric


def job(name: str, status: JobStatus = STATUS) -> Job:
    return Job("ns", name, f"uid-{name}", 1, SPEC, status)


def own() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("mine", "Of the process.", registry=registry).inc()
    return registry


def expected(jobs: Iterable[Job], now: float, accept: str) -> tuple[bytes, str]:
    registry = own()
    registry.register(Plainly(jobs, now))
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type


@pytest.mark.parametrize("accept", FORMATS)
async def test_it_is_what_the_library_writes(accept: str) -> None:
    """At first, when nothing has changed but the time, when one job has, is new or gone, in each format."""
    page = jobs_page()
    first, second, third = job("a"), job("b", JobStatus()), job("100%")
    changed = replace(first, status=STATUS.model_copy(update={"step": 7, "size": 2}))
    looks = [
        ([first, second], 2000.0),
        ([first, second], 3000.0),
        ([changed, second], 3000.0),
        ([third, changed], 4000.0),
        ([], 4000.0),
    ]
    for jobs, now in looks:
        assert await page.render_in_slices(own(), jobs, now, accept) == expected(jobs, now, accept)
        assert page.render(own(), jobs, now, accept) == expected(jobs, now, accept)


async def test_another_format_begins_anew() -> None:
    """What was kept of one format does not get into another."""
    page = jobs_page()
    for accept in (*FORMATS, *FORMATS):
        assert page.render(own(), [job("a")], 2000.0, accept) == expected([job("a")], 2000.0, accept)


async def test_a_stored_job_is_asked_once() -> None:
    """Values that do not move are asked for when the job was stored anew, others at each page."""
    asked: list[str] = []

    def told(name: str) -> float:
        asked.append(name)
        return math.inf

    families = (
        Family("resumable_still", "Still.", lambda _job, _now: told("still")),
        Family("resumable_moving", "Moving.", lambda _job, _now: told("moving"), moves=True),
    )
    page, same = JobsPage(families), job("a")
    for shown in (same, same, replace(same)):
        body, _ = await page.render_in_slices(own(), [shown], 1.0, "")
        assert b'resumable_moving{namespace="ns",training_job="a"} +Inf\n' in body
    assert sorted(asked) == ["moving"] * 3 + ["still"] * 2


async def test_scrapers_of_several_formats_take_nothing_from_each_other() -> None:
    """Each format is written once of a job as it is stored; only a few are kept."""
    asked: list[str] = []

    def told(_job: Job, _now: float) -> float:
        asked.append("")
        return 1.0

    page, same = JobsPage((Family("resumable_still", "Still.", told),)), job("a")
    for _ in range(5):
        for accept in FORMATS[:3]:
            page.render(own(), [same], 1.0, accept)
    assert len(asked) == 3
    for accept in (*FORMATS, FORMATS[0]):
        page.render(own(), [same], 1.0, accept)
    assert len(asked) == 5


async def test_two_scrapes_at_once_are_both_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waits its turn another begins, and a job is deleted: each has the jobs that it asked for."""
    monkeypatch.setattr(metrics_page, "SLICE_SECONDS", 0.0)
    page, many = jobs_page(), [job(f"j-{number}") for number in range(20)]
    asked = (many, many[5:], many[:1], many)
    found = await asyncio.gather(*(page.render_in_slices(own(), jobs, 2000.0, "") for jobs in asked))
    assert list(found) == [expected(jobs, 2000.0, "") for jobs in asked]


def test_what_moves_is_known() -> None:
    """A value that changes while nothing is stored would be shown as it was long ago if it were kept."""
    spent = {"user_error": (1999.0,), "infrastructure": (), "preemption": ()}
    budgets = STATUS.budgets.model_copy(update=spent)
    kept = job("a", STATUS.model_copy(update={"budgets": budgets}))
    moving = {
        family.name for family in JOB_FAMILIES if family.values(kept, 2000.0) != family.values(kept, 1e9)
    }
    assert moving == {family.name for family in JOB_FAMILIES if family.moves}
