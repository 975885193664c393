"""PURE: the agent in a worker's pod: how it gets there, what starts it, what it is told."""

from __future__ import annotations

from typing import Any

from resumable_operator.decide.observation import Job
from resumable_operator.manifests_security import own_context
from resumable_operator.manifests_storage import (
    AGENT_CONTAINER,
    AGENT_DIRECTORY,
    AGENT_VOLUME,
    KEY_DIRECTORY,
    SCRATCH_DIRECTORY,
    s3_env,
)
from resumable_training.contract import env, labels
from resumable_training.contract.assignment import AgentSpec
from resumable_training.contract.codec import to_json

Raw = dict[str, Any]

AGENT_FILE = f"{AGENT_DIRECTORY}/agent.pyz"
LOG_DIRECTORY = f"{SCRATCH_DIRECTORY}/logs"
LOG_BYTES = 16 * 1024 * 1024  # twice that for each rank; a node's disk must not fill up over months
LOG_ATTEMPTS = 5
# Isolated: neither PYTHONPATH nor the image's packages can get between the agent and the standard library.
AGENT_COMMAND = ("python3", "-I", "-S", AGENT_FILE, "--")
_ADDRESS = f"$({env.POD_ADDRESS})"  # expanded by the kubelet


def put_agent_in_front(worker: Raw, command: tuple[str, ...], port: int) -> None:
    """The agent becomes the container's process; the user's command line follows as its arguments.

    As arguments, so that the kubelet expands ``$(VARIABLE)`` in them as it would have.
    """
    worker["command"] = list(AGENT_COMMAND)
    worker["args"] = list(command)
    worker["ports"] = [
        *(worker.get("ports") or []),
        {"name": labels.AGENT_PORT_NAME, "containerPort": port, "protocol": "TCP"},
    ]
    if worker.get("readinessProbe") is None:
        worker["readinessProbe"] = {
            "httpGet": {"path": "/healthz", "port": labels.AGENT_PORT_NAME},
            "periodSeconds": 2,
            "timeoutSeconds": 1,
            "failureThreshold": 3,
        }


def agent_env(job: Job, name: str, place: int, incarnation: int, port: int) -> list[Raw]:
    """Variables of the worker's container: the agent's configuration, and those of object storage."""
    spec = AgentSpec(
        job=job.key,
        job_uid=job.uid,
        worker=name,
        place=place,
        incarnation=incarnation,
        command=(),  # the container's arguments
        address=_ADDRESS,
        port=port,
        directory=SCRATCH_DIRECTORY,
        log_directory=LOG_DIRECTORY,
        key_file=f"{KEY_DIRECTORY}/key",
        drain_seconds=job.spec.recovery.drain_seconds,
        log_bytes=LOG_BYTES,
        log_attempts=LOG_ATTEMPTS,
        preload=job.spec.workers.preload.enabled,
        preload_modules=job.spec.workers.preload.modules,
    )
    s3 = job.spec.checkpoint.s3
    return [
        {"name": env.POD_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": env.AGENT_SPEC, "value": _unexpanded(to_json(spec).decode())},
        *(s3_env(s3) if s3 is not None else []),
    ]


def _unexpanded(text: str) -> str:
    """Nothing but the address is for the kubelet to expand."""
    return text.replace("$", "$$").replace(f"${_ADDRESS}", _ADDRESS)


def init_container(worker: Raw, image: str, pull_policy: str, run_as_user: int | None) -> Raw:
    """Copies the agent into the pod, from the operator's image, so that any image with Python will do."""
    return {
        "name": AGENT_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["python", "-m", "resumable_training.agent.bundle", AGENT_FILE],
        "volumeMounts": [{"name": AGENT_VOLUME, "mountPath": AGENT_DIRECTORY}],
        "resources": _like(worker.get("resources")),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # so that its error can be told with the failure
        "securityContext": own_context(run_as_user),
    }


def _like(resources: Raw | None) -> Raw:
    """The worker's CPU and memory, which the pod has anyway when the worker does not run yet.

    So the pod needs no more than without it, keeps its QoS class, and passes a quota that wants limits.
    """
    result: Raw = {}
    for kind in ("requests", "limits"):
        given = (resources or {}).get(kind) or {}
        wanted = {name: given[name] for name in ("cpu", "memory") if name in given}
        if wanted:
            result[kind] = wanted
    return result
