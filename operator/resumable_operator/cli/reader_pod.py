"""PURE: the short pod that reads or copies checkpoints for ``rtj checkpoints``, and what its state means.

It belongs to the job (the garbage collector removes it with the job, whatever became of its maker), but it is
no worker: it carries no label that the operator, a disruption budget or a network policy selects by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
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
IDLE_SECONDS = 60  # without a command a pod that waits for some ends: whoever made it may have been killed
_HOLD = """\
import os, signal
end, idle = {signal.SIGTERM}, 0
signal.pthread_sigmask(signal.SIG_BLOCK, end)
while idle < %d and signal.sigtimedwait(end, 5) is None:
    alone = sum(name.isdigit() for name in os.listdir("/proc")) == 1
    idle = idle + 5 if alone else 0
"""
HOLD = ("python", "-c", _HOLD % IDLE_SECONDS)
RTJ = ("python", "-m", "resumable_operator.cli.main")
LABELS = {"app.kubernetes.io/name": "rtj-reader", "app.kubernetes.io/managed-by": "rtj"}
ANNOTATION_JOB = f"{GROUP}/reads-for"
GRACE_SECONDS = {False: 1, True: 5}  # of one that writes: to give its pin back
TARGET_VOLUME, TARGET_DIRECTORY = "target", "/target"
SCRATCH_VOLUME, SCRATCH_DIRECTORY = "scratch", "/tmp"  # noqa: S108
PROGRESS_LINES = {"name": "RTJ_PROGRESS_LINES", "value": "2"}  # progress.LINES
_USER_FIELDS = ("runAsUser", "runAsGroup", "supplementalGroups", "seLinuxOptions")
_HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
_NO_START = ("StartError", "ContainerCannotRun")  # of a container that has "terminated" before it began
_NO_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_NO_SECRET = re.compile(r'secret "[^"]*" not found|in Secret ')
_DEFAULT_USER = 1000


@dataclass(frozen=True)
class Needs:
    """What a pod has beside the job's store, for what it is to do.

    Attributes:
        writes: it is to delete or to pin, so the job's claim is mounted for writing.
        claim: another one (or the same), to write to.
        env: variables with which it reaches the target's bucket.
        identity: it is known as the workers are, by their service account.
        command: what runs in it instead of ``rtj checkpoints``.
        memory: its limit, in bytes; with ``reserved`` so much is kept for it.
        scratch: it has a directory for temporary files.
    """

    writes: bool = False
    claim: str | None = None
    env: tuple[Raw, ...] = ()
    identity: bool = False
    command: tuple[str, ...] = ()
    memory: int = 1 << 30
    reserved: bool = False
    scratch: bool = False


READS = Needs()


@dataclass(frozen=True)
class Model:
    """What the reader takes over from the pods that wrote the checkpoints."""

    image: str
    pull_policy: str
    pull_secrets: list[Raw]
    tolerations: list[Raw]
    context: Raw  # of the pod: who writes
    group: int | None = None  # whom volumes are given to


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
                group=_group(spec),
            )
    return None


def model_of(job: Job, image: str, found: Model | None) -> Model:
    """For ``image``: as in the pod that was found, else as in the job's template."""
    if found is not None:
        return replace(found, image=image)
    spec = _template(job)
    secure(spec, _DEFAULT_USER)
    secrets, tolerations = spec.get("imagePullSecrets") or [], spec.get("tolerations") or []
    who = _who_writes(spec)
    return Model(image, "IfNotPresent", list(secrets), list(tolerations), who, _group(spec))


def _group(spec: Raw) -> int | None:
    group = (spec.get("securityContext") or {}).get("fsGroup")
    return None if group is None else int(group)


def worker_image(job: Job) -> tuple[str, str]:
    """The image that trains, which has torch, and how it is pulled."""
    container = worker_container(_template(job))
    return str(container.get("image") or ""), str(container.get("imagePullPolicy") or "IfNotPresent")


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
    needs: Needs = READS,
) -> Raw:
    """The pod that runs ``rtj checkpoints ARGUMENTS`` on the job's claim, or its object storage.

    Args:
        node: it must run there, since the claim is mounted there; empty: anywhere.
    """
    volumes, mounts = _volumes(job, needs)
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
            "terminationGracePeriodSeconds": GRACE_SECONDS[needs.writes],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **_identity(job, needs),
            "tolerations": model.tolerations,
            "imagePullSecrets": model.pull_secrets,
            "securityContext": _pod_context(model, needs),
            **({"affinity": _on(node)} if node else {}),
            "containers": [
                {
                    "name": CONTAINER,
                    "image": model.image,
                    "imagePullPolicy": model.pull_policy,
                    "command": [*(needs.command or (*RTJ, "checkpoints")), *arguments],
                    "env": [
                        {"name": "PYTHONUNBUFFERED", "value": "1"},
                        PROGRESS_LINES,
                        *_bucket_env(job),
                        *needs.env,
                    ],
                    "resources": _resources(needs),
                    "securityContext": context,
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _volumes(job: Job, needs: Needs) -> tuple[list[Raw], list[Raw]]:
    """Volumes, and where they are mounted. A claim that is both source and target is one volume."""
    claim = job.spec.checkpoint.persistent_volume_claim
    volumes: list[Raw] = []
    mounts: list[Raw] = []
    if needs.scratch:
        volumes.append({"name": SCRATCH_VOLUME, "emptyDir": {}})
        mounts.append({"name": SCRATCH_VOLUME, "mountPath": SCRATCH_DIRECTORY})
    if claim is not None:
        volumes.append({"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim.claim_name}})
        read_only = not needs.writes
        mounts.append({"name": CHECKPOINT_VOLUME, "mountPath": CHECKPOINT_DIRECTORY, "readOnly": read_only})
    if needs.claim is not None:
        same = claim is not None and claim.claim_name == needs.claim
        mounts.append({"name": CHECKPOINT_VOLUME if same else TARGET_VOLUME, "mountPath": TARGET_DIRECTORY})
        if not same:
            volumes.append({"name": TARGET_VOLUME, "persistentVolumeClaim": {"claimName": needs.claim}})
    return volumes, mounts


def _pod_context(model: Model, needs: Needs) -> Raw:
    """A new claim is often root's own: the kubelet gives it to the workers' group, as it did the job's."""
    context = {**model.context, "seccompProfile": {"type": "RuntimeDefault"}}
    if needs.claim is not None and model.group is not None:
        context |= {"fsGroup": model.group, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _resources(needs: Needs) -> Raw:
    """Limits, too, since a quota may ask for them."""
    asked = needs.memory if needs.reserved else min(needs.memory, 256 << 20)
    return {
        "requests": {"cpu": "100m", "memory": str(asked)},
        "limits": {"cpu": "2", "memory": str(needs.memory)},
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


def service_account(job: Job) -> str | None:
    """Of the workers, where they have one of their own."""
    account = _template(job).get("serviceAccountName")
    return str(account) if account else None


def _identity(job: Job, needs: Needs) -> Raw:
    """The workers' service account, where that is what a bucket knows them by. It brings no API token."""
    s3, account = job.spec.checkpoint.s3, service_account(job)
    known_by_it = needs.identity or (s3 is not None and s3.secret_name is None)
    return {"serviceAccountName": account} if known_by_it and account else {}


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
        if ended.get("reason") in _NO_START:
            return Standing("hopeless", _words(ended["reason"], ended.get("message")))
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
    why = _unscheduled(status)
    return Standing("hopeless" if _NO_CLAIM.search(why) else "waiting", why)


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


_HINTS = (
    (re.compile("ImagePull|InvalidImageName|StartError|ContainerCannotRun"), "--image names another image"),
    (
        _NO_SECRET,
        "the Secret must be in the job's namespace, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    (
        re.compile("Multi-Attach|already used by|already exclusively attached"),
        "a claim that one node alone can mount is in use on another: end the pod that has it, or suspend the"
        " job",
    ),
    (re.compile("OOMKilled"), "it needs more memory: --memory, or fewer --jobs"),
)


def misnamed(text: str) -> bool:
    """Whether a pod can't start for what the command line or the job names, rather than for the cluster."""
    return "InvalidImageName" in text or any(one.search(text) for one in (_NO_CLAIM, _NO_SECRET))


def hint(text: str) -> str:
    """What to do about a pod that did not start, or was ended, with that reason; empty, or ``; ...``."""
    found = (told for pattern, told in _HINTS if pattern.search(text))
    return next((f"; {told}" for told in found), "")
