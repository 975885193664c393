"""A real Kubernetes control plane on 127.0.0.1: etcd, API server, controller manager, scheduler.

Ready in about four seconds, gone at once, and gone too when the process that started it is killed. Several
can run side by side. Nodes are another matter: nodes.py.
"""

from __future__ import annotations

import base64
import os
import random
import secrets
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bed import components
from bed.api import Api, ApiError, Object, path
from bed.binaries import binary
from bed.components import FAST_NODE_LOSS, HOST, Layout, Ports
from bed.processes import Component, ComponentDied, wait_until

# Below the range that the kernel takes ports of outgoing connections from, so that a port stays free while
# its owner restarts.
PORTS = range(15000, 30000)
START_SECONDS = 120.0
START_TRIES = 3
KUBECTL_SECONDS = 120.0

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")

_IDENTITIES = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}


@dataclass
class ControlPlane:
    """A running control plane. Start it with `ControlPlane.start`; end it with `stop`, or as a `with` block.

    `admin_token` may do everything. `serving_cert` and `serving_key` (PEM) are valid for 127.0.0.1 and may
    serve the fake kubelets too.
    """

    layout: Layout
    tokens: dict[str, str]
    _running: dict[str, Component] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        apiserver_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = FAST_NODE_LOSS,
        scheduler_flags: Sequence[str] = (),
    ) -> ControlPlane:
        """Start everything in `directory` (made if missing, must be empty) and wait until it is ready.

        Ready: /readyz of the API server is ok, the default service account exists, the scheduler is healthy.
        Raises ComponentDied with the end of a component's log, TimeoutError, BuildFailed (binaries.py).
        """
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ValueError(f"{directory} is not empty: a control plane starts from nothing")
        tokens = {identity: secrets.token_hex(16) for identity in _IDENTITIES}
        for attempt in range(START_TRIES):
            layout = Layout(
                directory if attempt == 0 else directory / f"try-{attempt}",
                _free_ports(),
                apiserver_flags,
                controller_manager_flags,
                scheduler_flags,
            )
            plane = cls(layout, tokens)
            try:
                plane._start_all()
            except ComponentDied as error:
                plane.stop()
                if "address already in use" not in str(error) or attempt == START_TRIES - 1:
                    raise
            except BaseException:
                plane.stop()
                raise
            else:
                return plane
        raise AssertionError("the last try returns or raises")

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        return self.layout.root

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.layout.ports.apiserver}"

    @property
    def port(self) -> int:
        """Of the API server on 127.0.0.1; for KUBERNETES_SERVICE_PORT."""
        return self.layout.ports.apiserver

    @property
    def ca_file(self) -> Path:
        return self.layout.ca_file

    @property
    def serving_cert(self) -> Path:
        return self.layout.serving_cert

    @property
    def serving_key(self) -> Path:
        return self.layout.serving_key

    @property
    def admin_token(self) -> str:
        return self.tokens["admin"]

    @property
    def kubeconfig(self) -> Path:
        """Of the admin."""
        return self.layout.kubeconfig("admin")

    @cached_property
    def api(self) -> Api:
        """A client as admin."""
        return Api(self.url, self.admin_token, self.ca_file)

    @property
    def pids(self) -> dict[str, int]:
        """Component name -> process id, of those that run."""
        return {name: part.process.pid for name, part in self._running.items() if part.running}

    def log(self, component: str) -> Path:
        """Where etcd, kube-apiserver, kube-controller-manager or kube-scheduler writes to."""
        return self.layout.log(component)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin; with `check` a failure is CalledProcessError, its stderr added."""
        result = subprocess.run(
            [binary("kubectl"), *arguments],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=KUBECTL_SECONDS,
            check=False,
        )
        if check and result.returncode:
            error = subprocess.CalledProcessError(
                result.returncode, ["kubectl", *arguments], result.stdout, result.stderr
            )
            error.add_note(result.stderr)
            raise error
        return result

    def token(self, service_account: str, namespace: str, seconds: int = 3600) -> str:
        """A fresh token of a service account (TokenRequest); the server wants at least 600 s."""
        where = path("v1", "serviceaccounts", namespace, service_account, "token")
        answer = self.api.create(where, {"spec": {"expirationSeconds": seconds}})
        token: str = answer["status"]["token"]
        return token

    def api_as(self, service_account: str, namespace: str) -> Api:
        """A client with no more rights than the service account."""
        return Api(self.url, self.token(service_account, namespace), self.ca_file)

    def kubeconfig_for(self, service_account: str, namespace: str) -> Path:
        """A kubeconfig with no more rights than the service account; in the plane's directory."""
        token = self.token(service_account, namespace)
        return self._write_kubeconfig(f"{namespace}-{service_account}", token, namespace)

    def define_kind(self, definition: Object) -> None:
        """Create or change a CustomResourceDefinition; ApiError when it is refused.

        Returns when it is served, and the garbage collector knows it.
        """
        kinds = path("apiextensions.k8s.io/v1", "customresourcedefinitions")
        where = f"{kinds}/{definition['metadata']['name']}"
        self.api.patch(where, definition, "apply", fieldManager="bed", force=True)
        spec = definition["spec"]
        for version in spec["versions"]:
            if version["served"]:
                where = path(f"{spec['group']}/{version['name']}", spec["names"]["plural"])
                self._await(lambda where=where: self._serves(where), f"{where} to be served")
        self.restart_controller_manager()

    def _serves(self, where: str) -> bool:
        """404 before it is known, 429 while its storage is being made."""
        try:
            self.api.list(where, limit=1)
        except ApiError as error:
            if error.status in (404, 429):
                return False
            raise
        return True

    def stop_apiserver(self) -> None:
        """Take it away with all its connections, at once; data and port stay."""
        self._running.pop("kube-apiserver").kill()

    def start_apiserver(self) -> None:
        """Bring it back after `stop_apiserver`, on the same port with the same data; returns when ready.

        Others that gave up meanwhile (the controller manager does, if it was just starting) start again, as
        a kubelet would see to.
        """
        self._run("kube-apiserver", components.apiserver(self.layout))
        self._wait_for_apiserver()
        for name, start in (
            ("kube-controller-manager", self._start_controllers),
            ("kube-scheduler", self._start_scheduler),
        ):
            if not self._running[name].running:
                del self._running[name]
                start()

    def restart_controller_manager(self) -> None:
        """It then knows kinds that were defined since its start; by itself it looks for new ones every 30 s.

        Until then the garbage collector ignores owners of a new kind (foreground deletion waits for it).
        """
        self._running.pop("kube-controller-manager").kill()
        self._start_controllers()

    def stop(self) -> None:
        """Kill everything. Data stays in the directory; it belongs to the caller."""
        # Killed, not asked: an API server with open watches, or one whose etcd is gone, lingers.
        for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
            if part := self._running.pop(name, None):
                part.kill()

    def _start_all(self) -> None:
        self._write_tokens()
        self._run("etcd", components.etcd(self.layout))
        self._run("kube-apiserver", components.apiserver(self.layout))
        self._await(self._has_certificate, "the API server's certificate")
        _write_private(self.ca_file, _last_certificate(self.serving_cert.read_text()))
        for identity, token in self.tokens.items():
            self._write_kubeconfig(identity, token)
        self._wait_for_apiserver()
        self._run("kube-scheduler", components.scheduler(self.layout))
        self._start_controllers()
        self._await(self._has_default_account, "the default service account", "kube-controller-manager")
        self._await_healthy("kube-scheduler", self.layout.ports.scheduler)

    def _start_controllers(self) -> None:
        """Healthy before it has made its controllers; one name among its checks shows that it has."""
        self._run("kube-controller-manager", components.controller_manager(self.layout))
        port = self.layout.ports.controller_manager
        self._await_healthy("kube-controller-manager", port, "garbage-collector-controller ok")

    def _start_scheduler(self) -> None:
        self._run("kube-scheduler", components.scheduler(self.layout))
        self._await_healthy("kube-scheduler", self.layout.ports.scheduler)

    def _run(self, name: str, arguments: list[str]) -> None:
        if name in self._running:
            raise ValueError(f"{name} runs already")
        self._running[name] = Component.start([binary(name), *arguments], self.layout.log(name))

    def _await(self, condition: Callable[[], bool], what: str, needs: str = "kube-apiserver") -> None:
        """Poll for it; the component that it `needs` has to live meanwhile, and so has what that needs."""

        def holds() -> bool:
            for name in ("etcd", "kube-apiserver", needs):
                self._running[name].require_running()
            return condition()

        wait_until(holds, START_SECONDS, what)

    def _has_certificate(self) -> bool:
        """The certificate is written before the key."""
        return self.layout.serving_key.exists()

    def _wait_for_apiserver(self) -> None:
        self._await(self._is_ready, f"{self.url}/readyz")

    def _is_ready(self) -> bool:
        try:
            return self.api.text("/readyz") == "ok"
        except ApiError:
            return False

    def _has_default_account(self) -> bool:
        return self.api.find(path("v1", "serviceaccounts", "default", "default")) is not None

    def _await_healthy(self, name: str, port: int, check: str = "ok") -> None:
        self._await(lambda: check in _health(port), f"{name} to be healthy", name)

    def _write_tokens(self) -> None:
        lines = [
            f'{self.tokens[identity]},{user},{identity},"{groups}"'
            for identity, (user, groups) in _IDENTITIES.items()
        ]
        _write_private(self.layout.token_file, "\n".join(lines) + "\n")

    def _write_kubeconfig(self, identity: str, token: str, namespace: str = "default") -> Path:
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        file = self.layout.kubeconfig(identity)
        _write_private(file, components.kubeconfig(self.url, authority, token, namespace))
        return file


def describe(plane: ControlPlane) -> Object:
    """What another process needs to know to use a running control plane; JSON-able."""
    return {
        "url": plane.url,
        "ca_file": str(plane.ca_file),
        "admin_token": plane.admin_token,
        "kubeconfig": str(plane.kubeconfig),
        "serving_cert": str(plane.serving_cert),
        "serving_key": str(plane.serving_key),
    }


def _health(port: int) -> str:
    """What a component says about its checks, or "" while it says nothing good.

    Unverified: it is on this machine, on a port that we chose a moment ago.
    """
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(
            f"https://{HOST}:{port}/healthz?verbose", timeout=5, context=context
        ) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _last_certificate(pem: str) -> str:
    """A chain file ends with its CA."""
    return pem[pem.rindex("-----BEGIN CERTIFICATE-----") :]


def _free_ports() -> Ports:
    """Five ports that nobody listens on now; another bed may still be quicker, which `start` survives."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == 5:
            return Ports(*found)
    raise RuntimeError(f"no five free ports between {PORTS.start} and {PORTS.stop}")


def _write_private(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
