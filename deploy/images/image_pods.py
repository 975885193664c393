"""PURE: a container of a rendered pod -> the command with which docker or podman runs it as a kubelet would.

Called by image_check.py. What a kubelet does with user, groups, capabilities, root, volumes, command and
variables is done; resources, probes and seccomp profiles are the tool's own business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed.pod_env import expand

Raw = dict[str, Any]

_QUIET = ("--network", "none")  # nothing that is checked needs one
SHARED = "z"  # with SELinux: a label that several containers may read; nothing elsewhere


@dataclass(frozen=True)
class Pod:
    """What its containers share.

    Attributes:
        spec: of the pod, as rendered.
        volumes: by name, the folder of this machine that stands for it; one in memory needs none.
        fields: values of ``fieldRef`` by path.
    """

    spec: Raw
    volumes: Mapping[str, Path]
    fields: Mapping[str, str]


def run_command(tool: str, pod: Pod, container: Raw, *options: str, more: Sequence[str] = ()) -> list[str]:
    """``tool run`` with the container's image and command line.

    Args:
        options: for ``run``, beside what follows from the pod.
        more: arguments at the end of the container's own.
    """
    env = environment(container, pod.fields)
    command = [expand(word, env) for word in container.get("command") or ()]
    arguments = [*command[1:], *(expand(word, env) for word in container.get("args") or ()), *more]
    entrypoint = ["--entrypoint", command[0]] if command else []
    variables = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    return [
        *(tool, "run", *_QUIET, *options),
        *confinement(tool, pod.spec.get("securityContext") or {}, container.get("securityContext") or {}),
        *mounts(pod, container),
        *variables,
        *entrypoint,
        container["image"],
        *arguments,
    ]


def environment(container: Raw, fields: Mapping[str, str]) -> dict[str, str]:
    """The variables; each value may use those before it."""
    found: dict[str, str] = {}
    for entry in container.get("env") or ():
        if "value" in entry:
            found[entry["name"]] = expand(entry["value"], found)
        else:
            found[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
    return found


def confinement(tool: str, pod: Raw, container: Raw) -> list[str]:
    """User and group, root, capabilities, new privileges; the container's word before the pod's."""
    both = {**pod, **container}
    options = []
    if both.get("runAsUser") is not None:
        group = both.get("runAsGroup")  # None: that user's own, as the image knows it
        options += ["--user", str(both["runAsUser"]) if group is None else f"{both['runAsUser']}:{group}"]
    if container.get("readOnlyRootFilesystem"):
        # Podman otherwise mounts /tmp and more, where a pod has only what its volumes say.
        options += ["--read-only", *(["--read-only-tmpfs=false"] if tool == "podman" else [])]
    for name in (container.get("capabilities") or {}).get("drop") or ():
        options += ["--cap-drop", name]
    if container.get("allowPrivilegeEscalation") is False:
        options += ["--security-opt", "no-new-privileges"]
    return options


def mounts(pod: Pod, container: Raw) -> list[str]:
    """Folders for volumes, and a tmpfs for one that lives in memory."""
    options = []
    in_memory = {
        volume["name"]
        for volume in pod.spec.get("volumes") or ()
        if (volume.get("emptyDir") or {}).get("medium") == "Memory"
    }
    for mount in container.get("volumeMounts") or ():
        if mount["name"] in in_memory:
            options += ["--tmpfs", f"{mount['mountPath']}:rw,mode=1777"]
        else:
            flags = f"ro,{SHARED}" if mount.get("readOnly") else SHARED
            options += ["--volume", f"{pod.volumes[mount['name']]}:{mount['mountPath']}:{flags}"]
    return options
