"""Pods as the API server shows them become workers: phase, reason, disruption, times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_samples import CREATED_SECONDS, condition, deleting, disrupted, ended, pod

from resumable_operator.cluster.kube_pods import job_name, job_uid, vanished, with_node, worker_of
from resumable_operator.decide.observation import Disruption, Node, Worker


def worker(**change: Any) -> Worker:
    found = worker_of(pod(**change))
    assert found is not None
    return found


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def test_running_pod() -> None:
    """All that decisions use of a healthy pod is read, with the port of the container that runs the agent."""
    assert worker() == Worker(
        name="train-0-1",
        place=0,
        incarnation=1,
        phase="running",
        node="node-1",
        address="10.1.2.3",
        agent_port=8470,
        created_at=CREATED_SECONDS,
        schedulable_since=CREATED_SECONDS + 1,
        key_id="0123456789abcdef",
    )


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({}, "running"),
        ({"phase": "Pending", "state": waiting("ContainerCreating")}, "pending"),
        ({"phase": "Pending", "node": "", "status": {"containerStatuses": []}}, "pending"),
        ({"state": waiting("ImagePullBackOff")}, "pending"),  # a sidecar runs already
        ({"status": {"containerStatuses": []}}, "running"),
        ({"phase": "Unknown"}, "running"),
        ({"phase": "Failed", "state": ended(1)}, "failed"),
        ({"phase": "Failed", "state": ended(0, "Completed")}, "failed"),  # a kubelet that shuts down says so
        ({"phase": "Succeeded", "state": ended(0, "Completed")}, "succeeded"),
        ({"state": ended(0, "Completed")}, "succeeded"),  # sidecars run on
        ({"state": ended(3)}, "failed"),
        ({"meta": deleting()}, "running"),
        ({"phase": "", "state": {}}, "pending"),
    ],
)
def test_phase(change: dict[str, Any], phase: str) -> None:
    """The worker's container decides, unless the kubelet has failed the pod."""
    assert worker(**change).phase == phase


@pytest.mark.parametrize(
    ("change", "code", "reason", "message"),
    [
        ({"state": ended(137, "OOMKilled"), "phase": "Failed"}, 137, "OOMKilled", ""),
        ({"state": ended(1), "phase": "Failed"}, 1, "Error", ""),
        ({"state": ended(0, "Completed"), "phase": "Succeeded"}, 0, "Completed", ""),
        ({"state": ended(0, "Error", signal=9), "phase": "Failed"}, -9, "Error", ""),
        (
            {"state": ended(128, "StartError", message="no such file\n"), "phase": "Failed"},
            128,
            "StartError",
            "no such file",
        ),
        (
            {"state": ended(137, "ContainerStatusUnknown"), "phase": "Failed"},
            None,
            "ContainerStatusUnknown",
            "",
        ),
        ({"state": ended(255, "Unknown"), "phase": "Failed"}, None, "Unknown", ""),
        (
            {
                "phase": "Failed",
                "state": {},
                "status": {"reason": "OutOfnvidia.com/gpu", "message": "no room"},
            },
            None,
            "OutOfnvidia.com/gpu",
            "no room",
        ),
        (
            {
                "phase": "Failed",
                "state": {},
                "status": {
                    "initContainerStatuses": [
                        {"name": "resumable-agent", "state": ended(1, message="Traceback\nno Python here\n")}
                    ]
                },
            },
            None,
            "Error",
            "init container resumable-agent ended with exit code 1: no Python here",
        ),
    ],
)
def test_end(change: dict[str, Any], code: int | None, reason: str, message: str) -> None:
    """Exit code, reason and message: the pod's own, else the container's, else an init container's."""
    found = worker(**change)
    assert (found.exit_code, found.reason, found.message) == (code, reason, message)


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"state": waiting("ImagePullBackOff", "no such image")}, "ImagePullBackOff", "no such image"),
        ({"state": waiting("CreateContainerConfigError", "secret")}, "CreateContainerConfigError", "secret"),
        ({"state": waiting("ContainerCreating")}, "ContainerCreating", ""),
        (
            {
                "state": waiting("PodInitializing"),
                "status": {
                    "initContainerStatuses": [
                        {"name": "resumable-agent", "state": waiting("ErrImagePull", "denied")}
                    ]
                },
            },
            "ErrImagePull",
            "denied",
        ),
        (
            {
                "node": "",
                "status": {
                    "containerStatuses": [],
                    "conditions": [condition("PodScheduled", "Unschedulable", "False", "0/3 nodes: no gpu")],
                },
            },
            "Unschedulable",
            "0/3 nodes: no gpu",
        ),
        (
            {
                "node": "",
                "status": {
                    "containerStatuses": [],
                    "conditions": [condition("PodScheduled", "SchedulingGated", "False", "gates")],
                },
            },
            "SchedulingGated",
            "gates",
        ),
        (
            {
                "node": "",
                "status": {
                    "nominatedNodeName": "gpu-7",
                    "containerStatuses": [],
                    "conditions": [condition("PodScheduled", "Unschedulable", "False", "0/3 nodes: no gpu")],
                },
            },
            "Nominated",
            "room is being made on node gpu-7: 0/3 nodes: no gpu",
        ),
    ],
)
def test_what_is_waited_for(change: dict[str, Any], reason: str, message: str) -> None:
    """A pending worker says what it waits for: an image, a volume, a node."""
    found = worker(phase="Pending", **change)
    assert (found.phase, found.reason, found.message) == ("pending", reason, message)


def test_unschedulable_since_never() -> None:
    """Only a pod that has a node was schedulable."""
    found = worker(phase="Pending", node="", status={"conditions": [condition("PodScheduled", "x", "False")]})
    assert found.schedulable_since is None


DEADLINE = CREATED_SECONDS + 130


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"meta": deleting()}, None),  # a plain deletion has no condition
        ({"conditions": [condition("DisruptionTarget", "EvictionByEvictionAPI", "False")]}, None),
        (
            {"conditions": disrupted("PreemptionByScheduler"), "meta": deleting()},
            Disruption("preempted", "PreemptionByScheduler", DEADLINE),
        ),
        (  # the condition comes first; the grace is the pod's own
            {"conditions": disrupted("PreemptionByScheduler")},
            Disruption("preempted", "PreemptionByScheduler", CREATED_SECONDS + 175),
        ),
        (
            {"conditions": disrupted("EvictionByEvictionAPI"), "meta": deleting()},
            Disruption("evicted", "EvictionByEvictionAPI", DEADLINE),
        ),
        (
            {"conditions": disrupted("DeletionByTaintManager"), "meta": deleting()},
            Disruption("node_lost", "DeletionByTaintManager", DEADLINE),
        ),
        (
            {"conditions": disrupted("DeletionByPodGC"), "phase": "Failed"},
            Disruption("node_lost", "DeletionByPodGC"),
        ),
        (  # graceful shutdown of the node, even if the container exits 0
            {
                "conditions": disrupted("TerminationByKubelet"),
                "phase": "Failed",
                "state": ended(0, "Completed"),
                "status": {"reason": "Terminated", "message": "imminent node shutdown"},
            },
            Disruption("preempted", "TerminationByKubelet"),
        ),
        (
            {
                "conditions": disrupted("TerminationByKubelet"),
                "phase": "Failed",
                "status": {"reason": "Evicted", "message": "low on memory"},
            },
            Disruption("evicted", "TerminationByKubelet"),
        ),
        (
            {"conditions": disrupted("TerminationByKubelet"), "status": {"reason": "Preempting"}},
            Disruption("preempted", "TerminationByKubelet", CREATED_SECONDS + 175),
        ),
        ({"conditions": disrupted("SomeoneElse"), "phase": "Failed"}, Disruption("evicted", "SomeoneElse")),
        (
            {
                "conditions": [condition("TerminationTarget", "WorkloadEvictedDueToPreempted")],
                "meta": deleting(),
            },
            Disruption("preempted", "WorkloadEvictedDueToPreempted", DEADLINE),
        ),
        ({"phase": "Failed", "status": {"reason": "Evicted"}}, Disruption("evicted", "Evicted")),
        ({"phase": "Failed", "status": {"reason": "NodeShutdown"}}, Disruption("preempted", "NodeShutdown")),
        ({"phase": "Failed", "status": {"reason": "Terminated"}}, Disruption("preempted", "Terminated")),
        ({"status": {"reason": "NodeLost"}}, Disruption("node_lost", "NodeLost")),
        ({"phase": "Failed", "status": {"reason": "OutOfcpu"}}, None),
    ],
)
def test_disruption(change: dict[str, Any], expected: Disruption | None) -> None:
    """What ends a pod from outside, and when it will be gone."""
    assert worker(**change).disruption == expected


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (None, "node_lost"),
        (Node("n", exists=False, ready=False), "node_lost"),
        (Node("n"), "node_lost"),
        (Node("n", exists=False, ready=False, notice_deadline=1.0), "preempted"),
    ],
)
def test_pod_garbage_collector(node: Node | None, cause: str) -> None:
    """A pod deleted because its node is gone was preempted if the node had said that it would go."""
    found = with_node(worker(conditions=disrupted("DeletionByPodGC"), phase="Failed"), node)
    assert found.disruption is not None
    assert found.disruption.cause == cause


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (None, "node_lost"),
        (Node("n", ready=False), "node_lost"),
        (Node("n", exists=False, ready=False), "node_lost"),
        (Node("n", out_of_service=True), "node_lost"),
        (Node("n"), "evicted"),
        (Node("n", notice_deadline=1.0), "preempted"),
        (Node("n", ready=False, notice_deadline=1.0), "preempted"),
        (Node("n", exists=False, ready=False, notice_deadline=1.0), "preempted"),
    ],
)
def test_taint_manager(node: Node | None, cause: str) -> None:
    """Why the taint manager deleted a pod follows from its node: lost, taken away, or emptied by somebody."""
    found = with_node(worker(conditions=disrupted("DeletionByTaintManager"), meta=deleting()), node)
    assert found.disruption is not None
    assert found.disruption.cause == cause


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (None, "evicted"),
        (Node("n"), "evicted"),
        (Node("n", ready=False), "evicted"),
        (Node("n", notice_deadline=1.0), "preempted"),
    ],
)
def test_eviction(node: Node | None, cause: str) -> None:
    """An eviction from a node that will be taken away is part of that."""
    found = with_node(worker(conditions=disrupted("EvictionByEvictionAPI"), meta=deleting()), node)
    assert found.disruption is not None
    assert found.disruption.cause == cause


def test_other_disruptions_do_not_depend_on_the_node() -> None:
    """A preemption stays one on a lost node."""
    found = worker(conditions=disrupted("PreemptionByScheduler"))
    assert with_node(found, Node("n", ready=False)) is found


def test_deletion_times() -> None:
    """The deletion was asked for when its grace began, not when it ends."""
    found = worker(meta=deleting(grace=30, since=100))
    assert (found.deleting, found.deleting_since) == (True, CREATED_SECONDS + 100)
    assert worker(meta=deleting(grace=0, since=100)).deleting_since == CREATED_SECONDS + 100


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({}, "failed"),
        ({"state": ended(0), "phase": "Succeeded"}, "succeeded"),
        ({"state": ended(1)}, "failed"),
    ],
)
def test_vanished(change: dict[str, Any], phase: str) -> None:
    """A pod that is gone is over: deleted is not succeeded, and success stays success."""
    gone = vanished(worker(conditions=disrupted("PreemptionByScheduler"), **change))
    assert (gone.phase, gone.deleting) == (phase, True)
    assert gone.disruption == Disruption("preempted", "PreemptionByScheduler")


def test_spoilt_labels() -> None:
    """Labels that somebody has removed are made up for by the pod's name and owner."""
    bare = pod(place=3, incarnation=7, meta={"labels": {}})
    found = worker_of(bare)
    assert found is not None
    assert (found.place, found.incarnation) == (3, 7)
    assert (job_name(bare), job_uid(bare)) == ("train", "uid-train")


@pytest.mark.parametrize(
    "name", ["train-0-1-debug", "other-0-1", "train-0-01", "train-00-1", "train-0-0", f"train-0-{10**30}"]
)
def test_a_copy_is_no_worker(name: str) -> None:
    """A pod with all labels of a worker is none unless it has a worker's very name."""
    assert worker_of(pod(meta={"name": name})) is None


def test_what_a_label_claims_is_not_believed() -> None:
    """Place and incarnation are those of the name, the job is the one that owns the pod."""
    labels = {"resumable.dev/place": "7", "resumable.dev/incarnation": str(10**40), "resumable.dev/job": "x"}
    changed = pod(meta={"labels": {**pod()["metadata"]["labels"], **labels, "resumable.dev/job-uid": "y"}})
    found = worker_of(changed)
    assert found is not None
    assert (found.place, found.incarnation) == (0, 1)
    assert (job_name(changed), job_uid(changed)) == ("train", "uid-train")


def test_an_annotation_is_kept_in_part() -> None:
    """What anybody may write without a limit takes no more memory than a key's id."""
    found = worker_of(pod(meta={"annotations": {"resumable.dev/key-id": "x" * 250_000}}))
    assert found is not None
    assert len(found.key_id) <= 64


def test_not_a_worker() -> None:
    """A pod of nobody's has no place and no job."""
    other = pod(meta={"labels": {}, "name": "web", "ownerReferences": []})
    assert worker_of(other) is None
    assert (job_name(other), job_uid(other)) == ("", "")


def test_container_without_the_port() -> None:
    """Without a named port the container called worker counts, else the first."""
    spec = {"containers": [{"name": "a"}, {"name": "worker"}]}
    statuses = [{"name": "a", "state": {"running": {}}}, {"name": "worker", "state": ended(4)}]
    found = worker(spec=spec, status={"containerStatuses": statuses})
    assert (found.phase, found.exit_code, found.agent_port) == ("failed", 4, 0)


@given(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    state=st.sampled_from(
        [{}, ended(0), ended(137, "OOMKilled"), waiting("ImagePullBackOff"), {"running": {}}]
    ),
    conditions=st.lists(
        st.builds(
            condition,
            st.sampled_from(["DisruptionTarget", "TerminationTarget", "Ready"]),
            st.text(max_size=8),
            st.sampled_from(["True", "False", "Unknown"]),
        ),
        max_size=3,
    ),
    reason=st.one_of(st.none(), st.text(max_size=8)),
    gone=st.sampled_from([{}, deleting(), deleting(0)]),
)
def test_any_pod_is_read(phase: str, state: Any, conditions: Any, reason: Any, gone: Any) -> None:
    """Whatever a pod's status says, it is read; an ended one has no deadline and a live one no exit code."""
    found = worker(phase=phase, state=state, conditions=conditions, status={"reason": reason}, meta=gone)
    if found.phase in ("succeeded", "failed"):
        assert found.disruption is None or found.disruption.deadline is None
    else:
        assert found.exit_code is None
    assert found.deleting == (found.deleting_since is not None)
