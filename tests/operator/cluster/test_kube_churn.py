"""Many short-lived jobs on a real API server: nothing of them is left in the operator's memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pytest
from kube_world import JOBS, Kube, claim, kube, plain_job
from prometheus_client import CollectorRegistry

from bed.api import Api, path
from bed.control_plane import ControlPlane
from resumable_operator.agents import AgentPool
from resumable_operator.clock import SystemClock
from resumable_operator.passes import MeteredReconciler, PassMeter
from resumable_operator.reconcile import Settings

pytestmark = [pytest.mark.usefixtures("job_kind"), pytest.mark.timeout(240)]

JOBS_AT_ONCE, ROUNDS = 10, 3
MOST_TASKS = 50  # those of the watches and of the reconciler, with nothing to do
ON_PURPOSE = ("_deleted", "_counts", "_spent", "requests", "_known")  # bounded; no job's state


def sizes(*owners: object) -> dict[str, int]:
    """How much the containers of these objects hold."""
    found = {}
    for owner in owners:
        for name, value in vars(owner).items():
            if isinstance(value, (dict, set, list, OrderedDict)) and name not in ON_PURPOSE:
                found[f"{type(owner).__name__}.{name}"] = len(value)
    return found


async def until(what: str, holds: Any) -> None:
    for _ in range(600):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(what)


async def a_round(api: Api, made: Kube, namespace: str, names: Iterable[str]) -> None:
    """Jobs that come, get their pods, and go."""
    where = path(*JOBS, namespace)
    for name in names:
        own = {"persistentVolumeClaim": {"claimName": "ckpt", "path": name}}
        await asyncio.to_thread(api.create, where, plain_job(name, checkpoint=own))
    keys = [f"{namespace}/{name}" for name in names]
    await until("pods", lambda: len(made.cache._pod_names) >= 2 * len(keys))
    for name in names:
        await asyncio.to_thread(api.delete, path(*JOBS, namespace, name))
    await until("no jobs", lambda: not any(made.cache.job_entry(key) for key in keys))
    await until("no pods", lambda: not made.cache._pod_names)


async def test_nothing_is_left_of_jobs_that_are_gone(control_plane: ControlPlane, namespace: str) -> None:
    """Not in the cache, the queue, the pool of agents, the meter, nor as tasks; some had the same names."""
    api = control_plane.api
    api.create(path("v1", "persistentvolumeclaims", namespace), claim())
    clock = SystemClock()
    pool, meter = AgentPool(clock), PassMeter(CollectorRegistry(), clock)
    async with kube(control_plane.kubeconfig, namespaces=(namespace,), watch=True) as made:
        reconciler = MeteredReconciler(made.cluster, pool, clock, Settings(), meter=meter)
        running = asyncio.create_task(reconciler.run())
        try:
            for number in range(ROUNDS):
                names = [f"job-{number % 2}-{index}" for index in range(JOBS_AT_ONCE)]
                await a_round(api, made, namespace, names)
                await made.cluster.relist()
                await until("idle", lambda: not reconciler.queue._processing and not len(reconciler.queue))
            owners = (made.cache, made.cluster, reconciler, reconciler._checks, reconciler.queue, pool, meter)
            left = {name: size for name, size in sizes(*owners, meter._recoveries).items() if size}
            await until("few tasks", lambda: len(asyncio.all_tasks()) < MOST_TASKS)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await pool.close()
    assert left.pop("KubeCache._listeners") == 1
    assert set(left) <= {"KubeCache._listed", "KubernetesCluster._known"}, left
