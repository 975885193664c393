"""PURE: reads a pod template and refuses what a worker could not be made of, each with its field.

What the API server itself refuses is left to it; here is what it would take and what would then not do what
the user meant.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from resumable_operator.errors import SpecError
from resumable_operator.manifests_storage import (
    AGENT_CONTAINER,
    CHECKPOINT_DIRECTORY,
    OUR_DIRECTORIES,
    OUR_VOLUMES,
    mount_path,
)
from resumable_operator.model import JobSpec
from resumable_training.contract import env, labels

Raw = dict[str, Any]

TEMPLATE = "spec.template"
_OUR_LABELS = (
    labels.LABEL_MANAGED_BY,
    labels.LABEL_JOB,
    labels.LABEL_JOB_UID,
    labels.LABEL_PLACE,
    labels.LABEL_INCARNATION,
)
_OF_METADATA = ("labels", "annotations", "finalizers", "creationTimestamp")  # the last: null, by many tools
_USERS_VARIABLES = (env.TRACE_DIR,)  # of those that begin with RESUMABLE_


@dataclass
class Template:
    """A copy that may be changed. ``worker`` is one of the containers in ``spec``."""

    spec: Raw
    worker: Raw
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: list[str] = field(default_factory=list)


def read_template(job: JobSpec, agent_port: int) -> Template:
    """The job's template, fit for a worker.

    Raises:
        SpecError: it is not.
    """
    whole = copy.deepcopy(job.template)
    for name in whole:
        if name not in ("metadata", "spec"):
            _refuse(f"{TEMPLATE}.{name}", "a pod template has metadata and spec only")
    metadata = _part(whole, "metadata", TEMPLATE)
    spec = _part(whole, "spec", TEMPLATE)
    _check_metadata(metadata)
    where = f"{TEMPLATE}.spec"
    _check_shapes(spec, where)
    containers = _list(spec, "containers", where)
    number = _worker_number(job)
    worker, place = containers[number], f"{where}.containers[{number}]"
    _check_names(spec, where)
    _check_restart_policy(spec, where)
    _check_restart_policy(worker, place)
    _check_ports(containers, agent_port, where)
    _check_mounts(worker, place, has_claim=job.checkpoint.persistent_volume_claim is not None)
    _check_variables(worker, place)
    return Template(
        spec,
        worker,
        _part(metadata, "labels", f"{TEMPLATE}.metadata"),
        _part(metadata, "annotations", f"{TEMPLATE}.metadata"),
        _list(metadata, "finalizers", f"{TEMPLATE}.metadata"),
    )


def _worker_number(job: JobSpec) -> int:
    """Which container is the job's worker; it must have a command."""
    job.command()
    chosen = job.worker_container()
    containers = job.template["spec"]["containers"]
    return next(number for number, container in enumerate(containers) if container is chosen)


def _check_metadata(metadata: Raw) -> None:
    for name in metadata:
        if name not in _OF_METADATA:
            _refuse(f"{TEMPLATE}.metadata.{name}", "leave it out: the operator names and owns the pods")
    for kind, ours in (("labels", _OUR_LABELS), ("annotations", (labels.ANNOTATION_KEY_ID,))):
        for name in _part(metadata, kind, f"{TEMPLATE}.metadata"):
            if name in ours:
                _refuse(
                    f"{TEMPLATE}.metadata.{kind}[{name}]", "leave it out: the operator finds its pods by it"
                )


def _check_shapes(spec: Raw, where: str) -> None:
    """All that is looked into has the shape that it must have; what is in it is the API server's to judge."""
    for name in ("tolerations", "volumes", "imagePullSecrets"):
        _check_list(spec, name, where)
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        _refuse(f"{where}.terminationGracePeriodSeconds", f"must be a whole number, not {grace!r:.60}")
    affinity = _part(_part(spec, "affinity", where), "nodeAffinity", f"{where}.affinity")
    _list(affinity, "preferredDuringSchedulingIgnoredDuringExecution", f"{where}.affinity.nodeAffinity")
    _check_owner(spec, where)
    for kind in ("containers", "initContainers"):
        for place, container in _entries(spec, kind, where):
            _check_owner(container, place)
            for name in ("env", "ports", "volumeMounts"):
                _check_list(container, name, place)


def _check_owner(owner: Raw, where: str) -> None:
    """What a pod and a container both have."""
    resources = _part(owner, "resources", where)
    for kind in ("requests", "limits"):
        _part(resources, kind, f"{where}.resources")
    capabilities = _part(_part(owner, "securityContext", where), "capabilities", f"{where}.securityContext")
    _list(capabilities, "add", f"{where}.securityContext.capabilities")


def _check_list(parent: Raw, name: str, where: str) -> None:
    for _, entry in _entries(parent, name, where):
        assert isinstance(entry, dict)


def _check_names(spec: Raw, where: str) -> None:
    for kind in ("containers", "initContainers"):
        for place, container in _entries(spec, kind, where):
            if container.get("name") == AGENT_CONTAINER:
                _refuse(f"{place}.name", f"{AGENT_CONTAINER} is the operator's own; choose another name")
    for place, volume in _entries(spec, "volumes", where):
        if volume.get("name") in OUR_VOLUMES:
            _refuse(f"{place}.name", f"{volume['name']} is the operator's own; choose another name")


def _check_restart_policy(spec: Raw, where: str) -> None:
    if spec.get("restartPolicy") not in (None, "Never"):
        _refuse(
            f"{where}.restartPolicy",
            "must be Never, or left out: the agent restarts ranks in place, and the operator makes new pods",
        )


def _check_ports(containers: list[Raw], agent_port: int, where: str) -> None:
    for number, container in enumerate(containers):
        for place, port in _entries(container, "ports", f"{where}.containers[{number}]"):
            if port.get("name") == labels.AGENT_PORT_NAME:
                _refuse(f"{place}.name", f"{labels.AGENT_PORT_NAME} is the agent's port; choose another name")
            if port.get("containerPort") == agent_port and port.get("protocol") in (None, "TCP"):
                _refuse(f"{place}.containerPort", f"{agent_port} is the agent's port; choose another")


def _check_mounts(worker: Raw, where: str, has_claim: bool) -> None:
    for place, mount in _entries(worker, "volumeMounts", where):
        path = mount_path(mount)
        for ours in OUR_DIRECTORIES:
            if path == ours or path.startswith(f"{ours}/"):
                _refuse(f"{place}.mountPath", f"{ours} is the agent's directory; mount it elsewhere")
        if has_claim and path == CHECKPOINT_DIRECTORY:
            _refuse(
                f"{place}.mountPath",
                f"spec.checkpoint.persistentVolumeClaim is mounted at {CHECKPOINT_DIRECTORY}; mount this "
                "volume elsewhere",
            )


def _check_variables(worker: Raw, where: str) -> None:
    for place, entry in _entries(worker, "env", where):
        name = str(entry.get("name"))
        ours = name.startswith("RESUMABLE_") and name not in _USERS_VARIABLES
        if ours or name in env.TORCHRUN:
            _refuse(f"{place}.name", f"leave {name} out: the agent sets it for each rank")


def _entries(parent: Raw, name: str, where: str) -> Iterator[tuple[str, Raw]]:
    """The mappings in a list, each with its path."""
    for number, entry in enumerate(_list(parent, name, where)):
        place = f"{where}.{name}[{number}]"
        if not isinstance(entry, dict):
            _refuse(place, f"must be a mapping, not {entry!r:.60}")
        yield place, entry


def _part(parent: Raw, name: str, where: str) -> Raw:
    """A part that is a mapping. Null is the same as nothing, as in Kubernetes."""
    value = parent.get(name)
    if value is not None and not isinstance(value, dict):
        _refuse(f"{where}.{name}", f"must be a mapping, not {value!r:.60}")
    return value or {}


def _list(parent: Raw, name: str, where: str) -> list[Any]:
    value = parent.get(name)
    if value is not None and not isinstance(value, list):
        _refuse(f"{where}.{name}", f"must be a list, not {value!r:.60}")
    return value or []


def _refuse(path: str, message: str) -> NoReturn:
    raise SpecError(path, message)
