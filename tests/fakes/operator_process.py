"""The operator as a process of its own, with the rights of a service account as deploy/ grants them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bed.api import ApiError, path
from bed.control_plane import ControlPlane
from bed.processes import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = ("-m", "resumable_operator")
ACCOUNT = "resumable-training"
AGENT_IMAGE = "resumable-training/operator:0.1.0"
START_SECONDS = 60.0
END_SECONDS = 30.0
RBAC = "rbac.authorization.k8s.io/v1"
KINDS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}


class OperatorProcess:
    """``python -m resumable_operator`` on a free port; its log is JSON lines in a file.

    ``program``: what Python runs instead, which takes the same options.
    """

    def __init__(self, log: Path, kubeconfig: Path, *options: str, program: Sequence[str] = PROGRAM) -> None:
        self.log = log
        command = [sys.executable, *program, "--agent-image", AGENT_IMAGE]
        command += ["--port", "0", "--bind-address", "127.0.0.1", *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env={**environment, "KUBECONFIG": str(kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def lines(self) -> list[dict[str, Any]]:
        """What it logged; every line must be JSON."""
        complete = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in complete.splitlines()]

    def says(self, words: str) -> bool:
        return any(words in line["message"] for line in self.lines())

    def await_words(self, words: str, seconds: float = START_SECONDS) -> None:
        """Until a message has these words; the log is in the error if none does, or the process ends."""

        def holds() -> bool:
            if self.says(words):
                return True
            if self.process.poll() is not None and not self.says(words):
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log.read_text()}")
            return False

        try:
            wait_until(holds, seconds, repr(words))
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n{self.log.read_text()}") from error

    @property
    def port(self) -> int:
        self.await_words("on port")
        messages = [line["message"] for line in self.lines()]
        (found,) = [match[1] for text in messages if (match := re.search(r"on port (\d+)$", text))]
        return int(found)

    def get(self, page: str) -> tuple[int, str]:
        """Status and text of ``/healthz``, ``/readyz`` or ``/metrics``."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of that name which have these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if match and labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', match[1] or "")).items():
                total += float(match[2])
        return total

    def await_ready(self) -> None:
        self.await_words("synced after")
        assert self.get("/readyz") == (200, "ok\n")

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Signal it; its exit code, and the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(END_SECONDS)
        return code, time.monotonic() - began

    def exit_code(self, seconds: float = START_SECONDS) -> int:
        """Of a process that ends by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"it does not end:\n{self.log.read_text()}") from error

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def operator_process(log: Path, kubeconfig: Path, *options: str) -> Iterator[OperatorProcess]:
    """A running one, killed at the end."""
    process = OperatorProcess(log, kubeconfig, *options)
    try:
        yield process
    finally:
        process.kill()


def grant(plane: ControlPlane, namespace: str, *, whole_cluster: bool) -> Path:
    """Make the account in ``namespace`` with the rights of deploy/ there; its kubeconfig.

    Cluster-wide objects get a name of their own; remove them with ``revoke``.
    """
    plane.api.create(path("v1", "serviceaccounts", namespace), {"metadata": {"name": ACCOUNT}})
    for role in _roles(namespace, whole_cluster):
        where = None if role["kind"].startswith("Cluster") else namespace
        plane.api.create(path(RBAC, KINDS[role["kind"]], where), role)
    return plane.kubeconfig_for(ACCOUNT, namespace)


def revoke(plane: ControlPlane, namespace: str) -> None:
    """Remove all rights that ``grant`` gave."""
    for whole_cluster in (True, False):
        for role in _roles(namespace, whole_cluster):
            where = None if role["kind"].startswith("Cluster") else namespace
            try:
                plane.api.delete(path(RBAC, KINDS[role["kind"]], where, role["metadata"]["name"]))
            except ApiError as error:
                if error.status != 404:
                    raise


def _roles(namespace: str, whole_cluster: bool) -> list[dict[str, Any]]:
    """Roles and bindings of deploy/, for the account in ``namespace``; those for people left out."""
    file = DEPLOY / "operator.yaml" if whole_cluster else DEPLOY / "namespaced" / "operator.yaml"
    chosen = []
    for document in yaml.safe_load_all(file.read_text()):
        meta: Mapping[str, Any] = document["metadata"] if document else {}
        if not document or document["kind"] not in KINDS or any("aggregate" in x for x in meta["labels"]):
            continue
        if document["kind"].startswith("Cluster"):
            document["metadata"] = {"name": f"{meta['name']}-{namespace}"}
            if "roleRef" in document:
                document["roleRef"]["name"] = f"{document['roleRef']['name']}-{namespace}"
        else:
            document["metadata"] = {"name": meta["name"], "namespace": namespace}
        for subject in document.get("subjects", ()):
            subject["namespace"] = namespace
        chosen.append(document)
    return chosen
