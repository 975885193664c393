"""JobSet as the operator's peer in its benchmark: the same API server, the same kind of simulated kubelets.

``bench_operator --peer jobset`` calls ``measure`` for each size. The manager is built once from its Go
module, as the bed's other programs are, and runs with its defaults and its webhooks; the Job
controller and the garbage collector of Kubernetes, which it stands on, are the bed's controller manager.

Measured: a pod's failure until all pods of the next attempt run. Its failure policy deletes the failed Job
with all its pods and makes them anew; the operator keeps survivors and makes one pod. How long pods take to
be scheduled, pulled and started is in neither: simulated kubelets run them at once.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from peer_jobset_sim import JobSetSimulator
from plane_requests import PlaneRequests, each, rates
from sim_measure import CpuMeter, load, memory_mb, page, spread
from sim_pods import SCHEDULER

from bed.api import path
from bed.binaries import TOOLS, Module, build, cache_directory
from bed.control_plane import ControlPlane
from bed.processes import Component, wait_until
from bed.toolchain import go_environment

VERSION = "0.12.0"
EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "gpt-pvc.yaml"
NAMESPACE = "bench"
GROUP_VERSION, PLURAL = "jobset.x-k8s.io/v1alpha2", "jobsets"
WEBHOOK_PORT, METRICS_PORT, HEALTH_PORT = 9443, 8443, 8081
PATIENCE_SECONDS, READY_SECONDS = 1800.0, 300.0
NO_LIMIT = 2**31 - 1
Raw = dict[str, Any]


# ---- its program -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Manager(Module):
    """The module's program, and beside it ``files`` (our names to theirs): its kind and its webhooks."""

    files: Mapping[str, str]

    def make(self, output: Path) -> None:
        """Raises: BuildFailed."""
        super().make(output)
        go, env = go_environment(cache_directory())
        where = [go, "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/jobset"]
        found = subprocess.run(where, cwd=self.directory, env=env, capture_output=True, text=True, check=True)
        for name, inside in self.files.items():
            shutil.copy(Path(found.stdout.strip(), "config", "components", inside), output / name)


JOBSET = Manager(
    title=f"JobSet {VERSION}",
    directory=TOOLS / "jobset",
    programs={"jobset-manager": "sigs.k8s.io/jobset"},
    variables={"sigs.k8s.io/jobset/pkg/version.GitVersion": f"v{VERSION}"},
    minutes=4,
    files={"crd.yaml": "crd/bases/jobset.x-k8s.io_jobsets.yaml", "webhooks.yaml": "webhook/manifests.yaml"},
)


# ---- its objects -------------------------------------------------------------------------------------


def jobset_body(name: str, workers: int) -> Raw:
    """The example's pods as one replicated Job that restarts whole, as often as it takes.

    Without names in DNS: the Service for them would have its endpoints written anew with each pod.
    """
    _, example = yaml.safe_load_all(EXAMPLE.read_text())
    pod = {**example["spec"]["template"]["spec"], "schedulerName": SCHEDULER, "restartPolicy": "Never"}
    job = {
        "parallelism": workers,
        "completions": workers,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": NO_LIMIT},
            "network": {"enableDNSHostnames": False},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}],
        },
    }


def webhooks(documents: list[Raw], authority: str) -> list[Raw]:
    """Its webhook configurations, for a manager on this machine; of pods only those that belong to a JobSet.

    Its kustomization limits them in the same way.
    """
    of_jobsets = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
    for hook in (hook for document in documents for hook in document["webhooks"]):
        where = hook["clientConfig"].pop("service")["path"]
        hook["clientConfig"] = {"url": f"https://127.0.0.1:{WEBHOOK_PORT}{where}", "caBundle": authority}
        if hook["rules"][0]["resources"] == ["pods"]:
            hook["objectSelector"] = of_jobsets
    return documents


def configuration(certificates: Path) -> str:
    """Of the manager: its defaults, but alone, and with a certificate that is there already."""
    return json.dumps(
        {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": WEBHOOK_PORT, "host": "127.0.0.1", "certDir": str(certificates)},
            "metrics": {"bindAddress": f"127.0.0.1:{METRICS_PORT}"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{HEALTH_PORT}"},
        }
    )


# ---- what runs ---------------------------------------------------------------------------------------


class JobSetManager:
    """The manager, started as often as needed."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane, self._directory = plane, directory
        self._program = build(JOBSET) / "jobset-manager"
        self._running: Component | None = None
        self.began = 0.0

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.process.pid

    def install(self) -> None:
        """Its kind, and a certificate for its webhooks, which take calls from the first start on."""
        files = self._program.parent
        self._plane.define_kind(yaml.safe_load((files / "crd.yaml").read_text()))
        certificates = self._directory / "certificates"
        certificates.mkdir()
        shutil.copy(self._plane.serving_cert, certificates / "tls.crt")
        shutil.copy(self._plane.serving_key, certificates / "tls.key")
        (self._directory / "jobset.json").write_text(configuration(certificates))
        self.start()
        self.await_ready()
        authority = base64.b64encode(self._plane.ca_file.read_bytes()).decode()
        for body in webhooks(list(yaml.safe_load_all((files / "webhooks.yaml").read_text())), authority):
            plural = body["kind"].lower() + "s"
            self._plane.api.create(path("admissionregistration.k8s.io/v1", plural), body)

    def start(self) -> None:
        command = [self._program, "--config", self._directory / "jobset.json", "--zap-devel=false"]
        self.began = time.monotonic()
        self._running = Component.start(
            command,
            self._directory / "jobset.log",
            {**os.environ, "KUBECONFIG": str(self._plane.kubeconfig)},
        )

    def await_ready(self) -> float:
        """Seconds since its start."""
        wait_until(self._is_ready, READY_SECONDS, "the manager's /readyz")
        return time.monotonic() - self.began

    def _is_ready(self) -> bool:
        assert self._running is not None
        self._running.require_running()
        return page(HEALTH_PORT, "/readyz")[0] == 200

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()


@dataclass
class JobSetBench:
    """Everything that runs, for one size."""

    plane: ControlPlane
    manager: JobSetManager
    simulator: JobSetSimulator
    jobs: int
    workers: int

    def cold_start(self) -> Raw:
        """From nothing to all pods of all JobSets running."""
        where = path(GROUP_VERSION, PLURAL, NAMESPACE)
        began, meter = time.monotonic(), self._meter()
        with ThreadPoolExecutor(8) as pool:
            bodies = (jobset_body(name, self.workers) for name in self.names())
            list(pool.map(lambda body: self.plane.api.create(where, body), bodies))
        self.await_whole()
        return {"seconds": time.monotonic() - began, "cpu": meter.shares(), "load": load()}

    def await_whole(self) -> None:
        """Until all pods of all JobSets run."""
        wait_until(
            lambda: self.simulator.do("facts")["whole"] == self.jobs,
            PATIENCE_SECONDS,
            "all JobSets",
            interval=0.25,
        )

    def idle(self, seconds: float) -> Raw:
        """CPU and requests while nothing happens."""
        before, meter = PlaneRequests.of(self.plane), self._meter()
        time.sleep(seconds)
        shares = meter.shares()
        routine = rates(before, PlaneRequests.of(self.plane))
        return {
            "cpu": shares,
            "plane_requests_per_second": routine,
            "memory_mb": self.memory(),
            "load": load(),
        }

    def restarts(self, strikes: int, rate: float, routine: dict[str, float]) -> Raw:
        """Recoveries of JobSets in turn."""
        names = self.names()
        chosen = [names[number % self.jobs] for number in range(strikes)]
        before, meter = PlaneRequests.of(self.plane), self._meter()
        found = self.simulator.do("strike", jobs=chosen, rate=rate)
        shares, after = meter.shares(), PlaneRequests.of(self.plane)
        done = [run for run in found if run["seconds"] is not None]
        stages = list(dict.fromkeys(name for run in done for name in run["stages"]))
        return {
            "recoveries": len(done),
            "never": len(found) - len(done),
            "seconds": spread(run["seconds"] for run in done),
            "stages": {name: spread(run["stages"].get(name, 0.0) for run in done) for name in stages},
            "plane_requests_per_recovery": each(before, after, routine, len(found)),
            "cpu": shares,
            "load": load(),
        }

    def restart_manager(self) -> Raw:
        """A fresh process over the same objects."""
        self.manager.kill()
        self.manager.start()
        return {"synced": self.manager.await_ready(), "all_jobs_seen": self._all_seen(), "load": load()}

    def _all_seen(self) -> float:
        """Seconds from the start until as many reconciles are done as there are JobSets."""
        wait_until(
            lambda: reconciles(manager_metrics(self.plane.admin_token)) >= self.jobs,
            READY_SECONDS,
            "all JobSets to be reconciled",
            interval=0.1,
        )
        return time.monotonic() - self.manager.began

    def names(self) -> list[str]:
        return [f"gpt-{number:04d}" for number in range(self.jobs)]

    def memory(self) -> Raw:
        """Of the manager, and of the controller manager that makes its Jobs' pods."""
        return {
            "manager": memory_mb(self.manager.pid),
            "kube-controller-manager": memory_mb(self.plane.pids["kube-controller-manager"]),
        }

    def _meter(self) -> CpuMeter:
        names = ("kube-apiserver", "etcd", "kube-controller-manager")
        planes = {name: pid for name, pid in self.plane.pids.items() if name in names}
        return CpuMeter({"manager": self.manager.pid, "simulator": self.simulator.pid, **planes})


def manager_metrics(token: str) -> str:
    """Its metrics page, or "" while it has none. Its certificate is its own, on this machine."""
    request = urllib.request.Request(
        f"https://127.0.0.1:{METRICS_PORT}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30, context=ssl._create_unverified_context()) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def reconciles(metrics: str) -> float:
    """Of JobSets so far, whatever came of them."""
    name = 'controller_runtime_reconcile_total{controller="jobset"'
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if line.startswith(name))


@contextmanager
def bench(jobs: int, workers: int, kept: Path) -> Iterator[JobSetBench]:
    """A control plane of its own with everything on it; nothing stays but, in ``kept``, a failure's logs."""
    directory = Path(tempfile.mkdtemp(prefix="rj-"))
    try:
        with ControlPlane.start(directory / "plane") as plane:
            plane.api.create(path("v1", "namespaces"), {"metadata": {"name": NAMESPACE}})
            manager = JobSetManager(plane, directory)
            connection = {"url": plane.url, "token": plane.admin_token, "ca_file": str(plane.ca_file)}
            try:
                manager.install()
                with JobSetSimulator(directory, workers=str(workers), **connection) as simulator:
                    yield JobSetBench(plane, manager, simulator, jobs, workers)
            finally:
                manager.kill()
    except BaseException:
        shutil.copytree(directory, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("plane", "*.sock"))
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(
    jobs: int,
    workers: int,
    *,
    strikes: int,
    rate: float,
    settle_seconds: float,
    idle_seconds: float,
    starts: int,
    kept: Path,
) -> Raw:
    """All of it, for one size; ``kept``: where logs go if it fails.

    Raises: BuildFailed, ComponentDied, TimeoutError.
    """
    with bench(jobs, workers, kept) as running:
        found: Raw = {"version": VERSION, "cold_start": running.cold_start()}
        time.sleep(settle_seconds)
        found["idle"] = running.idle(idle_seconds)
        routine = found["idle"]["plane_requests_per_second"]
        found["restart"] = running.restarts(strikes, rate, routine)
        running.await_whole()
        found["memory_mb"] = running.memory()
        found["starts"] = [running.restart_manager() for _ in range(starts)]
        return found
