"""PURE: the short pod that reads a job's checkpoints for ``rtj checkpoints``, and what its state means.

It belongs to the job (the garbage collector removes it with the job, whatever became of its maker), but it is
no worker: it carries no label that the operator, a disruption budget or a network policy selects by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from resumable_operator.cluster.kube_pods import worker_container
from resumable_operator.decide.observation import Job
from resumable_operator.manifests import owner_reference
from resumable_operator.manifests_security import own_context, secure
from resumable_operator.manifests_storage import (
    AGENT_CONTAINER,
    CHECKPOINT_DIRECTORY,
    CHECKPOINT_VOLUME,
    s3_env,
)
from resumable_training.contract.labels import GROUP

Raw = dict[str, Any]

CONTAINER = "reader"
LABELS = {"app.kubernetes.io/name": "rtj-reader", "app.kubernetes.io/managed-by": "rtj"}
ANNOTATION_JOB = f"{GROUP}/reads-for"
RESOURCES = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},  # a quota may ask for limits
}
GRACE_SECONDS = 1
_USER_FIELDS = ("runAsUser", "runAsGroup", "supplementalGroups", "seLinuxOptions")
_HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
_DEFAULT_USER = 1000


@dataclass(frozen=True)
class Model:
    """What the reader takes over from the pods that wrote the checkpoints."""

    image: str
    pull_policy: str
    pull_secrets: list[Raw]
    tolerations: list[Raw]
    context: Raw  # of the pod: who writes


def model_from(pod: Raw) -> Model | None:
    """From a worker's pod; None: it has no agent of an operator's image."""
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or []:
        if container.get("name") == AGENT_CONTAINER:
            return Model(
                image=str(container["image"]),
                pull_policy=str(container.get("imagePullPolicy") or "IfNotPresent"),
                pull_secrets=list(spec.get("imagePullSecrets") or []),
                tolerations=list(spec.get("tolerations") or []),
                context=_who_writes(spec),
            )
    return None


def model_of(job: Job, image: str, found: Model | None) -> Model:
    """For ``image``: as in the pod that was found, else as in the job's template."""
    if found is not None:
        return Model(image, found.pull_policy, found.pull_secrets, found.tolerations, found.context)
    spec = _template(job)
    secure(spec, _DEFAULT_USER)
    secrets, tolerations = spec.get("imagePullSecrets") or [], spec.get("tolerations") or []
    return Model(image, "IfNotPresent", list(secrets), list(tolerations), _who_writes(spec))


def _who_writes(spec: Raw) -> Raw:
    """Users and groups of a worker's container. The volume's group becomes one of the reader's.

    An fsGroup could make the kubelet change the owner of every file first.
    """
    pod, own = spec.get("securityContext") or {}, worker_container(spec).get("securityContext") or {}
    context = {name: pod[name] for name in _USER_FIELDS if name in pod}
    context |= {name: own[name] for name in _USER_FIELDS if name in own}
    if pod.get("fsGroup") is not None:
        groups = [*context.get("supplementalGroups", []), pod["fsGroup"]]
        context["supplementalGroups"] = list(dict.fromkeys(groups))
    return context


def reader_pod(
    job: Job,
    name: str,
    arguments: list[str],
    model: Model,
    node: str,
    time_limit_seconds: int,
    *,
    writes: bool = False,
) -> Raw:
    """The pod that runs ``rtj checkpoints ARGUMENTS`` on the job's claim, or its object storage.

    Args:
        node: it must run there, since the claim is mounted there; empty: anywhere.
        writes: it is to delete or to pin, so the claim is mounted for writing.
    """
    claim = job.spec.checkpoint.persistent_volume_claim
    volumes: list[Raw] = []
    mounts: list[Raw] = []
    if claim is not None:
        volumes = [{"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim.claim_name}}]
        mounts = [{"name": CHECKPOINT_VOLUME, "mountPath": CHECKPOINT_DIRECTORY, "readOnly": not writes}]
    owner = {key: value for key, value in owner_reference(job).items() if key in _OWNER}
    user = model.context.get("runAsUser")
    context = own_context(user)
    context["runAsNonRoot"] = user != 0
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": LABELS,
            "annotations": {ANNOTATION_JOB: job.name},
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": time_limit_seconds,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **_identity(job),
            "tolerations": model.tolerations,
            "imagePullSecrets": model.pull_secrets,
            "securityContext": {**model.context, "seccompProfile": {"type": "RuntimeDefault"}},
            **({"affinity": _on(node)} if node else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": model.image,
                    "imagePullPolicy": model.pull_policy,
                    "command": ["python", "-m", "resumable_operator.cli.main", "checkpoints", *arguments],
                    "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, *_bucket_env(job)],
                    "resources": RESOURCES,
                    "securityContext": context,
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _bucket_env(job: Job) -> list[Raw]:
    """What a worker's S3 client reads: variables of the template win, as they do in a worker."""
    s3 = job.spec.checkpoint.s3
    if s3 is None:
        return []
    own = [
        entry
        for entry in worker_container(_template(job)).get("env") or []
        if str(entry.get("name")).startswith("AWS_")
    ]
    names = {entry["name"] for entry in own}
    return [*own, *(entry for entry in s3_env(s3) if entry["name"] not in names)]


def _identity(job: Job) -> Raw:
    """The workers' service account, where that is what the bucket knows them by. It brings no API token."""
    s3, account = job.spec.checkpoint.s3, _template(job).get("serviceAccountName")
    return {"serviceAccountName": account} if s3 is not None and s3.secret_name is None and account else {}


def _template(job: Job) -> Raw:
    return dict((job.spec.template or {}).get("spec") or {})


# An owner, not a controller: blocking the job's deletion would need rights that people rarely have.
_OWNER = ("apiVersion", "kind", "name", "uid")


def _on(node: str) -> Raw:
    """Through the scheduler, which knows whether there is room."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    terms = [{"matchFields": fields}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


# ---- its state -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """``waiting`` and ``running`` go on; ``ended`` has an exit code; ``hopeless`` will not start."""

    kind: Literal["waiting", "running", "ended", "failed", "hopeless"]
    text: str = ""
    code: int = 0


def standing(pod: Raw) -> Standing:
    """What the pod's state means. By the reader's own container: others may have been added to the pod."""
    status = pod.get("status") or {}
    state = _state(status)
    if "terminated" in state:
        ended = state["terminated"]
        if status.get("reason") == "DeadlineExceeded":
            return Standing("failed", "DeadlineExceeded")
        killed = "" if ended.get("reason") in ("Completed", "Error", None) else str(ended["reason"])
        return (
            Standing("failed", killed) if killed else Standing("ended", code=int(ended.get("exitCode") or 0))
        )
    if status.get("phase") == "Failed":
        return Standing("failed", _words(status.get("reason"), status.get("message")))
    if "running" in state:
        return Standing("running")
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if reason in _HOPELESS:
        return Standing("hopeless", _words(reason, waiting.get("message")))
    if reason:
        return Standing("waiting", _words(reason, waiting.get("message")))
    return Standing("waiting", _unscheduled(status))


def _state(status: Raw) -> Raw:
    for item in status.get("containerStatuses") or []:
        if item.get("name") == CONTAINER:
            state: Raw = item.get("state") or {}
            return state
    return {}


def _unscheduled(status: Raw) -> str:
    for item in status.get("conditions") or []:
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return _words(item.get("reason"), item.get("message"))
    return "Pending"


def _words(reason: object, message: object) -> str:
    return ": ".join(str(part).strip() for part in (reason, message) if part)
