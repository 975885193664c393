"""A namespace with jobs that a test makes itself, and `rtj` that looks at them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from job_objects import job_body

from bed.api import path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator.cli.main import cli
from resumable_operator.model import JobStatus
from resumable_operator.stored import to_stored

Raw = dict[str, Any]
SECONDS = 90.0
RTJ = (sys.executable, "-m", "resumable_operator.cli.main")


class Team:
    """One namespace with its jobs, and `rtj` that looks at it."""

    def __init__(self, plane: ControlPlane, namespace: str, kubeconfig: Path | None = None) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace
        self.kubeconfig = kubeconfig or plane.kubeconfig

    def submit(self, told: JobStatus | None = None, name: str = "train", **spec: Any) -> Raw:
        where = path("resumable.dev/v1alpha1", "resumabletrainingjobs", self.namespace)
        job = self.api.create(where, job_body(name, **spec))
        return job if told is None else self.tell(told, name)

    def tell(self, told: JobStatus, name: str = "train") -> Raw:
        """Write a status, as an operator would."""
        where = path("resumable.dev/v1alpha1", "resumabletrainingjobs", self.namespace, name)
        return self.api.patch_status(where, {"status": to_stored(told)})

    def claim(self, mode: str = "ReadWriteMany", name: str = "ckpt") -> Path:
        """A bound claim; the directory that is behind it."""
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        where = path("v1", "persistentvolumeclaims", self.namespace)
        self.api.create(where, {"metadata": {"name": name}, "spec": spec})

        def volume() -> str:
            return str(self.api.get(f"{where}/{name}")["spec"].get("volumeName") or "")

        wait_until(lambda: bool(volume()), SECONDS, "the claim to be bound")
        found = self.api.get(path("v1", "persistentvolumes", name=volume()))
        return Path(found["spec"]["hostPath"]["path"])

    def rtj(self, *arguments: str, columns: int = 200) -> Result:
        """Calls it in this process."""
        env = {"KUBECONFIG": str(self.kubeconfig), "COLUMNS": str(columns)}
        return CliRunner().invoke(cli, [*arguments, "-n", self.namespace], env=env)

    @contextmanager
    def running_rtj(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts it as a process that may be signalled."""
        process = subprocess.Popen(
            [*RTJ, *arguments, "-n", self.namespace],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def readers(self) -> list[Raw]:
        where = path("v1", "pods", self.namespace)
        return [pod for pod in self.api.list(where) if "-reader-" in pod["metadata"]["name"]]

    def await_no_reader(self) -> None:
        wait_until(lambda: not self.readers(), SECONDS, "the reader's pod to be gone")
