"""Pods, nodes and jobs as an API server shows them, for tests of what is read from them."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

CREATED = "2026-11-29T20:00:00Z"
CREATED_SECONDS = 1795982400.0


def at(seconds: float) -> str:
    """RFC 3339, so many seconds after ``CREATED``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"2026-11-29T20:{minutes:02d}:{rest:02d}Z"


def job(name: str = "train", namespace: str = "team", version: int = 10, uid: str = "", **change: Any) -> Raw:
    """A job as stored. ``change``: entries of spec or, with ``meta_`` in front, of metadata; ``status``."""
    meta = {key.removeprefix("meta_"): change.pop(key) for key in list(change) if key.startswith("meta_")}
    status = change.pop("status", {})
    return {
        "apiVersion": "resumable.dev/v1alpha1",
        "kind": "ResumableTrainingJob",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or f"uid-{name}",
            "generation": 1,
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            **meta,
        },
        "spec": {
            "workers": {"replicas": 2},
            "template": {"spec": {"containers": [{"name": "worker", "image": "x", "command": ["train"]}]}},
            **change,
        },
        "status": status,
    }


def pod(
    place: int = 0,
    incarnation: int = 1,
    *,
    job: str = "train",
    namespace: str = "team",
    version: int = 100,
    uid: str = "",
    node: str = "node-1",
    phase: str = "Running",
    state: Raw | None = None,
    conditions: list[Raw] | None = None,
    meta: Raw | None = None,
    spec: Raw | None = None,
    status: Raw | None = None,
) -> Raw:
    """A worker's pod with a sidecar; ``state``: of the worker's container."""
    name = f"{job}-{place}-{incarnation}"
    running = {"running": {"startedAt": at(5)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            "labels": {
                "app.kubernetes.io/managed-by": "resumable-training",
                "resumable.dev/job": job,
                "resumable.dev/job-uid": f"uid-{job}",
                "resumable.dev/place": str(place),
                "resumable.dev/incarnation": str(incarnation),
            },
            "annotations": {"resumable.dev/key-id": "0123456789abcdef"},
            "ownerReferences": [{"kind": "ResumableTrainingJob", "name": job, "uid": f"uid-{job}"}],
            **(meta or {}),
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "terminationGracePeriodSeconds": 75,
            "containers": [
                {"name": "logs", "image": "y"},
                {
                    "name": "main",
                    "image": "x",
                    "ports": [{"name": "rtj-agent", "containerPort": 8470, "protocol": "TCP"}],
                },
            ],
            **(spec or {}),
        },
        "status": {
            "phase": phase,
            "podIP": "10.1.2.3" if phase == "Running" else "",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(1)},
                *(conditions or []),
            ],
            "containerStatuses": [
                {"name": "logs", "state": running},
                {"name": "main", "state": running if state is None else state},
            ],
            **(status or {}),
        },
    }


def ended(code: int, reason: str = "Error", **more: Any) -> Raw:
    """State of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at(60), **more}}


def condition(kind: str, reason: str, status: str = "True", message: str = "") -> Raw:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(100),
    }


def disrupted(reason: str) -> list[Raw]:
    return [condition("DisruptionTarget", reason)]


def deleting(grace: int = 30, since: float = 100) -> Raw:
    """Metadata of a pod whose deletion was asked for at ``since``."""
    return {"deletionTimestamp": at(since + grace), "deletionGracePeriodSeconds": grace}


def node(
    name: str = "node-1",
    *,
    version: int = 50,
    uid: str = "",
    ready: str = "True",
    taints: list[Raw] | None = None,
    cordoned: bool = False,
    meta: Raw | None = None,
) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": CREATED,
            **(meta or {}),
        },
        "spec": {
            **({"unschedulable": True} if cordoned else {}),
            **({"taints": taints} if taints else {}),
        },
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": ready, "reason": "KubeletReady", "lastTransitionTime": CREATED},
            ]
        },
    }


def taint(key: str, effect: str = "NoSchedule", **more: Any) -> Raw:
    return {"key": key, "effect": effect, **more}
