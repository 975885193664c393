"""The Node object of a fake kubelet, its lease, and the taints with which clouds announce an end.

Only the present time comes from outside.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from bed.kubelet_api import Object

VERSION = "v1.37.2"
PORT = 10250
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
GPU = "nvidia.com/gpu"
# Asks the API server to pass web sockets (kubectl exec) through as they are.
DECLARED_FEATURES = ["ExtendWebSocketsToKubelet"]


@dataclass(frozen=True)
class NodeSpec:
    """What a test asks for; `taints` as kubectl writes them: key=value:Effect or key:Effect."""

    name: str
    cpu: str
    memory: str
    gpus: int
    labels: Mapping[str, str]
    taints: Sequence[str]
    pods: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Notice:
    """How a provider announces that a machine will be taken away, and how long before."""

    key: str
    value: str
    seconds: float


NOTICES = {
    "aws": Notice("aws-node-termination-handler/spot-itn", "", 120.0),
    "gke": Notice("cloud.google.com/impending-node-termination", "", 30.0),
    "aks": Notice("remediator.kubernetes.azure.com/unschedulable", "", 30.0),
    "karpenter": Notice("karpenter.sh/disrupted", "", 120.0),
}


def taint(text: str) -> Object:
    """From kubectl's form; ValueError if it is not one."""
    left, _, effect = text.rpartition(":")
    key, _, value = left.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(f"not a taint: {text!r}; write key=value:Effect")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def capacity(spec: NodeSpec) -> dict[str, str]:
    """What the node has; all of it is allocatable."""
    found = {"cpu": spec.cpu, "memory": spec.memory, "pods": str(spec.pods), "ephemeral-storage": "100Gi"}
    return {**found, **({GPU: str(spec.gpus)} if spec.gpus else {})}


def node(spec: NodeSpec, address: str, boot_id: str) -> Object:
    """The object as it is created."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {
                "kubernetes.io/hostname": spec.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": ARCHITECTURE,
                **spec.labels,
            },
        },
        "spec": {"taints": [taint(text) for text in spec.taints]},
        "status": {**status(spec, address, boot_id, ""), "conditions": conditions("")},
    }


def status(spec: NodeSpec, address: str, boot_id: str, not_ready: str) -> Object:
    """Its status as a heartbeat patches it. `not_ready`: why; empty if it is ready."""
    return {
        "addresses": [{"type": "InternalIP", "address": address}],
        "capacity": capacity(spec),
        "allocatable": capacity(spec),
        "conditions": conditions(not_ready),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": PORT}},
        "declaredFeatures": DECLARED_FEATURES,
        "nodeInfo": {
            "architecture": ARCHITECTURE,
            "bootID": boot_id,
            "containerRuntimeVersion": "process://1",
            "kernelVersion": "bed",
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": spec.name,
            "operatingSystem": "linux",
            "osImage": "The host's own",
            "systemUUID": spec.name,
        },
    }


def conditions(not_ready: str) -> list[Object]:
    """The kubelet's conditions, with the present as heartbeat."""
    good = {
        "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    }
    found = [
        {"type": kind, "status": "False", "reason": reason, "message": message}
        for kind, (reason, message) in good.items()
    ]
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    if not_ready:
        ready |= {"status": "False", "reason": "KubeletNotReady", "message": not_ready}
    return [{**item, "lastHeartbeatTime": seconds()} for item in (*found, ready)]


def lease(name: str, uid: str) -> Object:
    """The node's lease as it is created."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "metadata": {"name": name, "namespace": "kube-node-lease", "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": microseconds()},
    }


def seconds() -> str:
    """Now, as metav1.Time."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def microseconds() -> str:
    """Now, as metav1.MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
