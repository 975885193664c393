"""Jobs and their pods as the API server holds them, for tests of what is shown of them."""

from __future__ import annotations

from typing import Any

from resumable_operator.model import JobStatus
from resumable_operator.stored import to_stored
from resumable_training.contract.labels import (
    AGENT_PORT_NAME,
    GROUP,
    KIND,
    LABEL_INCARNATION,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    LABEL_PLACE,
    MANAGED_BY,
    VERSION,
    worker_name,
)

Raw = dict[str, Any]

IMAGE = "bed/python"
CREATED = "2026-11-29T20:00:00Z"


def job_body(name: str = "train", **spec: Any) -> Raw:
    """A job as a user would write it."""
    container = {"name": "worker", "image": IMAGE, "command": ["python", "train.py"]}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "workers": {"replicas": 3, "min": 1, "max": 4},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"persistentVolumeClaim": {"claimName": "ckpt"}},
            **spec,
        },
    }


def stored_job(status: JobStatus | None = None, name: str = "train", **spec: Any) -> Raw:
    """The same as read from namespace ``team``."""
    body = job_body(name, **spec)
    body["metadata"] |= {
        "namespace": "team",
        "uid": "uid-1",
        "generation": 1,
        "resourceVersion": "7",
        "creationTimestamp": CREATED,
    }
    return body if status is None else {**body, "status": to_stored(status)}


def worker_pod(job: Raw, place: int, incarnation: int = 1, script: str = "", **spec: Any) -> Raw:
    """A worker's pod whose container runs a shell script, with a sidecar, and an init container that does
    nothing.
    """
    meta = job["metadata"]
    worker = {
        "name": "worker",
        "image": IMAGE,
        "command": ["bash", "-c", script],
        "ports": [{"name": AGENT_PORT_NAME, "containerPort": 8470}],
    }
    sidecar = {"name": "sidecar", "image": IMAGE, "command": ["bash", "-c", "echo from the sidecar"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": worker_name(meta["name"], place, incarnation),
            "namespace": meta["namespace"],
            "labels": {
                LABEL_MANAGED_BY: MANAGED_BY,
                LABEL_JOB: meta["name"],
                LABEL_JOB_UID: meta["uid"],
                LABEL_PLACE: str(place),
                LABEL_INCARNATION: str(incarnation),
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "initContainers": [{"name": "resumable-agent", "image": IMAGE, "command": ["true"]}],
            "containers": [worker, sidecar],
            **spec,
        },
    }


def in_phase(pod: Raw, phase: str, node: str = "node-1", **state: Any) -> Raw:
    """The pod as its kubelet would report it; ``state`` of the worker's container."""
    pod["spec"]["nodeName"] = node
    status: Raw = {"phase": phase, "podIP": "127.1.2.3"}
    if state:
        status["containerStatuses"] = [{"name": "worker", "state": state}]
    return {**pod, "status": status}
