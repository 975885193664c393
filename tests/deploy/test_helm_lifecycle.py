"""Install, upgrade and uninstall on a real cluster with nodes: a running job keeps running."""

import json
import math
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import monitoring
import pytest
import yaml

from bed.api import path
from bed.control_plane import ControlPlane
from bed.fixtures import StartPrometheus
from bed.nodes import Nodes
from bed.processes import wait_until
from bed.prometheus import Sample, promtool
from resumable_operator import keys
from resumable_training.contract import labels

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resumable-training"
EXAMPLE = ROOT / "deploy" / "examples" / "gpt-pvc.yaml"
JOBS = f"{labels.GROUP}/{labels.VERSION}"
CRD = path("apiextensions.k8s.io/v1", "customresourcedefinitions", name=f"{labels.PLURAL}.{labels.GROUP}")
SYSTEM, TEAM, RELEASE = "resumable-system", "team-a", "resumable-training"
SECONDS = 120.0
# Pods of the bed share the machine's network: each must serve on its own address.
SETTINGS = ("--set", "bindAddress=$(POD_IP)", "--set", "extraArgs={--status-seconds=1}")

Object = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def nodes(own_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes of the file's own."""
    with Nodes.start(own_plane, tmp_path_factory.mktemp("nodes")) as nodes:
        nodes.add("node-1")
        nodes.add("node-2")
        yield nodes


@pytest.fixture(scope="module")
def release(own_plane: ControlPlane, nodes: Nodes, helm: Helm) -> Callable[..., None]:
    """``release(*options)``: install or upgrade the chart, and wait until the operator is ready."""

    def run(*options: str) -> None:
        command = ("upgrade", "--install", RELEASE, CHART, "-n", SYSTEM, "--create-namespace")
        waiting = ("--wait", "--timeout", f"{SECONDS:.0f}s")
        every = (*command, *waiting, *SETTINGS, *options)
        result = helm(*every, check=False, kubeconfig=own_plane.kubeconfig)
        assert result.returncode == 0, f"{result.stderr}\n{_last_words(own_plane)}"

    return run


@pytest.fixture(scope="module")
def installed(own_plane: ControlPlane, release: Callable[..., None]) -> ControlPlane:
    """The chart with its own values, in a namespace that lets in restricted pods only."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (SYSTEM, TEAM):
        body = {"metadata": {"name": name, "labels": restricted}}
        own_plane.api.create(path("v1", "namespaces"), body)
    release()
    own_plane.restart_controller_manager()  # it looks for new kinds of owners every 30 s only
    return own_plane


@pytest.fixture(scope="module")
def training(installed: ControlPlane) -> str:
    """The example with a volume, smaller and longer; its name. It has done its first steps."""
    documents = list(yaml.safe_load_all(EXAMPLE.read_text()))
    (job,) = [document for document in documents if document["kind"] == labels.KIND]
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--steps", "1000000", "--layers", "1", "--width", "32", "--heads", "2"]
    container["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}}
    job["spec"]["workers"] = {"replicas": 2, "min": 1}
    text = yaml.safe_dump_all(documents)
    installed.kubectl("apply", "-n", TEAM, "-f", "-", input=text)
    name: str = job["metadata"]["name"]
    _await_step(installed, name, 1)
    return name


def _last_words(plane: ControlPlane) -> str:
    """What the operator said last."""
    log = plane.kubectl("logs", "-n", SYSTEM, f"deployment/{RELEASE}", "--tail=20", check=False)
    return log.stdout + log.stderr


def _status(plane: ControlPlane, job: str) -> Object:
    status: Object = plane.api.get(path(JOBS, labels.PLURAL, TEAM, job)).get("status") or {}
    return status


def _await_step(plane: ControlPlane, job: str, step: int) -> None:
    def reached() -> bool:
        return int(_status(plane, job).get("step") or 0) >= step

    try:
        wait_until(reached, SECONDS, f"step {step} of {job}", interval=0.2)
    except TimeoutError as error:
        error.add_note(plane.kubectl("describe", "rtj,pods", "-n", TEAM, check=False).stdout)
        error.add_note(_last_words(plane))
        raise


def _pods(plane: ControlPlane, namespace: str, **selector: str) -> dict[str, str]:
    """uid by name."""
    wanted = ",".join(f"{key}={value}" for key, value in selector.items())
    found = plane.api.list(path("v1", "pods", namespace), labelSelector=wanted)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def _life(plane: ControlPlane, nodes: Nodes, job: str) -> tuple[dict[str, str], dict[str, int], int]:
    """What must not change while nothing happens to the job: pods, their first processes, the attempt."""
    pods = _pods(plane, TEAM, **{labels.LABEL_JOB: job})
    processes = {name: nodes.pids(TEAM, name)[0] for name in pods}
    return pods, processes, _status(plane, job)["attempt"]["number"]


def test_install_runs_the_operator(installed: ControlPlane) -> None:
    """The operator's pod is ready under the restricted standard, logs JSON, and has its master key."""
    (pod,) = installed.api.list(path("v1", "pods", SYSTEM))
    (container,) = pod["status"]["containerStatuses"]
    assert (container["ready"], container["restartCount"]) == (True, 0)
    lines = installed.kubectl("logs", "-n", SYSTEM, f"deployment/{RELEASE}").stdout.splitlines()
    assert "synced" in {json.loads(line).get("event") for line in lines}
    assert installed.api.get(path("v1", "secrets", SYSTEM, keys.SECRET_NAME))["data"]


def test_prometheus_finds_what_the_monitors_say(
    installed: ControlPlane,
    nodes: Nodes,
    training: str,
    render: Callable[..., list[Object]],
    prometheus: StartPrometheus,
    tmp_path: Path,
) -> None:
    """Selectors, ports and paths of the monitors lead to pages that Prometheus reads and panels show."""
    chart = render("metrics.podMonitor.enabled=true", namespace=SYSTEM, release=RELEASE)
    monitors = {o["metadata"]["name"]: _targets(installed, o) for o in chart if o["kind"] == "PodMonitor"}
    assert [len(found) for found in monitors.values()] == [1, 2], "one operator, two workers"
    server = prometheus(monitoring.hurried(tmp_path))
    server.scrape(monitors)
    count = "resumable_operator_event_to_assignment_seconds_count"
    wait_until(lambda: bool(server.query(count)), SECONDS, "a scrape before the recovery", interval=0.5)
    _end_a_rank(installed, nodes, training)
    of_job = {"Now", "Step against high-water mark", "Samples a second", "Scrapes that work"}
    wanted = [q for q in monitoring.queries() if q.panel in monitoring.OF_OPERATOR | of_job]
    empty: list[str] = []

    def all_have_data() -> bool:
        empty[:] = [str(q) for q in wanted if not _finite(server.query(q.filled(TEAM, training)))]
        return not empty

    try:
        wait_until(all_have_data, SECONDS, "data", interval=0.5)
    except TimeoutError as error:
        raise AssertionError(f"no data for {empty}") from error
    assert server.unhealthy() == []
    for target in [target for targets in monitors.values() for target in targets]:
        page = urllib.request.urlopen(f"http://{target}", timeout=10).read().decode()
        checked = promtool("check", "metrics", input=page)
        assert checked.returncode == 0, checked.stdout


def _targets(plane: ControlPlane, monitor: Object) -> list[str]:
    """Address and path of every pod that the monitor selects, by the name of its port."""
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    everywhere = spec.get("namespaceSelector", {}).get("any")
    selector = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())
    where = path("v1", "pods", None if everywhere else SYSTEM)
    return [
        f"{pod['status']['podIP']}:{port['containerPort']}{endpoint['path']}"
        for pod in plane.api.list(where, labelSelector=selector)
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if port["name"] == endpoint["port"]
    ]


def _end_a_rank(plane: ControlPlane, nodes: Nodes, job: str) -> None:
    """Kill one, and wait until the job trains again."""
    number = _status(plane, job)["attempt"]["number"]
    name = sorted(_pods(plane, TEAM, **{labels.LABEL_JOB: job}))[-1]
    os.kill(next(pid for pid in nodes.pids(TEAM, name) if _is_rank(pid)), signal.SIGKILL)

    def trains_again() -> bool:
        attempt = _status(plane, job)["attempt"]
        return attempt["number"] > number and "firstStepAt" in attempt

    wait_until(trains_again, SECONDS, f"{job} to train again", interval=0.2)


def _is_rank(pid: int) -> bool:
    return b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes()


def _finite(samples: list[Sample]) -> bool:
    return any(math.isfinite(value) for _, value in samples)


def test_upgrade_leaves_a_running_job_alone(
    installed: ControlPlane, nodes: Nodes, release: Callable[..., None], training: str
) -> None:
    """Another operator takes over; the job's pods, processes and attempt stay, and steps go on."""
    before = _life(installed, nodes, training)
    operator = _pods(installed, SYSTEM)
    release("--set", "log.level=debug")
    assert _pods(installed, SYSTEM).keys().isdisjoint(operator)
    _await_step(installed, training, _status(installed, training)["step"] + 20)
    assert _life(installed, nodes, training) == before


def test_uninstall_keeps_jobs_and_their_kind(
    installed: ControlPlane, nodes: Nodes, helm: Helm, release: Callable[..., None], training: str
) -> None:
    """Without the operator the CRD, jobs, master key and training stay; the next one takes over."""
    before = _life(installed, nodes, training)
    secret = path("v1", "secrets", SYSTEM, keys.SECRET_NAME)
    master = installed.api.get(secret)["data"]
    helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", kubeconfig=installed.kubeconfig)
    wait_until(lambda: not _pods(installed, SYSTEM), SECONDS, "the operator to go")
    assert installed.api.find(CRD) is not None
    assert installed.api.find(path("rbac.authorization.k8s.io/v1", "clusterroles", name=RELEASE)) is None
    step = _status(installed, training)["step"]

    release()
    assert installed.api.get(secret)["data"] == master
    _await_step(installed, training, step + 20)
    assert _life(installed, nodes, training) == before


def test_deleted_job_goes_with_its_pods(installed: ControlPlane, training: str) -> None:
    """`kubectl delete rtj` takes the pods and the key along; the volume stays."""
    installed.kubectl("delete", "rtj", training, "-n", TEAM, "--wait=false")
    wait_until(lambda: not _pods(installed, TEAM, **{labels.LABEL_JOB: training}), SECONDS, "the pods to go")
    assert installed.api.find(path(JOBS, labels.PLURAL, TEAM, training)) is None
    assert installed.api.find(path("v1", "persistentvolumeclaims", TEAM, "gpt-checkpoints")) is not None


def test_namespaced_operator_runs_jobs(installed: ControlPlane, helm: Helm) -> None:
    """With rights in its own namespace only, the operator is ready, says what it misses, and starts a job."""
    helm("uninstall", RELEASE, "-n", SYSTEM, "--wait", kubeconfig=installed.kubeconfig)
    own = ("-n", TEAM, "--set", f"watchNamespaces={{{TEAM}}}")
    waiting = ("--wait", "--timeout", f"{SECONDS:.0f}s", *SETTINGS)
    helm("install", "own", CHART, *own, *waiting, kubeconfig=installed.kubeconfig)
    log = installed.kubectl("logs", "-n", TEAM, "deployment/own-resumable-training").stdout
    assert "nodes are not watched" in log
    container = {
        "name": "worker",
        "image": "resumable-training/worker:0.1.0",
        "command": ["python", "-c", "import time; time.sleep(3600)"],
    }
    spec = {
        "workers": {"replicas": 2},
        "checkpoint": {"persistentVolumeClaim": {"claimName": "gpt-checkpoints", "path": "plain"}},
        "template": {"spec": {"containers": [container]}},
    }
    body = {"apiVersion": JOBS, "kind": labels.KIND, "metadata": {"name": "plain"}, "spec": spec}
    installed.api.create(path(JOBS, labels.PLURAL, TEAM), body)
    wait_until(lambda: _status(installed, "plain").get("phase") == "Running", SECONDS, "the job to run")
    installed.kubectl("delete", "rtj", "plain", "-n", TEAM, "--wait=false")
    helm("uninstall", "own", "-n", TEAM, kubeconfig=installed.kubeconfig)
