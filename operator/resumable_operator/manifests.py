"""PURE: a job and a place in it -> the pod of a worker, and the Secret with the key of its agent.

The user's template reaches the pod as it is; what is added and why is in docs/pods.md, field by field. Where
the template says something about a matter itself, the template wins; where that could not work, it is
refused with its field. Parts: ``manifests_template`` (what is refused), ``manifests_security``,
``manifests_storage`` (volumes, mounts), ``manifests_agent`` (what runs the agent).
"""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass
from typing import Any

from resumable_operator.decide.observation import Job
from resumable_operator.manifests_agent import agent_env, init_container, put_agent_in_front
from resumable_operator.manifests_security import secure
from resumable_operator.manifests_storage import mount_all
from resumable_operator.manifests_template import read_template
from resumable_training.contract import labels

Raw = dict[str, Any]

GRACE_MARGIN_SECONDS = 15  # after a drain's window: to kill ranks, reap them, tell the last events
AVOID_WEIGHT = 100
KEY_FILE = "key"
_LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True)
class PodSettings:
    """What an installation decides about all workers' pods.

    ``run_as_user`` None: the cluster chooses users and groups (OpenShift). ``not_ready_seconds``: how long
    the API server leaves a pod on a lost node; the operator itself does not wait for that.
    """

    agent_image: str
    agent_image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()  # names, in the job's namespace
    agent_port: int = 8470
    not_ready_seconds: int = 30
    run_as_user: int | None = 1000


def pod(
    job: Job,
    name: str,
    place: int,
    incarnation: int,
    key_id: str,
    settings: PodSettings,
    avoid: tuple[str, ...] = (),
) -> Raw:
    """The pod of one worker.

    Args:
        key_id: of the key that its agent is started with; ``key_secret`` must be there.
        avoid: nodes to use only if there is no other.

    Raises:
        SpecError: the template can't become a worker; names the field.
    """
    template = read_template(job.spec, settings.agent_port)
    spec, worker = template.spec, template.worker
    _live_and_die(spec, job.spec.recovery.drain_seconds)
    _leave_services_alone(spec)
    _tolerate_lost_nodes(spec, settings.not_ready_seconds)
    _avoid(spec, avoid)
    _pull_with(spec, settings.image_pull_secrets)
    secure(spec, settings.run_as_user)
    mount_all(spec, worker, job.spec.checkpoint, key_secret_name(job, key_id))
    put_agent_in_front(worker, job.spec.command(), settings.agent_port)
    _add_env(worker, agent_env(job, name, place, incarnation, settings.agent_port))
    user = settings.run_as_user if "runAsUser" in spec["securityContext"] else None
    spec["initContainers"] = [
        *(spec.get("initContainers") or []),
        init_container(worker, settings.agent_image, settings.agent_image_pull_policy, user),
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {**template.labels, **worker_labels(job, place, incarnation)},
            "annotations": {
                _DEFAULT_CONTAINER: str(worker.get("name")),
                **template.annotations,
                labels.ANNOTATION_KEY_ID: key_id,
            },
            "ownerReferences": [owner_reference(job)],
            **({"finalizers": template.finalizers} if template.finalizers else {}),
        },
        "spec": spec,
    }


def job_labels(job: Job) -> dict[str, str]:
    """Labels of everything that belongs to the job."""
    return {
        labels.LABEL_MANAGED_BY: labels.MANAGED_BY,
        labels.LABEL_JOB: job.name,
        labels.LABEL_JOB_UID: job.uid,
    }


def worker_labels(job: Job, place: int, incarnation: int) -> dict[str, str]:
    return {
        **job_labels(job),
        labels.LABEL_PLACE: str(place),
        labels.LABEL_INCARNATION: str(incarnation),
    }


def owner_reference(job: Job) -> Raw:
    """The job as controller: the garbage collector removes what it owns, with or without an operator."""
    return {
        "apiVersion": f"{labels.GROUP}/{labels.VERSION}",
        "kind": labels.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def key_secret_name(job: Job, key_id: str) -> str:
    """Other for each key and, as keys follow from uids, for each job of that name."""
    return f"{job.name}-key-{key_id}"


def key_secret(job: Job, key_id: str, key: bytes) -> Raw:
    """The Secret that pods with this ``key_id`` mount. It never changes, so that creating it is enough."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": key_secret_name(job, key_id),
            "namespace": job.namespace,
            "labels": job_labels(job),
            "annotations": {labels.ANNOTATION_KEY_ID: key_id},
            "ownerReferences": [owner_reference(job)],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {KEY_FILE: base64.b64encode(f"{key.hex()}\n".encode()).decode()},
    }


def template_field(pod_field: str) -> str:
    """Where in the job the user finds what the API server calls ``pod_field``, e.g. ``spec.containers[0]``.

    The same path below ``spec.template``, because what is added to a list is added at its end.
    """
    return f"spec.template.{pod_field}"


# ---- parts of the pod's spec -------------------------------------------------------------------------


def _live_and_die(spec: Raw, drain_seconds: float) -> None:
    """A container that ended stays ended; one that is ended has time to drain."""
    spec["restartPolicy"] = "Never"
    own = spec.get("terminationGracePeriodSeconds") or 0
    spec["terminationGracePeriodSeconds"] = max(own, math.ceil(drain_seconds) + GRACE_MARGIN_SECONDS)


def _leave_services_alone(spec: Raw) -> None:
    """No token where nobody asked for an identity, and no variable for each Service of the namespace."""
    if not (spec.get("serviceAccountName") or spec.get("serviceAccount")):
        spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)


def _tolerate_lost_nodes(spec: Raw, seconds: int) -> None:
    """Instead of the five minutes that the API server would add."""
    own = spec.get("tolerations") or []
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in _LOST_NODE
        if not any(_tolerates(toleration, key) for toleration in own)
    ]
    if own or added:
        spec["tolerations"] = [*own, *added]


def _tolerates(toleration: Raw, key: str) -> bool:
    if toleration.get("effect") not in (None, "", "NoExecute"):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    return bool(toleration["key"] == key)


def _avoid(spec: Raw, nodes: tuple[str, ...]) -> None:
    """A wish, not a demand: the last node there is will do. By name, as labels need not carry it."""
    if not nodes:
        return
    affinity = spec["affinity"] = spec.get("affinity") or {}
    node_affinity = affinity["nodeAffinity"] = affinity.get("nodeAffinity") or {}
    others = node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    node_affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
        *others,
        {"weight": AVOID_WEIGHT, "preference": {"matchFields": fields}},
    ]


def _pull_with(spec: Raw, secrets: tuple[str, ...]) -> None:
    own = spec.get("imagePullSecrets") or []
    added = [{"name": name} for name in secrets if {"name": name} not in own]
    if added:
        spec["imagePullSecrets"] = [*own, *added]


def _add_env(worker: Raw, added: list[Raw]) -> None:
    """Behind the user's own, which wins where both name a variable."""
    own = worker.get("env") or []
    names = {entry.get("name") for entry in own}
    worker["env"] = [*own, *(entry for entry in added if entry["name"] not in names)]
