"""Pods as the API server stores them -> workers. Pure.

What ended a pod is told in the order that decisions trust it: conditions, the pod's reason, the reason of the
worker's container, its exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from resumable_operator.cluster.kube_objects import seconds
from resumable_operator.decide.observation import Disruption, Node, Worker, WorkerPhase
from resumable_training.contract.labels import (
    AGENT_PORT_NAME,
    ANNOTATION_KEY_ID,
    KIND,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)

Cause = Literal["preempted", "evicted", "node_lost"]

DEFAULT_GRACE_SECONDS = 30.0
TAINT_MANAGER = "DeletionByTaintManager"
EVICTION = "EvictionByEvictionAPI"
POD_GC = "DeletionByPodGC"  # its node is gone

# Reasons of the condition DisruptionTarget. Others are other controllers' evictions.
DISRUPTION_CAUSES: Mapping[str, Cause] = {
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    TAINT_MANAGER: "node_lost",  # until the node says otherwise
    EVICTION: "evicted",
    POD_GC: "node_lost",
    "TerminationByKubelet": "preempted",  # graceful shutdown of the node: how spot VMs go
}
# ``status.reason``, written by kubelets.
REASON_CAUSES: Mapping[str, Cause] = {
    "Evicted": "evicted",  # the node ran short of something
    "Preempting": "preempted",  # for a critical pod
    "Preempted": "preempted",
    "Terminated": "preempted",  # graceful shutdown of the node
    "NodeShutdown": "preempted",
    "Shutdown": "preempted",
    "NodeLost": "node_lost",
}
_NOBODY_SAW = ("ContainerStatusUnknown", "Unknown")  # how it ended: its machine was gone or began anew
_STARTING = ("ContainerCreating", "PodInitializing", "")
_NAME = re.compile(r"(0|[1-9][0-9]{0,4})-([1-9][0-9]{0,7})")  # place and incarnation, behind the job's name
_LONGEST_ID = 64


def job_name(pod: Mapping[str, Any]) -> str:
    """Of the pod's job; empty: it has none."""
    meta = pod["metadata"]
    return str(_owner(meta).get("name") or (meta.get("labels") or {}).get(LABEL_JOB) or "")


def job_uid(pod: Mapping[str, Any]) -> str:
    """Of the pod's job; empty: it has none."""
    meta = pod["metadata"]
    return str(_owner(meta).get("uid") or (meta.get("labels") or {}).get(LABEL_JOB_UID) or "")


def _owner(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = meta.get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("kind") == KIND), {})


def worker_of(pod: Mapping[str, Any]) -> Worker | None:
    """The worker; None when the pod has no place in a job."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    place = _place(meta, job_name(pod))
    if place is None:
        return None
    container = worker_container(spec)
    state = _state(status.get("containerStatuses"), str(container.get("name")))
    phase = _phase(status, state)
    reason, message = _ended_why(status, state) if phase in ("succeeded", "failed") else ("", "")
    if phase == "pending":
        reason, message = _waiting_for(status, state)
    scheduled = _condition(status, "PodScheduled")
    return Worker(
        name=meta["name"],
        place=place[0],
        incarnation=place[1],
        phase=phase,
        node=str(spec.get("nodeName") or ""),
        address=str(status.get("podIP") or ""),
        agent_port=_agent_port(container),
        created_at=seconds(meta.get("creationTimestamp")) or 0.0,
        deleting=bool(meta.get("deletionTimestamp")),
        exit_code=_exit_code(state),
        reason=reason,
        message=message,
        disruption=_disruption(meta, spec, status, ended=phase in ("succeeded", "failed")),
        schedulable_since=(
            seconds(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
        ),
        deleting_since=_deleting_since(meta),
        key_id=str((meta.get("annotations") or {}).get(ANNOTATION_KEY_ID) or "")[:_LONGEST_ID],
    )


def vanished(worker: Worker) -> Worker:
    """The worker as it is to be seen once its pod is deleted: over, however it was seen last."""
    if worker.phase in ("succeeded", "failed"):
        return replace(worker, deleting=True)
    disruption = replace(worker.disruption, deadline=None) if worker.disruption else None
    return replace(worker, phase="failed", deleting=True, disruption=disruption)


def with_node(worker: Worker, node: Node | None) -> Worker:
    """The worker, with what its node adds to a deletion by the taint manager, an eviction, or a deletion
    because there is no such node: why it was.

    What empties nodes that will be taken away evicts pods. Unknown nodes count as lost to the taint manager:
    without a taint of somebody's, those for lost nodes are all there are.
    """
    disruption = worker.disruption
    if disruption is None or disruption.reason not in (TAINT_MANAGER, EVICTION, POD_GC) or node is None:
        return worker
    cause: Cause = "evicted" if disruption.reason == EVICTION else "node_lost"
    if node.notice_deadline is not None:
        cause = "preempted"
    elif disruption.reason != POD_GC and node.exists and node.ready and not node.out_of_service:
        cause = "evicted"
    return (
        worker if cause == disruption.cause else replace(worker, disruption=replace(disruption, cause=cause))
    )


def is_watched(pod: Mapping[str, Any]) -> bool:
    """It has the label that pods are watched by."""
    return bool((pod["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) == MANAGED_BY)


def deletion_grace_seconds(pod: Mapping[str, Any]) -> float | None:
    """The grace that its deletion was asked with; None: it is not being deleted."""
    meta = pod["metadata"]
    return float(meta.get("deletionGracePeriodSeconds") or 0) if meta.get("deletionTimestamp") else None


def is_removed(answer: Mapping[str, Any]) -> bool:
    """The answer to a deletion shows a pod that is there no more: nobody was to be waited for."""
    return deletion_grace_seconds(answer) == 0 and not answer["metadata"].get("finalizers")


# ---- parts -------------------------------------------------------------------------------------------


def _place(meta: Mapping[str, Any], job: str) -> tuple[int, int] | None:
    """Place and incarnation by the pod's name, which nobody can change and no second pod of the namespace
    has. Labels can be anybody's, also those of a copy that was made to look into something."""
    match = _NAME.fullmatch(meta["name"].removeprefix(f"{job}-")) if job else None
    return (int(match[1]), int(match[2])) if match else None


def worker_container(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that runs the agent: it has its port."""
    containers = spec.get("containers") or [{}]
    for container in containers:
        if any(port.get("name") == AGENT_PORT_NAME for port in container.get("ports") or []):
            return container  # type: ignore[no-any-return]
    named = [container for container in containers if container.get("name") == "worker"]
    return (named or containers)[0]  # type: ignore[no-any-return]


def _agent_port(container: Mapping[str, Any]) -> int:
    for port in container.get("ports") or []:
        if port.get("name") == AGENT_PORT_NAME:
            return int(port.get("containerPort") or 0)
    return 0


def _state(statuses: Iterable[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any]:
    """``state`` of one container: ``{waiting|running|terminated: {...}}``; empty: not told."""
    for item in statuses or []:
        if item.get("name") == name:
            return item.get("state") or {}
    return {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((item for item in status.get("conditions") or [] if item.get("type") == kind), {})


def _phase(status: Mapping[str, Any], state: Mapping[str, Any]) -> WorkerPhase:
    """By the worker's container: sidecars may outlive it. A pod that its kubelet failed has failed."""
    phase = status.get("phase")
    if phase == "Failed":
        return "failed"
    if "terminated" in state:
        return "succeeded" if state["terminated"].get("exitCode") == 0 else "failed"
    if phase == "Succeeded":
        return "succeeded"
    if phase == "Unknown":
        return "running"  # its kubelet is silent; node and agent tell more
    return "running" if phase == "Running" and "waiting" not in state else "pending"


def _exit_code(state: Mapping[str, Any]) -> int | None:
    ended = state.get("terminated")
    if not ended or ended.get("reason") in _NOBODY_SAW:  # their codes, 137 and 255, are made up
        return None
    signal = ended.get("signal")
    return -int(signal) if signal else int(ended.get("exitCode") or 0)


def _ended_why(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    ended = state.get("terminated") or {}
    reason = str(status.get("reason") or ended.get("reason") or "")
    message = str(status.get("message") or ended.get("message") or "")
    if not ended and not reason:
        return _failed_init(status)
    return reason, message.strip()


def _failed_init(status: Mapping[str, Any]) -> tuple[str, str]:
    for item in status.get("initContainerStatuses") or []:
        ended = (item.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            text = f"init container {item.get('name')} ended with exit code {ended['exitCode']}"
            said = str(ended.get("message") or "").strip().splitlines()[-1:]  # of a traceback the gist
            return str(ended.get("reason") or "Error"), ": ".join([text, *said])
    return "", ""


def _waiting_for(status: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, str]:
    """What a pod that does not run yet waits for: an image, a volume, a node."""
    states = [item.get("state") or {} for item in status.get("initContainerStatuses") or []]
    for waiting in (item.get("waiting") or {} for item in (*states, state)):
        if waiting.get("reason", "") not in _STARTING:
            return str(waiting["reason"]), str(waiting.get("message") or "")
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or "")
        if status.get("nominatedNodeName"):  # others are being preempted there
            return "Nominated", f"room is being made on node {status['nominatedNodeName']}: {message}"
        return str(scheduled.get("reason") or "Pending"), message
    waiting = state.get("waiting") or {}
    return str(waiting.get("reason") or ""), str(waiting.get("message") or "")


def _deleting_since(meta: Mapping[str, Any]) -> float | None:
    """``deletionTimestamp`` is when the grace is over."""
    deadline = seconds(meta.get("deletionTimestamp"))
    return None if deadline is None else deadline - float(meta.get("deletionGracePeriodSeconds") or 0)


def _disruption(
    meta: Mapping[str, Any], spec: Mapping[str, Any], status: Mapping[str, Any], *, ended: bool
) -> Disruption | None:
    condition = _disruption_condition(status)
    reason = str(status.get("reason") or "")
    if not condition:
        cause = REASON_CAUSES.get(reason)
        return Disruption(cause, reason) if cause else None
    why = str(condition.get("reason") or condition.get("type"))
    cause = "preempted" if condition["type"] == "TerminationTarget" else DISRUPTION_CAUSES.get(why, "evicted")
    if why == "TerminationByKubelet":
        cause = REASON_CAUSES.get(reason, cause)
    return Disruption(cause, why, None if ended else _deadline(meta, spec, condition))


def _disruption_condition(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Kubernetes' own, or Kueue's for the pods that it stops."""
    for kind in ("DisruptionTarget", "TerminationTarget"):
        condition = _condition(status, kind)
        if condition.get("status") == "True":
            return condition
    return {}


def _deadline(meta: Mapping[str, Any], spec: Mapping[str, Any], condition: Mapping[str, Any]) -> float | None:
    """When the worker will be gone. The condition comes some milliseconds before the deletion."""
    told = seconds(meta.get("deletionTimestamp"))
    if told is not None:
        return told
    since = seconds(condition.get("lastTransitionTime"))
    grace = spec.get("terminationGracePeriodSeconds")
    return None if since is None else since + float(DEFAULT_GRACE_SECONDS if grace is None else grace)
