"""Jobs and nodes as the API server stores them -> what decisions see. Pure. Pods: ``kube_pods``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from resumable_operator.decide.observation import Job, Node
from resumable_operator.errors import SpecError
from resumable_operator.model import JobSpec, parse_spec
from resumable_operator.stored import from_stored

Raw = dict[str, Any]

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
SHUT_DOWN = "node.cloudprovider.kubernetes.io/shutdown"

# Taints that say that the node will be taken away, with the seconds that are left from then on.
NOTICE_SECONDS: Mapping[str, float] = {
    # AWS Node Termination Handler: two minutes for a spot instance; the others drain at once, too
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 120.0,
    "aws-node-termination-handler/scheduled-maintenance": 120.0,
    "aws-node-termination-handler/rebalance-recommendation": 120.0,
    # GKE: 30 s for a spot VM, of which the kubelet keeps some for system pods
    "cloud.google.com/impending-node-termination": 25.0,
    # AKS: 30 s for a spot VM
    "remediator.kubernetes.azure.com/unschedulable": 30.0,
    "remediator.aks.microsoft.com/unschedulable": 30.0,
    # Karpenter: interruption, consolidation and drift alike; before 1.0 the second
    "karpenter.sh/disrupted": 120.0,
    "karpenter.sh/disruption": 120.0,
    # Cluster Autoscaler: pods are deleted at once, and waited for at most this long
    "ToBeDeletedByClusterAutoscaler": 600.0,
}
DELETION_SECONDS = 120.0  # of a Node with finalizers: it is drained before it goes


def seconds(text: object) -> float | None:
    """RFC 3339 to seconds since the epoch; None for what is no time."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def version_of(obj: Mapping[str, Any]) -> int:
    """``metadata.resourceVersion``: of one kind of objects, the greater is the newer. 0: none."""
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "0")
    return int(text) if text.isdecimal() else 0


# ---- jobs --------------------------------------------------------------------------------------------


def job_of(obj: Mapping[str, Any], spec: JobSpec | None = None) -> Job:
    """The job. ``spec``: of this generation, as read before.

    Raises:
        SpecError: its spec or its status can't be read; names the field.
    """
    meta = obj["metadata"]
    try:
        status = from_stored(obj.get("status") or {})
    except ValueError as error:
        raise SpecError("status", f"can't be read, was it edited by hand? {error}") from error
    return Job(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation") or 0),
        spec=spec if spec is not None else parse_spec(obj.get("spec")),
        status=status,
        resource_version=str(meta.get("resourceVersion") or ""),
        deleting=bool(meta.get("deletionTimestamp")),
    )


# ---- nodes -------------------------------------------------------------------------------------------


def node_of(obj: Mapping[str, Any], noticed_at: float) -> Node:
    """The node.

    The taints not-ready and unreachable follow from its condition, and are a moment behind.

    Args:
        noticed_at: when a notice without a time of its own was seen first.
    """
    spec = obj.get("spec") or {}
    taints = {str(taint.get("key")): taint for taint in spec.get("taints") or []}
    condition = _ready_condition(obj)
    is_ready = condition.get("status") == "True"
    return Node(
        name=obj["metadata"]["name"],
        ready=is_ready and SHUT_DOWN not in taints,
        unready_since=None if is_ready else seconds(condition.get("lastTransitionTime")),
        cordoned=bool(spec.get("unschedulable")),
        out_of_service=OUT_OF_SERVICE in taints,
        notice_deadline=_notice_deadline(obj, taints.values(), noticed_at),
    )


def _ready_condition(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == "Ready"), {})


def _notice_deadline(
    obj: Mapping[str, Any], taints: Iterable[Mapping[str, Any]], noticed_at: float
) -> float | None:
    """When the node will be gone, by the soonest of its notices."""
    deadlines = [
        _added_at(taint, noticed_at) + NOTICE_SECONDS[str(taint.get("key"))]
        for taint in taints
        if taint.get("key") in NOTICE_SECONDS and taint.get("effect") != "PreferNoSchedule"
    ]
    deleted = seconds(obj["metadata"].get("deletionTimestamp"))
    if deleted is not None:
        deadlines.append(deleted + DELETION_SECONDS)
    return min(deadlines, default=None)


def _added_at(taint: Mapping[str, Any], noticed_at: float) -> float:
    """Only NoExecute taints have a time; the Cluster Autoscaler writes it into the value."""
    added = seconds(taint.get("timeAdded"))
    if added is not None:
        return added
    value = str(taint.get("value") or "")
    if taint.get("key") == "ToBeDeletedByClusterAutoscaler" and value.isdecimal():
        return float(value)
    return noticed_at
