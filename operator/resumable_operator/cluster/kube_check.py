"""What only the cluster can tell about a spec, before anything is created from it. Pure; ``kubernetes`` asks.

Each problem names the field of the job and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from resumable_operator.cluster.kube_entries import JobEntry
from resumable_operator.cluster.kube_errors import FieldProblem, Invalid
from resumable_operator.decide.observation import Job, Problem
from resumable_operator.errors import ClusterRefused, SpecError
from resumable_operator.spec import LONGEST_NAME

Raw = Mapping[str, Any]

TEMPLATE = "spec.template"
CLAIM = "spec.checkpoint.persistentVolumeClaim.claimName"
S3_SECRET = "spec.checkpoint.s3.secretName"  # noqa: S105 -- a path
_DENIALS = (  # what admission says -> field, reason, fix; {0} is what the pattern caught
    (
        re.compile(r'serviceaccount "([^"]+)" not found'),
        "spec.template.spec.serviceAccountName",
        "ServiceAccountNotFound",
        "create it, or name another: service account {0}",
    ),
    (
        re.compile(r"no PriorityClass with name (\S+) was found"),
        "spec.template.spec.priorityClassName",
        "PriorityClassNotFound",
        "create it, or name another: priority class {0}",
    ),
    (
        re.compile(r'RuntimeClass "([^"]+)" not found'),
        "spec.template.spec.runtimeClassName",
        "RuntimeClassNotFound",
        "create it, or name another: runtime class {0}",
    ),
    (
        re.compile(r'violates PodSecurity "([^"]+)"'),
        "spec.template.spec",
        "PodSecurity",
        "change the securityContext to what the namespace allows ({0})",
    ),
)
_INDEXED = re.compile(r"^spec\.(initContainers|containers|volumes)\[(\d+)\]")


def name_problems(job: Job) -> list[Problem]:
    """Names of pods and values of labels follow from the job's name."""
    if len(job.name) > LONGEST_NAME:
        message = f"has {len(job.name)} characters, at most {LONGEST_NAME} can be used; take a shorter one"
        return [Problem("metadata.name", "NameTooLong", message)]
    return []


def spec_problem(error: SpecError) -> Problem:
    """A template that no worker can be made from."""
    return Problem(error.field, "TemplateInvalid", str(error).removeprefix(f"{error.field}: "))


# ---- the template ------------------------------------------------------------------------------------


def template_problems(job: Job, pod: Raw, error: ClusterRefused) -> list[Problem]:
    """What a refused dry run of the first pod says about the template. A full quota is no problem of it."""
    if isinstance(error, Invalid):
        if "does not support dry run" in str(error):
            return []  # a webhook of somebody's can't tell
        if not error.fields:
            return [Problem(TEMPLATE, "TemplateInvalid", str(error))]
        found = [_field_problem(job, pod, field) for field in error.fields]
        own = [problem for problem in found if "(" not in problem.field]
        return own or found  # what was added repeats what is wrong in the template, such as resources
    if error.reason == "AdmissionDenied":
        return [_denial(str(error))]
    if error.reason == "Forbidden":
        return [Problem(TEMPLATE, "Forbidden", f"pods can't be created: {error}")]
    if error.reason == "NamespaceTerminating":
        return [
            Problem("metadata.namespace", error.reason, "the namespace is being deleted; use another one")
        ]
    return []


def is_young_namespace(job: Job, error: ClusterRefused) -> bool:
    """Its default service account, which every namespace gets, is not there yet."""
    named = (job.spec.template.get("spec") or {}).get("serviceAccountName")
    return named is None and 'serviceaccount "default" not found' in str(error)


def _denial(message: str) -> Problem:
    for pattern, field, reason, fix in _DENIALS:
        match = pattern.search(message)
        if match:
            return Problem(field, reason, f"{message}. {fix.format(match[1]).capitalize()}")
    return Problem(TEMPLATE, "TemplateDenied", message)


def _field_problem(job: Job, pod: Raw, problem: FieldProblem) -> Problem:
    if not problem.field:
        return Problem(TEMPLATE, "TemplateInvalid", problem.message)
    field = _field_in_template(job.spec.template, pod, problem.field)
    return Problem(field, "TemplateInvalid", problem.message)


def _field_in_template(template: Raw, pod: Raw, field: str) -> str:
    """A path in the pod as a path in the job: lists of the pod hold more than those of the template."""
    match = _INDEXED.match(field)
    if not match:
        return f"{TEMPLATE}.{field}"
    kind, index = match[1], int(match[2])
    items = (pod.get("spec") or {}).get(kind) or []
    name = items[index].get("name") if index < len(items) else None
    rest = field[match.end() :]
    for number, item in enumerate((template.get("spec") or {}).get(kind) or []):
        if item.get("name") == name:
            return f"{TEMPLATE}.spec.{kind}[{number}]{rest}"
    return f"{TEMPLATE} ({kind}[{name or index}]{rest} of the pod made from it)"


# ---- storage -----------------------------------------------------------------------------------------


def claim_problems(job: Job, claim: Raw | None, *, one_node: bool) -> list[Problem]:
    """The claim of the checkpoints: is it there, can it be written, by all workers?

    Args:
        claim: None: there is none of that name.
        one_node: all workers will be on one node.
    """
    storage = job.spec.checkpoint.persistent_volume_claim
    assert storage is not None
    name = storage.claim_name
    if claim is None:
        return [Problem(CLAIM, "ClaimNotFound", f"create it: namespace {job.namespace} has no claim {name}")]
    if (claim.get("metadata") or {}).get("deletionTimestamp"):
        return [Problem(CLAIM, "ClaimTerminating", f"claim {name} is being deleted; name another")]
    if (claim.get("status") or {}).get("phase") == "Lost":
        return [Problem(CLAIM, "ClaimLost", f"the volume of claim {name} is gone; name another claim")]
    return _access_problems(job, name, set((claim.get("spec") or {}).get("accessModes") or ()), one_node)


def _access_problems(job: Job, name: str, modes: set[str], one_node: bool) -> list[Problem]:
    several = job.spec.workers.max_size + job.spec.workers.spares > 1
    if "ReadWriteMany" in modes:
        return []
    if not modes & {"ReadWriteOnce", "ReadWriteOncePod"}:
        message = f"claim {name} can only be read; use one with ReadWriteMany"
        return [Problem(CLAIM, "ClaimReadOnly", message)]
    if not several or (one_node and "ReadWriteOnce" in modes):
        return []
    mode = "ReadWriteOnce" if "ReadWriteOnce" in modes else "ReadWriteOncePod"
    message = (
        f"claim {name} is {mode}: it can't be mounted by workers on several nodes; use a claim with "
        "ReadWriteMany or S3"
        + (", or put all workers on one node (nodeSelector)" if mode == "ReadWriteOnce" else "")
    )
    return [Problem(CLAIM, "ClaimNotShared", message)]


def is_on_one_node(template: Raw) -> bool:
    """The template itself puts all pods on one node."""
    spec = template.get("spec") or {}
    return bool(spec.get("nodeName") or (spec.get("nodeSelector") or {}).get("kubernetes.io/hostname"))


def secret_problems(job: Job, found: bool) -> list[Problem]:
    """The Secret with the credentials of the object storage."""
    s3 = job.spec.checkpoint.s3
    if found or s3 is None:
        return []
    message = f"create it: namespace {job.namespace} has no Secret {s3.secret_name}"
    return [Problem(S3_SECRET, "SecretNotFound", message)]


def shared_store_problems(job: Job, own: JobEntry, sharers: Iterable[JobEntry]) -> list[Problem]:
    """Another, older job has the same checkpoint store. The older one is told nothing: it was there first.

    A job of another namespace can't stand in the way, nor is it named: who may write to a bucket is for the
    bucket to say, and the store itself refuses a second owner.
    """
    field = "spec.checkpoint"
    older = [other for other in sharers if other.key != job.key and _age(other) < _age(own)]
    for other in (other for other in older if other.namespace == own.namespace):
        if not job.spec.checkpoint.adopt:
            message = (
                f"job {other.key} has its checkpoints in the same place; give this one its own path or "
                "prefix, or take them over with checkpoint.adopt: true"
            )
            return [Problem(field, "StoreShared", message)]
        if _may_write(other):
            message = (
                f"job {other.key} may still write to the same place; whichever starts an attempt last goes "
                "on from there, and the other one's new checkpoints do not count: suspend or delete it"
            )
            return [Problem(field, "StoreShared", message, fatal=False)]
    if any(other.namespace != own.namespace for other in older) and not job.spec.checkpoint.adopt:
        message = (
            "a job of another namespace names the same place for its checkpoints, and the store refuses "
            "whichever comes second: give this one its own prefix"
        )
        return [Problem(field, "StoreShared", message, fatal=False)]
    return []


def _age(entry: JobEntry) -> tuple[str, str]:
    return str(entry.raw["metadata"].get("creationTimestamp") or ""), entry.uid


def _may_write(entry: JobEntry) -> bool:
    try:
        job = entry.read()
    except SpecError:
        return False
    return job.status.phase not in ("Succeeded", "Failed", "Suspended") and not job.deleting
