"""PURE: the command lines of the control plane's processes, from ports and a directory.

Flags that shape what a test can see are here with their reason; starting and stopping is control_plane.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"

# A silent node is NotReady after 4 s instead of 40, and evictions are neither slowed down nor stopped when a
# good part of a small cluster is lost. (When *all* nodes are lost the controller takes its taints back.)
FAST_NODE_LOSS = (
    "--node-monitor-grace-period=4s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=1000",
    "--secondary-node-eviction-rate=1000",
    "--large-cluster-size-threshold=0",
    "--unhealthy-zone-threshold=1",
)

# Their default of 20 to 50 requests a second would make start-up and tests with many pods slow.
_CLIENT_RATE = ("--kube-api-qps=1000", "--kube-api-burst=2000", "--leader-elect=false")


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True)
class Layout:
    """Where things are in the directory of one control plane."""

    root: Path
    ports: Ports
    apiserver_flags: Sequence[str] = ()
    controller_manager_flags: Sequence[str] = field(default=FAST_NODE_LOSS)
    scheduler_flags: Sequence[str] = ()

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def ca_file(self) -> Path:
        """The CA alone, as clients and pods get it."""
        return self.certificates / "ca.crt"

    @property
    def serving_cert(self) -> Path:
        """Made by the API server at its first start; its CA follows in the same file."""
        return self.certificates / "apiserver.crt"

    @property
    def serving_key(self) -> Path:
        return self.certificates / "apiserver.key"

    @property
    def token_file(self) -> Path:
        return self.root / "tokens.csv"

    def kubeconfig(self, identity: str) -> Path:
        return self.root / f"{identity}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.root / "logs" / f"{component}.log"


def etcd(at: Layout) -> list[str]:
    """One member, no fsync: the data need not outlive the machine."""
    client, peer = f"http://{HOST}:{at.ports.etcd}", f"http://{HOST}:{at.ports.etcd_peer}"
    return [
        "--name=bed",
        f"--data-dir={at.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=bed={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver(at: Layout) -> list[str]:
    """As a cluster of a careful provider has it: RBAC, default admission, bound tokens.

    Its self-signed certificate is made in --cert-dir before keys are read, so the same key can sign tokens.
    OwnerReferencesPermissionEnforcement is on (as in OpenShift): whoever sets blockOwnerDeletion must be
    allowed to update the owner's finalizers.
    """
    return [
        f"--etcd-servers=http://{HOST}:{at.ports.etcd}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        f"--secure-port={at.ports.apiserver}",
        f"--cert-dir={at.certificates}",
        f"--token-auth-file={at.token_file}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        f"--service-account-issuer=https://{HOST}:{at.ports.apiserver}",
        f"--service-account-key-file={at.serving_key}",
        f"--service-account-signing-key-file={at.serving_key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--endpoint-reconciler-type=none",  # a loopback address may not be an endpoint
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        *at.apiserver_flags,
    ]


def controller_manager(at: Layout) -> list[str]:
    """All controllers, each with its own service account and RBAC role."""
    return [
        *_client(at, "controller-manager", at.ports.controller_manager),
        "--use-service-account-credentials",
        f"--root-ca-file={at.ca_file}",
        f"--service-account-private-key-file={at.serving_key}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        *at.controller_manager_flags,
    ]


def scheduler(at: Layout) -> list[str]:
    """The default profile: preemption by priority, taints, affinities."""
    return [*_client(at, "scheduler", at.ports.scheduler), *at.scheduler_flags]


def _client(at: Layout, identity: str, port: int) -> list[str]:
    kubeconfig = at.kubeconfig(identity)
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup",  # of client CAs: there are none
        f"--authorization-kubeconfig={kubeconfig}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        f"--tls-cert-file={at.serving_cert}",
        f"--tls-private-key-file={at.serving_key}",
        *_CLIENT_RATE,
    ]


def kubeconfig(url: str, certificate_authority: str, token: str, namespace: str = "default") -> str:
    """Text of a kubeconfig (JSON is YAML) for one identity; `certificate_authority` is base64 of PEM."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "bed",
                    "cluster": {"server": url, "certificate-authority-data": certificate_authority},
                }
            ],
            "users": [{"name": "bed", "user": {"token": token}}],
            "contexts": [
                {"name": "bed", "context": {"cluster": "bed", "user": "bed", "namespace": namespace}}
            ],
            "current-context": "bed",
        },
        indent=2,
    )
