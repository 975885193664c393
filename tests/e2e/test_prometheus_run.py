"""A real run under a real Prometheus: every panel has data, goodput is the ledger's, a hang raises the alarm.

Ranks are fakes, so that a test takes seconds; agents, ledger, rules and Prometheus are real.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import monitoring
import pytest
import yaml
from local_run import FAKE_RANK, LocalRun
from monitoring import AGENT_METRICS, OF_OPERATOR, PanelQuery, hurried

from bed.fixtures import StartPrometheus
from bed.prometheus import HOST, Prometheus
from resumable_operator.decide.goodput import Goodput, goodput

NAMESPACE, JOB = "local", "train"
J = f'{{namespace="{NAMESPACE}", training_job="{JOB}"}}'
RUN = "namespace_training_job"
LAST_STEP = 200  # there the ranks wait: nothing is credited any more, so that two readers see the same
DATA_SECONDS = 20.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with LocalRun(tmp_path) as run:
        yield run


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def job_yaml(directory: Path, *fake: str) -> Path:
    """Two workers of one GPU each, as asked for in Kubernetes; one is enough to go on."""
    container = {
        "name": "worker",
        "image": "none",
        "command": [sys.executable, str(FAKE_RANK), *fake],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {
        "workers": {"replicas": 2, "min": 1, "max": 2},
        "checkpoint": {"interval": {"steps": 20}, "directory": {"path": str(directory / "store")}},
        "recovery": {"growCooldownSeconds": 0.5, "shrinkAfterSeconds": 0.5},
        "template": {"spec": {"containers": [container]}},
    }
    document = {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "metadata": {"name": JOB},
        "spec": spec,
    }
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def settled(run: LocalRun) -> Goodput:
    """From the ledger as it is stored."""
    ledger = run.status().ledger
    return goodput(ledger, ledger.settled_at)


def until_recorded(run: LocalRun, server: Prometheus, expression: str, wanted: float) -> None:
    """Until Prometheus has this number, within 1 %."""

    seen: list[float | None] = [None]

    def there() -> bool:
        seen[0] = server.value(expression)
        return seen[0] is not None and math.isclose(seen[0], wanted, rel_tol=0.01)

    try:
        run.wait(there, expression)
    except AssertionError as error:
        raise AssertionError(f"{expression} is {seen[0]}, not {wanted}; {error}") from error


def has_data(server: Prometheus, query: PanelQuery) -> bool:
    return any(math.isfinite(value) for _, value in server.query(query.filled(NAMESPACE, JOB)))


def test_every_panel_has_data_and_goodput_is_the_ledgers(
    run: LocalRun,
    tmp_path: Path,
    prometheus: StartPrometheus,
    promtool: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """A run that lost a rank, then a worker, and grew back: all that is drawn has data, and is true."""
    port = free_port()
    server = prometheus(hurried(tmp_path), every="200ms")  # sees the counters while they are 0
    server.scrape({"rtj": [f"{HOST}:{port}"]})
    fake = ("--steps", str(LAST_STEP + 50), "--step-seconds", "0.05", "--checkpoint-every", "20")
    job = job_yaml(tmp_path, *fake, "--wait-at", str(LAST_STEP))
    run.start("--metrics-port", str(port), str(job))
    run.until_step(30, size=2)
    run.fault("kill-rank", "--rank", "1")
    run.until(
        lambda status: status.attempt.number == 2 and status.attempt.first_step_at is not None, "recovery"
    )
    run.fault("kill-worker", "--back-after", "0.5")
    run.until_step(LAST_STEP, attempt=3, size=2)
    run.wait(
        lambda: server.value(f"sum(resumable_agent_step{J})") == LAST_STEP, "the last step to be scraped"
    )

    true = settled(run)
    assert true.goodput is not None
    assert true.runtime is not None
    for window in ("ratio", "ratio_rate1h"):
        until_recorded(run, server, f"{RUN}:resumable_goodput:{window}{J}", true.goodput)
        until_recorded(run, server, f"{RUN}:resumable_runtime_goodput:{window}{J}", true.runtime)
    ledger = run.status().ledger
    gpus = {phase: time / 1000 for phase, time in ledger.gpu_phases.items() if phase != "suspended"}
    weighted = gpus["productive"] / sum(gpus.values())
    until_recorded(run, server, "cluster:resumable_gpu_goodput:ratio_rate1d", weighted)
    assert gpus["productive"] > ledger.phases["productive"] / 1000, "two workers of one GPU, most of the time"

    waiting = [query for query in monitoring.queries() if query.panel not in OF_OPERATOR]
    deadline = time.monotonic() + DATA_SECONDS
    while (empty := _empty(server, waiting)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert empty == []
    assert server.unhealthy() == []
    page = urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10).read().decode()
    checked = promtool("check", "metrics", input=page)
    assert checked.returncode == 0, checked.stdout
    assert "resumable_recovery_seconds_total" in page
    of_job = [line for line in page.splitlines() if f'training_job="{JOB}"' in line]
    of_agent = [
        line for line in of_job if any(f"{name}_" in line or f"{name}{{" in line for name in AGENT_METRICS)
    ]
    assert len(of_job) - len(of_agent) <= 100
    assert len(of_agent) <= 70


def _empty(server: Prometheus, wanted: list[PanelQuery]) -> list[str]:
    return [str(query) for query in wanted if not has_data(server, query)]


def test_no_progress_fires_in_a_hang(run: LocalRun, tmp_path: Path, prometheus: StartPrometheus) -> None:
    """Ranks that hang raise the alarm, and ranks that train do not."""
    port = free_port()
    server = prometheus(hurried(tmp_path, seconds=3))
    server.scrape({"rtj": [f"{HOST}:{port}"]})
    hang = ("--hang-at", "60", "--only-attempt", "1", "--step-seconds", "0.05", "--steps", "100000")
    run.start("--metrics-port", str(port), str(job_yaml(tmp_path, *hang, "--checkpoint-every", "20")))
    run.until_step(20)
    assert ("NoProgress", JOB) not in server.firing()
    run.wait(lambda: ("NoProgress", JOB) in server.firing(), "NoProgress to fire")
    assert run.status().attempt.number == 1, "fired while it hung"
