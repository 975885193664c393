"""Fixtures of the end-to-end tests: on one machine, and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cluster_run import ClusterRun, Operator
from training_run import TrainingRun

from bed.api import ApiError
from bed.control_plane import ControlPlane
from bed.nodes import Nodes, NodesError
from bed.processes import ComponentDied

Undisturbed = Callable[..., dict[str, Any]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test on the cluster shows its job, its pods, and what the operator said."""
    report = yield
    run = getattr(item, "funcargs", {}).get("cluster_run")
    if run is not None and report.when == "call" and report.failed:
        report.sections.append(("the job on the cluster", _told(run)))
    return report


def _told(run: ClusterRun) -> str:
    """What can be told of it: its cluster may be what has failed."""
    try:
        return run.text()
    except (ComponentDied, NodesError, ApiError, OSError) as error:
        return f"nothing can be told of it: {error}"


@pytest.fixture
def training(tmp_path: Path) -> Iterator[TrainingRun]:
    """A run directory of its own; at the end nothing of it may still run."""
    with TrainingRun(tmp_path) as run:
        yield run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """``undisturbed(workers, *options)``: result of that training when nothing happens to it; made once."""

    @cache
    def train(workers: int, *tiny: str, steps: int = 40) -> dict[str, Any]:
        with TrainingRun(tmp_path_factory.mktemp("undisturbed")) as run:
            run.start_tiny("--workers", str(workers), steps=steps, tiny=tiny)
            assert run.finish().attempt.number == 1
            run.check(steps)
            return run.result()

    return train


@pytest.fixture(scope="module")
def operator(
    control_plane: ControlPlane, job_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """An operator for all tests of a file; one that kills it starts it again."""
    running = Operator(control_plane, tmp_path_factory.mktemp("operator"))
    try:
        yield running.start()
    finally:
        running.remove()


@pytest.fixture
def cluster_run(
    control_plane: ControlPlane, nodes: Nodes, operator: Operator, namespace: str
) -> Iterator[ClusterRun]:
    """A job on the cluster; at the end it is deleted, and no process of it may be left."""
    run = ClusterRun(control_plane, nodes, operator, namespace)
    yield run
    run.remove()
