"""The Kubernetes cluster passes the conformance suite: real API server and watches, pods as processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from conformance import AdoptionConformance, ClusterConformance, eventually
from kube_world import IMAGE, Kube, claim, kube

from bed.api import path
from bed.control_plane import ControlPlane
from bed.fixtures import OWN, AddNode
from bed.nodes import Nodes
from resumable_operator.decide.observation import Job
from resumable_operator.model import JobSpec

JOBS = ("resumable.dev/v1alpha1", "resumabletrainingjobs")
NAME = "fake"


class KubernetesWorld:
    """A namespace of the bed and a node of its own as a world of the conformance suite."""

    def __init__(self, made: Kube, plane: ControlPlane, nodes: Nodes, namespace: str, node: str) -> None:
        self.cluster = made.cluster
        self._made, self._plane, self._nodes = made, plane, nodes
        self._namespace, self._node = namespace, node

    async def submit(self, spec: JobSpec) -> Job:
        """As a user would, who has to name an image and a claim."""
        plain = spec.plain()
        pods = plain["template"]["spec"]
        pods["nodeSelector"] = {OWN: self._node}
        pods["tolerations"] = [{"key": OWN, "operator": "Exists"}]
        for container in pods["containers"]:
            container.setdefault("image", IMAGE)
        plain["checkpoint"] = {"persistentVolumeClaim": {"claimName": "ckpt"}}
        body = {
            "apiVersion": JOBS[0],
            "kind": "ResumableTrainingJob",
            "metadata": {"name": NAME},
            "spec": plain,
        }
        api = self._plane.api
        await asyncio.to_thread(
            api.create, path("v1", "persistentvolumeclaims", self._namespace), claim("ckpt")
        )
        await asyncio.to_thread(api.create, path(*JOBS, self._namespace), body)
        found: Job = await eventually(self._job, "the job to be seen")
        return found

    async def kill_agent(self, worker: str) -> None:
        pids = await asyncio.to_thread(self._nodes.pids, self._namespace, worker, "worker")
        os.kill(pids[0], signal.SIGKILL)

    async def kill_rank(self, worker: str) -> None:
        pids = await asyncio.to_thread(self._nodes.pids, self._namespace, worker, "worker")
        [rank] = [pid for pid in pids if _is_rank(pid)]
        os.kill(rank, signal.SIGKILL)

    async def lose_machine(self, worker: str) -> None:
        await asyncio.to_thread(self._nodes.die, self._node)

    async def _job(self) -> Job | None:
        for task in self._made.tasks:
            if task.done():
                task.result()
        return await self.cluster.job(f"{self._namespace}/{NAME}")


def _is_rank(pid: int) -> bool:
    """It was started with RANK, and is not what such a process has started."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"\0RANK=" in b"\0" + environment


@pytest.fixture
async def world(
    control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, namespace: str, job_kind: str
) -> AsyncIterator[KubernetesWorld]:
    node = await asyncio.to_thread(add_node)
    async with kube(control_plane.kubeconfig, watch=True) as made:
        yield KubernetesWorld(made, control_plane, nodes, namespace, node)


class TestConformance(ClusterConformance):
    """All of it."""


class TestAdoption(AdoptionConformance):
    """All of it, by operators limited to the namespace: others' jobs have no part in their moments."""

    @pytest.fixture
    async def world(
        self, control_plane: ControlPlane, nodes: Nodes, add_node: AddNode, namespace: str, job_kind: str
    ) -> AsyncIterator[KubernetesWorld]:
        node = await asyncio.to_thread(add_node)
        async with kube(control_plane.kubeconfig, namespaces=(namespace,), watch=True) as made:
            yield KubernetesWorld(made, control_plane, nodes, namespace, node)
