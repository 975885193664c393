"""What a real cluster shows of pods and nodes that are taken away, as the operator's watches bring it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from conformance import eventually, listens, spec, worker_in
from kube_world import KubernetesWorld, kube

from bed.api import path
from bed.control_plane import ControlPlane
from bed.fixtures import OWN
from bed.nodes import Nodes
from resumable_operator.decide.observation import Job, Node, Worker
from resumable_operator.model import AttemptStatus, JobSpec, JobStatus, MemberStatus, parse_spec

NAME = "fake-0-1"


class Scene:
    """One worker that runs and is a member of an attempt, on a node that may be harmed."""

    def __init__(self, world: KubernetesWorld, plane: ControlPlane, nodes: Nodes, namespace: str) -> None:
        self.world, self.plane, self.nodes = world, plane, nodes
        self.namespace, self.node = namespace, world.node
        self.job: Job | None = None

    async def open(self) -> None:
        """Until the worker runs and is reserved as a member."""
        job = await self.world.submit(changed(containers=[_asking_for_cpu()]))
        await self.world.cluster.create_worker(job, NAME, 0, 1)
        worker = await worker_in(self.world, job, NAME, "running")
        await eventually(lambda: listens(worker), "its agent, which would not hear a signal before")
        member = MemberStatus(
            worker=NAME,
            place=0,
            incarnation=1,
            address=worker.address,
            agent_port=worker.agent_port,
            first_rank=0,
            ranks=1,
        )
        attempt = AttemptStatus(number=1, members=(member,), state="running")
        self.job = await self.world.cluster.write_status(job, JobStatus(attempt=attempt))

    async def api(self, method: str, where: str, *arguments: Any, **query: Any) -> Any:
        return await asyncio.to_thread(getattr(self.plane.api, method), where, *arguments, **query)

    async def remove_node(self) -> None:
        """Its machine is off and its object deleted."""
        await asyncio.to_thread(self.nodes.die, self.node)
        await self.api("delete", path("v1", "nodes", name=self.node))

    @property
    def pod(self) -> str:
        return path("v1", "pods", self.namespace, NAME)

    async def worker(self, wanted: Callable[[Worker], bool], what: str) -> Worker:
        job = self.job
        assert job is not None

        async def find() -> Worker | None:
            found = [worker for worker in await self.world.cluster.workers(job) if worker.name == NAME]
            return found[0] if found and wanted(found[0]) else None

        found: Worker = await eventually(find, what)
        return found

    async def seen_node(self, wanted: Callable[[Node], bool], what: str) -> Node:
        job = self.job
        assert job is not None

        async def find() -> Node | None:
            node = (await self.world.cluster.nodes(job)).get(self.node)
            return node if node is not None and wanted(node) else None

        found: Node = await eventually(find, what)
        return found


@pytest.fixture
async def scene(world: KubernetesWorld, control_plane: ControlPlane, nodes: Nodes, namespace: str) -> Scene:
    scene = Scene(world, control_plane, nodes, namespace)
    await scene.open()
    return scene


def is_gone(worker: Worker) -> bool:
    return worker.phase == "failed" and worker.deleting


def cause(worker: Worker) -> tuple[str, str] | None:
    return (worker.disruption.cause, worker.disruption.reason) if worker.disruption else None


async def test_eviction(scene: Scene) -> None:
    """Evicted by the API: the pod is gone in a moment, and why is still seen."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": NAME}}
    await scene.api("create", f"{scene.pod}/eviction", body)
    worker = await scene.worker(is_gone, "the worker to go")
    assert cause(worker) == ("evicted", "EvictionByEvictionAPI")


async def test_plain_deletion(scene: Scene) -> None:
    """Deleted by somebody: no disruption, but seen as deleted, not as succeeded."""
    await scene.api("delete", scene.pod)
    worker = await scene.worker(is_gone, "the worker to go")
    assert cause(worker) is None
    assert worker.deleting_since is not None


async def test_preemption(scene: Scene) -> None:
    """The scheduler takes the place for a pod of higher priority: preempted."""
    name = f"high-{scene.namespace}"
    classes = "priorityclasses"
    body = {"metadata": {"name": name}, "value": 1000, "globalDefault": False}
    await scene.api("create", path("scheduling.k8s.io/v1", classes), body)
    try:
        await _take_the_node(scene, name)
        worker = await scene.worker(is_gone, "the worker to go")
    finally:
        await scene.api("delete", path("scheduling.k8s.io/v1", classes, name=name))
    assert cause(worker) == ("preempted", "PreemptionByScheduler")


async def _take_the_node(scene: Scene, priority_class: str) -> None:
    """A pod of that class for which there is no room beside the worker."""
    body = {
        "metadata": {"name": "high"},
        "spec": {
            "priorityClassName": priority_class,
            "nodeSelector": {OWN: scene.node},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "containers": [
                {
                    "name": "a",
                    "image": "bed/python",
                    "command": ["sleep", "1000"],
                    "resources": {"requests": {"cpu": "8"}},
                }
            ],
        },
    }
    await scene.api("create", path("v1", "pods", scene.namespace), body)


async def test_node_shutdown(scene: Scene) -> None:
    """A node that shuts down gracefully: preempted, whatever the agent's exit code."""
    await asyncio.to_thread(scene.nodes.shutdown, scene.node, 20.0)
    worker = await scene.worker(lambda worker: worker.phase == "failed", "the worker to end")
    assert cause(worker) == ("preempted", "TerminationByKubelet")


async def test_eviction_by_the_kubelet(scene: Scene) -> None:
    """A node that is short of memory: evicted."""
    await asyncio.to_thread(scene.nodes.evict, scene.namespace, NAME)
    worker = await scene.worker(lambda worker: worker.phase == "failed", "the worker to end")
    assert cause(worker) == ("evicted", "TerminationByKubelet")


async def test_out_of_memory(scene: Scene) -> None:
    """OOMKilled is a reason, not a disruption."""
    await asyncio.to_thread(scene.nodes.oom, scene.namespace, NAME, "worker")
    worker = await scene.worker(lambda worker: worker.phase == "failed", "the worker to end")
    assert (worker.reason, worker.exit_code, worker.disruption) == ("OOMKilled", 137, None)


async def test_spot_notice(scene: Scene) -> None:
    """The notice gives the node a deadline while the worker runs on."""
    before = time.time()
    await asyncio.to_thread(scene.nodes.spot_notice, scene.node, "aws", 600.0)
    node = await scene.seen_node(lambda node: node.notice_deadline is not None, "the notice")
    assert node.notice_deadline is not None
    assert before + 110 < node.notice_deadline < time.time() + 130
    worker = await scene.worker(lambda worker: worker.phase == "running", "the worker")
    assert worker.disruption is None


async def test_cordon(scene: Scene) -> None:
    """A cordoned node is shown as that, and as ready."""
    await scene.api("patch", path("v1", "nodes", name=scene.node), {"spec": {"unschedulable": True}})
    node = await scene.seen_node(lambda node: node.cordoned, "the cordon")
    assert (node.ready, node.exists, node.notice_deadline) == (True, True, None)


async def test_taint_of_somebodys(scene: Scene) -> None:
    """Emptied by a NoExecute taint while the node is well: evicted; with a notice on it: preempted."""
    node = await scene.api("get", path("v1", "nodes", name=scene.node))
    taint = {"key": "example.com/empty", "effect": "NoExecute"}
    taints = {"spec": {"taints": [*node["spec"]["taints"], taint]}}
    await scene.api("patch", path("v1", "nodes", name=scene.node), taints)
    worker = await scene.worker(is_gone, "the worker to go")
    assert cause(worker) == ("evicted", "DeletionByTaintManager")
    await asyncio.to_thread(scene.nodes.spot_notice, scene.node, "gke", 600.0)
    preempted = ("preempted", "DeletionByTaintManager")
    await scene.worker(lambda worker: cause(worker) == preempted, "the notice to be seen")


async def test_silent_node(scene: Scene) -> None:
    """A node that falls silent is not ready, long before its pod is deleted."""
    await asyncio.to_thread(scene.nodes.die, scene.node)
    await scene.seen_node(lambda node: not node.ready, "the node to be missed")
    worker = await scene.worker(lambda worker: True, "the worker")
    assert (worker.phase, worker.deleting) == ("running", False)


async def test_removed_node(scene: Scene) -> None:
    """A node that is deleted is gone at once, though its pod is still there."""
    await scene.remove_node()
    node = await scene.seen_node(lambda node: not node.exists, "the node to be gone")
    assert not node.ready


async def test_operator_that_starts_later(scene: Scene, control_plane: ControlPlane) -> None:
    """A fresh operator that never saw the node knows after its first comparison that it is gone."""
    await scene.remove_node()
    async with kube(control_plane.kubeconfig) as fresh:
        assert scene.job is not None
        nodes = await fresh.cluster.nodes(scene.job)
    assert nodes[scene.node] == Node(scene.node, ready=False, exists=False)


# ---- workers that do not come up ---------------------------------------------------------------------


def _asking_for_cpu() -> dict[str, Any]:
    [container] = spec().template["spec"]["containers"]
    return {**container, "resources": {"requests": {"cpu": "1"}}}


def changed(**pod: Any) -> JobSpec:
    plain = spec().plain()
    plain["template"]["spec"] |= pod
    return parse_spec(plain)


async def waits(world: KubernetesWorld, wanted: JobSpec, *reasons: str) -> Worker:
    """The worker, once it is pending for one of the reasons."""
    job = await world.submit(wanted)
    await world.cluster.create_worker(job, NAME, 0, 1)

    async def find() -> Worker | None:
        [worker] = await world.cluster.workers(job)
        return worker if worker.phase == "pending" and worker.reason in reasons else None

    found: Worker = await eventually(find, f"one of {reasons}")
    return found


async def test_image_that_cannot_be_pulled(world: KubernetesWorld) -> None:
    """The worker says that its image can't be pulled."""
    container = {"name": "worker", "image": "example.com/none", "command": ["a"]}
    worker = await waits(world, changed(containers=[container]), "ErrImagePull", "ImagePullBackOff")
    assert "none" in worker.message


async def test_no_room(world: KubernetesWorld) -> None:
    """The worker says why no node takes it."""
    container = {
        "name": "worker",
        "image": "bed/python",
        "command": ["a"],
        "resources": {"requests": {"cpu": "500"}},
    }
    worker = await waits(world, changed(containers=[container]), "Unschedulable")
    assert "Insufficient cpu" in worker.message
    assert (worker.node, worker.schedulable_since) == ("", None)
