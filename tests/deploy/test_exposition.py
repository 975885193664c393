"""What operator and agents show is what Prometheus' own check wants to see."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from resumable_operator import metrics
from resumable_operator.decide.observation import Job
from resumable_operator.model import JobSpec, JobStatus, LedgerStatus, Workers
from resumable_training.agent.metrics import WorkerMetrics
from resumable_training.contract import events

Promtool = Callable[..., subprocess.CompletedProcess[str]]


def of_operator() -> str:
    ledger = LedgerStatus(started_at=1000, settled_at=2000, phases={"productive": 1000}, gpus=8)
    status = JobStatus(phase="Running", ledger=ledger)
    job = Job("ns", "train", "uid", 1, JobSpec(workers=Workers(replicas=1)), status)
    registry = metrics.own_registry()
    registry.register(metrics.FactsCollector(metrics.Facts(lambda: 0, lambda: 1, lambda: 5.0, {})))
    return metrics.render(registry, [job], 3.0, "text/plain")[0].decode()


def of_agent() -> str:
    worker = WorkerMetrics("ns/train")
    worker.fold(events.CHECKPOINT, 1, {"rank": 0, "bytes": 10, "blocking_ms": 5, "durable_ms": 7})
    return worker.render(True)


PAGES = {"operator": of_operator, "agent": of_agent, "both as one": lambda: of_operator() + of_agent()}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_prometheus_has_nothing_to_say(promtool: Promtool, page: Callable[[], str]) -> None:
    """`promtool check metrics`: names, types, help and units."""
    checked = promtool("check", "metrics", input=page())
    assert (checked.returncode, checked.stdout) == (0, "")
