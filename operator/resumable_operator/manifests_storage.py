"""PURE: the volumes of a worker's pod, where they are mounted, and the variables of object storage."""

from __future__ import annotations

import posixpath
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from resumable_operator.decide.assign import MOUNT_PATH
from resumable_operator.manifests_security import key_mode
from resumable_operator.model import Checkpoint, S3Storage

Raw = dict[str, Any]

AGENT_CONTAINER = "resumable-agent"
AGENT_VOLUME, AGENT_DIRECTORY = "resumable-agent", "/opt/resumable"  # the agent's program
SCRATCH_VOLUME, SCRATCH_DIRECTORY = "resumable-scratch", "/run/resumable"  # sockets, run files, logs
KEY_VOLUME, KEY_DIRECTORY = "resumable-key", "/etc/resumable"
SHM_VOLUME, SHM_DIRECTORY = "resumable-shm", "/dev/shm"  # noqa: S108
CHECKPOINT_VOLUME, CHECKPOINT_DIRECTORY = "resumable-checkpoints", MOUNT_PATH

OUR_VOLUMES = (AGENT_VOLUME, SCRATCH_VOLUME, KEY_VOLUME, SHM_VOLUME, CHECKPOINT_VOLUME)
OUR_DIRECTORIES = (AGENT_DIRECTORY, SCRATCH_DIRECTORY, KEY_DIRECTORY)

_S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_S3_OPTIONAL_KEYS = ("AWS_SESSION_TOKEN", "AWS_REGION")
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(|[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)")
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    **{letter: Decimal(1000**power) for power, letter in enumerate("MGTPE", start=2)},
    **{f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}


def mount_all(spec: Raw, worker: Raw, checkpoint: Checkpoint, key_secret: str) -> None:
    """Add the volumes that a worker needs to the pod, and mount them into the worker's container."""
    volumes: list[Raw] = [
        {"name": AGENT_VOLUME, "emptyDir": {}},
        {"name": SCRATCH_VOLUME, "emptyDir": {}},
        {"name": KEY_VOLUME, "secret": {"secretName": key_secret, "defaultMode": key_mode(spec)}},
    ]
    mounts: list[Raw] = [
        {"name": AGENT_VOLUME, "mountPath": AGENT_DIRECTORY, "readOnly": True},
        {"name": SCRATCH_VOLUME, "mountPath": SCRATCH_DIRECTORY},
        {"name": KEY_VOLUME, "mountPath": KEY_DIRECTORY, "readOnly": True},
    ]
    own = worker.get("volumeMounts") or []
    if not any(mount_path(mount) == SHM_DIRECTORY for mount in own):
        volumes.append({"name": SHM_VOLUME, "emptyDir": _shm(spec, worker)})
        mounts.append({"name": SHM_VOLUME, "mountPath": SHM_DIRECTORY})
    claim = checkpoint.persistent_volume_claim
    if claim is not None:
        volumes.append({"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim.claim_name}})
        mounts.append({"name": CHECKPOINT_VOLUME, "mountPath": CHECKPOINT_DIRECTORY})
    spec["volumes"] = [*(spec.get("volumes") or []), *volumes]
    worker["volumeMounts"] = [*own, *mounts]


def mount_path(mount: Raw) -> str:
    """In its shortest form."""
    return "/" + posixpath.normpath(str(mount.get("mountPath"))).lstrip("/")


def s3_env(s3: S3Storage) -> list[Raw]:
    """What S3 clients read; values of the Secret by reference only."""
    variables: list[Raw] = []
    if s3.secret_name is not None:
        for name in (*_S3_KEYS, *_S3_OPTIONAL_KEYS):
            reference: Raw = {"name": s3.secret_name, "key": name}
            if name in _S3_OPTIONAL_KEYS:
                reference["optional"] = True
            variables.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    if s3.endpoint is not None:
        variables.append({"name": "AWS_ENDPOINT_URL", "value": s3.endpoint.replace("$", "$$")})
    return variables


def _shm(spec: Raw, worker: Raw) -> Raw:
    """Half of the memory limit, as Linux does it with the machine's memory.

    Data loaders pass batches through it, and the 64 MiB of container runtimes end in SIGBUS. What is in it
    counts as the container's memory. With no limit to halve it has no size of its own: then the kubelet
    gives it as much as the node has for pods, and nothing is used up until it is written.
    """
    limit = _memory_limit(worker) or _memory_limit(spec)  # the pod's own: spec.resources
    return {"medium": "Memory", **({"sizeLimit": str(limit // 2)} if limit else {})}


def _memory_limit(owner: Raw) -> int | None:
    """Bytes; None: no limit, or none that can be read (the API server will say so)."""
    limits = (owner.get("resources") or {}).get("limits") or {}
    return memory_bytes(limits.get("memory"))


def memory_bytes(quantity: object) -> int | None:
    """A Kubernetes quantity (``64Gi``, ``1.5G``, ``1e9``, 128974848) in bytes; None: not one above zero."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None:
        return None
    number, suffix = match.groups()
    try:
        if suffix[:1] in ("e", "E") and suffix != "E" and suffix != "Ei":
            value = Decimal(number + suffix)
        else:
            value = Decimal(number) * _SUFFIXES.get(suffix, Decimal(1))
        return int(value) if 0 < value < 2**63 else None
    except InvalidOperation:
        return None
