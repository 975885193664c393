"""PURE: what a container's environment, command and users become, from the pod and the objects that it
refers to.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bed.containers_root import Identity

Object = dict[str, Any]
Reference = tuple[str, str]  # ("secrets" | "configmaps", name)
Data = dict[str, bytes]

# What a container runtime leaves to root by default.
DEFAULT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31})
# By number.
# fmt: off
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL",
    "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
    "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)
# fmt: on
SUFFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3}
SUFFIXES |= {letter: 1000.0 ** (power + 1) for power, letter in enumerate("kMGTPE")}
SUFFIXES |= {f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")}

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?|[KMGTPE]i)")


class ConfigError(Exception):
    """The container cannot be made from what is there: reason and message as the kubelet words them."""

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` by its value, `$$` as `$`; an unknown name stays as it is written."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def quantity(text: str | float) -> float:
    """Value of a Kubernetes quantity: "500m" is 0.5, "1Gi" is 1073741824."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"not a quantity: {text}")
    return float(match[1]) * SUFFIXES[match[2]]


def field(pod: Object, status: Mapping[str, str], path: str) -> str:
    """Value of a downward API field; `status` has podIP, podIPs, hostIP, hostIPs."""
    metadata, spec = pod["metadata"], pod["spec"]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = metadata.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={_quoted(pairs[key])}" for key in sorted(pairs))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        **{f"status.{key}": value for key, value in status.items()},
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(values[path])


def resource(pod: Object, selector: Object, container: str, allocatable: Mapping[str, str]) -> str:
    """Value of a resourceFieldRef, rounded up; a missing limit is what the node has."""
    name = selector.get("containerName") or container
    spec = next(item for item in _all_containers(pod) if item["name"] == name)
    side, _, key = selector["resource"].partition(".")
    amounts = (spec.get("resources") or {}).get(side) or {}
    amount = amounts.get(key, allocatable.get(key, "0") if side == "limits" else "0")
    divisor = quantity(selector.get("divisor") or "1") or 1
    return str(math.ceil(round(quantity(amount) / divisor, 9)))


def references(container: Object) -> set[Reference]:
    """The Secrets and ConfigMaps that its environment takes values from."""
    found = set()
    for source in container.get("envFrom") or []:
        for key, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if source.get(key):
                found.add((plural, source[key]["name"]))
    for variable in container.get("env") or []:
        origin = variable.get("valueFrom") or {}
        for key, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
            if origin.get(key):
                found.add((plural, origin[key]["name"]))
    return found


def environment(
    container: Object,
    objects: Mapping[Reference, Data | None],
    base: Mapping[str, str],
    lookup: Callable[[Object], str],
) -> dict[str, str]:
    """Variables of `container` on top of `base`. `lookup` gives a fieldRef's or resourceFieldRef's value."""
    env = dict(base)
    for source in container.get("envFrom") or []:
        env |= _whole(source, objects)
    for variable in container.get("env") or []:
        origin = variable.get("valueFrom")
        if origin is None:
            env[variable["name"]] = expand(variable.get("value") or "", env)
            continue
        value = _from(origin, objects, lookup)
        if value is not None:
            env[variable["name"]] = value
    return env


def command(
    container: Object, env: Mapping[str, str], entrypoint: Sequence[str], default: Sequence[str]
) -> tuple[str, ...]:
    """The argument list, as Kubernetes makes it from the container's and the image's."""
    own, args = container.get("command"), container.get("args")
    head = [expand(part, env) for part in own] if own else list(entrypoint)
    tail = [expand(part, env) for part in args] if args else ([] if own else list(default))
    if not head + tail:
        raise ConfigError("no command specified", "CreateContainerError")
    return (*head, *tail)


def identity(pod: Object, container: Object, image_user: int) -> Identity:
    """User, groups and capabilities from both security contexts."""
    outer, inner = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    both = {**outer, **{key: value for key, value in inner.items() if value is not None}}
    uid = both.get("runAsUser", image_user)
    if both.get("runAsNonRoot") and uid == 0:
        raise ConfigError("container has runAsNonRoot and image will run as root")
    groups = [*([outer["fsGroup"]] if outer.get("fsGroup") else []), *(outer.get("supplementalGroups") or [])]
    return Identity(
        uid=uid,
        gid=both.get("runAsGroup", 0),
        groups=tuple(groups),
        capabilities=None if both.get("privileged") else _capabilities(inner.get("capabilities") or {}),
        no_new_privileges=both.get("allowPrivilegeEscalation") is False,
    )


def data_of(item: Object) -> Data:
    """Bytes by key of a Secret or ConfigMap."""
    binary = item.get("binaryData") or {}
    if item.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in binary.items()}


def _all_containers(pod: Object) -> list[Object]:
    return [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _whole(source: Object, objects: Mapping[Reference, Data | None]) -> dict[str, str]:
    key, plural = ("secretRef", "secrets") if source.get("secretRef") else ("configMapRef", "configmaps")
    reference = source[key]
    data = objects.get((plural, reference["name"]))
    if data is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(_missing(plural, reference["name"]))
    prefix = source.get("prefix") or ""
    return {prefix + name: value.decode() for name, value in data.items()}


def _from(
    origin: Object, objects: Mapping[Reference, Data | None], lookup: Callable[[Object], str]
) -> str | None:
    for key, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if origin.get(key):
            return _key(plural, origin[key], objects)
    if origin.get("fieldRef") or origin.get("resourceFieldRef"):
        return lookup(origin)
    raise ConfigError(f"unsupported source of a variable: {', '.join(origin)}")


def _key(plural: str, reference: Object, objects: Mapping[Reference, Data | None]) -> str | None:
    data = objects.get((plural, reference["name"]))
    if data is not None and reference["key"] in data:
        return data[reference["key"]].decode()
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(_missing(plural, reference["name"]))
    kind = "Secret" if plural == "secrets" else "ConfigMap"
    raise ConfigError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")


def _missing(plural: str, name: str) -> str:
    return f'{plural.removesuffix("s")} "{name}" not found'


def _capabilities(wanted: Object) -> frozenset[int]:
    dropped, added = wanted.get("drop") or [], wanted.get("add") or []
    kept = frozenset() if "ALL" in dropped else DEFAULT_CAPABILITIES - _numbers(dropped)
    return kept | (frozenset(range(len(CAPABILITIES))) if "ALL" in added else _numbers(added))


def _numbers(names: Sequence[str]) -> frozenset[int]:
    return frozenset(CAPABILITIES.index(name.removeprefix("CAP_")) for name in names)
