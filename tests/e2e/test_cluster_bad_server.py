"""An API server that refuses, forgets, lags and falls silent, in the middle of a recovery.

The operator works through a proxy that breaks what a test says; everybody else has the real API server. Ranks
are fakes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_proxy import EXPIRED, ApiProxy
from cluster_run import JOBS, PATIENCE_SECONDS, ClusterRun, Operator, causes, step_of
from cluster_witness import Witness

from bed.api import path
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from resumable_operator.crd import crd
from resumable_training.contract.labels import GROUP, KIND, PLURAL

pytestmark = pytest.mark.timeout(300)

NEVER = ("--relist-seconds", "3600")  # what a watch does not tell stays unknown
AWAY_SECONDS = 20.0


@pytest.fixture(scope="module")
def proxy(control_plane: ControlPlane) -> Iterator[ApiProxy]:
    with ApiProxy(control_plane) as running:
        yield running


@pytest.fixture(scope="module")
def operator(
    control_plane: ControlPlane, job_kind: str, proxy: ApiProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operator]:
    """As everywhere, but behind the proxy."""
    running = Operator(control_plane, tmp_path_factory.mktemp("operator"))
    running.kubeconfig = proxy.kubeconfig(running.kubeconfig)
    try:
        yield running.start()
    finally:
        running.remove()


@pytest.fixture(autouse=True)
def mended(proxy: ApiProxy, operator: Operator) -> Iterator[None]:
    """A test begins and ends with an API server as it should be, and an operator at work."""
    yield
    proxy.mend()
    if operator.process.process.poll() is not None:
        operator.start()


def lose_second(run: ClusterRun) -> None:
    """Its pod fails, without grace."""
    os.kill(run.agent(run.members()[1]), signal.SIGKILL)


def assert_recovered_once(run: ClusterRun) -> None:
    """One pod was lost and replaced, one attempt followed, the other pod lived on."""
    status = run.until_goes_on(2, size=2)
    assert causes(status) == ["node_lost"]
    assert status.attempt.number == 2
    assert run.members() == ["train-0-1", "train-1-2"]


def suspended_job(run: ClusterRun, name: str) -> None:
    """One that needs no pods."""
    spec = {**run.spec, "suspend": True, "checkpoint": {"persistentVolumeClaim": {"claimName": name}}}
    body = {"apiVersion": JOBS, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    run.api.create(path(JOBS, PLURAL, run.namespace), body)


def test_notices_every_job(cluster_run: ClusterRun, proxy: ApiProxy) -> None:
    """A job is noticed by the watches, whether it came before, while or after they began. They alone can: one
    that they pass over stays unknown for an hour. Where they are slow to begin, jobs are many."""
    run = cluster_run.faking()
    run.operator.kill()
    made, watches = 0, proxy.watches

    def make() -> None:
        nonlocal made
        suspended_job(run, f"job-{made}")
        made += 1

    def all_noticed() -> bool:
        jobs = run.api.list(path(JOBS, PLURAL, run.namespace))
        return sum("phase" in job.get("status", {}) for job in jobs) == made

    run.operator.begin(*NEVER)
    wait_until(lambda: make() or proxy.watches >= watches + 3, 60, "jobs, pods and nodes to be watched")
    wait_until(all_noticed, PATIENCE_SECONDS, "those jobs to be noticed")
    for _ in range(5):
        make()
        wait_until(all_noticed, PATIENCE_SECONDS, "a new job to be noticed")
    run.operator.kill()
    run.operator.start()


def without_our_group(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "groups": [group for group in answer["groups"] if group["name"] != GROUP]}


def test_kind_is_not_discovered_yet(cluster_run: ClusterRun, proxy: ApiProxy) -> None:
    """An API server that serves the kind and does not list it among its kinds yet: nothing would be watched,
    so the process ends and says why, and the next one works."""
    operator = cluster_run.operator
    operator.kill()
    proxy.inject(path="^/apis(\\?|$)", change=without_our_group)
    process = operator.begin(*NEVER)
    assert process.exit_code() == 1
    assert process.lines()[-1]["event"] == "fatal"
    assert f"no watch of {PLURAL}" in process.lines()[-1]["message"]
    proxy.mend()
    operator.start()


def refuse_statuses(proxy: ApiProxy) -> None:
    """Others write first, again and again."""
    proxy.inject(method="PUT", path="/status$", status=409, times=4)


def throttle(proxy: ApiProxy) -> None:
    """Everything is throttled for a while, as the server's own flow control does."""
    proxy.inject(status=429, headers={"Retry-After": "1"}, times=20)


def fail_half(proxy: ApiProxy) -> None:
    """A server that is about to break down: errors without a meaning for everything."""
    proxy.inject(status=500, times=15)
    proxy.inject(status=503, times=15)


def lose_answers(proxy: ApiProxy) -> None:
    """What was asked was done, but nobody heard that."""
    proxy.inject(method="PUT|POST|DELETE|PATCH", lose="answer", times=6)


def lose_requests(proxy: ApiProxy) -> None:
    """Connections break before a request arrives."""
    proxy.inject(lose="request", times=20)


def be_slow(proxy: ApiProxy) -> None:
    """Every request takes a second."""
    proxy.inject(seconds=1.0)


def end_watches(proxy: ApiProxy) -> None:
    """A watch that could not keep up is ended without a word."""
    proxy.end_watches()


def expire_watches(proxy: ApiProxy) -> None:
    """Where it was is not known any more: 410."""
    proxy.end_watches(EXPIRED)


def stall_watches(proxy: ApiProxy) -> None:
    """Watches stay open and say nothing any more; the next comparison finds what they missed."""
    proxy.stall_watches()


TROUBLES: tuple[Callable[[ApiProxy], None], ...] = (
    refuse_statuses,
    throttle,
    fail_half,
    lose_answers,
    lose_requests,
    be_slow,
    end_watches,
    expire_watches,
    stall_watches,
)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_recovers_all_the_same(
    cluster_run: ClusterRun, proxy: ApiProxy, trouble: Callable[[ApiProxy], None]
) -> None:
    """A pod is lost while the API server behaves like that: still exactly one pod and one attempt follow."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(30)
        watches = proxy.watches
        trouble(proxy)
        lose_second(run)
        assert_recovered_once(run)
        assert all(fault.hits for fault in proxy.faults)
        assert proxy.faults or proxy.stalled or proxy.watches > watches
        proxy.mend()
        run.until_step(run.status().step + 20, attempt=2, size=2)
        assert run.status().attempt.number == 2


def test_server_away_for_the_operator_alone(cluster_run: ClusterRun, proxy: ApiProxy) -> None:
    """In mid-recovery nobody answers the operator: what trains goes on; then the recovery is completed."""
    run = cluster_run.faking().create()
    with Witness(run):
        run.until_step(30)
        gone = proxy.inject(lose="request")
        proxy.end_watches()
        lose_second(run)
        run.wait(lambda: gone.hits > 20, "the operator to try in vain")
        assert run.status().attempt.number == 1
        proxy.mend()
        assert_recovered_once(run)


@pytest.mark.cluster
def test_server_away_in_mid_recovery(own_plane: ControlPlane, tmp_path: Path) -> None:
    """Nobody has an API server, for longer than nodes may be silent: whoever trains does not notice, and what
    had begun is completed when it is back."""
    own_plane.define_kind(crd())
    operator = Operator(own_plane, tmp_path)
    with Nodes.start(own_plane, tmp_path / "nodes") as nodes:
        try:
            for number in range(1, 4):
                nodes.add(f"node-{number}")
            operator.start()
            _outlives_the_server(own_plane, nodes, operator)
        finally:
            operator.kill()


def _outlives_the_server(plane: ControlPlane, nodes: Nodes, operator: Operator) -> None:
    broken = ClusterRun(plane, nodes, operator, "default").faking().create()
    healthy = ClusterRun(plane, nodes, operator, "kube-public").faking().create()
    for run in (broken, healthy):
        run.until_step(30)
    before = healthy.status()
    member = next(member for member in before.attempt.members if member.first_rank == 0)
    lose_second(broken)
    broken.wait(lambda: broken.status().attempt.state != "running", "the loss to be noticed")
    plane.stop_apiserver()
    began, reached = time.monotonic(), step_of(member)
    try:
        wait_until(
            lambda: time.monotonic() > began + AWAY_SECONDS and step_of(member) > reached + 100,
            PATIENCE_SECONDS,
            "training to go on",
        )
    finally:
        plane.start_apiserver()
    if operator.process.process.poll() is not None:  # as its Deployment would
        operator.start()
    assert_recovered_once(broken)
    after = healthy.until_step(step_of(member))
    assert (after.attempt.number, after.interruptions) == (1, ())
    assert healthy.members() == [item.worker for item in before.attempt.members]
