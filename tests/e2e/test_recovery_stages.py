"""What a recovery took, by stage, is one set of numbers: in metrics, report and benchmark."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import stages
from local_run import LocalRun, rtj

from resumable_operator.model import JobStatus
from resumable_training.contract.metrics import RECOVERY_SECONDS_TOTAL, RECOVERY_STAGES

FAKE = ("--steps", "10000", "--step-seconds", "0.02", "--checkpoint-every", "10")
SERIES = re.compile(rf'^{RECOVERY_SECONDS_TOTAL}\{{.*\bstage="(\w+)".*\}} (\S+)$', re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_over(status: JobStatus) -> bool:
    return status.last_interruption is not None and status.last_interruption.stages is not None


def test_metrics_report_and_benchmark_agree(run: LocalRun) -> None:
    """A killed rank: the seconds of each stage are the same wherever they are read, to the millisecond."""
    port = free_port()
    run.start_fake("--workers", "2", "--metrics-port", str(port), fake=FAKE)
    run.until_step(15)
    run.fault("kill-rank", "--rank", "1")
    run.until(is_over, "the recovery to be over")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        exported = {stage: float(value) for stage, value in SERIES.findall(page.read().decode())}
    report = json.loads(rtj("report", str(run.directory), "--json").stdout)
    status = json.loads((run.directory / "status.json").read_text())["status"]
    booked = stages.ledger_stages(status, struck_at=0.0)

    assert booked is not None
    assert set(booked) == set(RECOVERY_STAGES)
    assert exported == pytest.approx(booked, abs=0.001)
    assert report["recoverySeconds"] == pytest.approx(booked, abs=0.001)
    (ending,) = report["endings"]
    assert ending["stages"] == pytest.approx(booked, abs=0.001)
    assert sum(booked.values()) > 0
