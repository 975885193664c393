"""The operator's process on a real API server, with the rights that deploy/ grants: from start to end.

There are no nodes: jobs are looked at and get pods, which nobody runs.
"""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from operator_process import OperatorProcess, grant, operator_process, revoke

from bed.api import path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator.crd import crd
from resumable_operator.keys import SECRET_NAME
from resumable_operator.times import seconds_of
from resumable_training.contract.labels import GROUP, KIND, LABEL_JOB, PLURAL, VERSION

API_VERSION = f"{GROUP}/{VERSION}"
Raw = dict[str, Any]
Start = Callable[..., OperatorProcess]

pytestmark = pytest.mark.usefixtures("job_kind")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(kubeconfig, namespace, *options)``: an operator that lives there; killed at the end."""
    running: list[OperatorProcess] = []

    def begin(kubeconfig: Path, namespace: str, *options: str) -> OperatorProcess:
        log = tmp_path / f"operator-{len(running)}.log"
        running.append(OperatorProcess(log, kubeconfig, "--operator-namespace", namespace, *options))
        return running[-1]

    yield begin
    for process in running:
        process.kill()


@pytest.fixture
def cluster_account(control_plane: ControlPlane, namespace: str) -> Iterator[Path]:
    """Kubeconfig of an account with the rights of the cluster-wide installation."""
    yield grant(control_plane, namespace, whole_cluster=True)
    revoke(control_plane, namespace)


@pytest.fixture
def namespaced_account(control_plane: ControlPlane, namespace: str) -> Path:
    """Kubeconfig of an account with the rights of the namespaced installation, in ``namespace`` alone."""
    return grant(control_plane, namespace, whole_cluster=False)


def create_job(plane: ControlPlane, namespace: str, replicas: int = 2) -> None:
    """A job that wants pods, and the claim that it names."""
    claim = {
        "metadata": {"name": "checkpoints"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    plane.api.create(path("v1", "persistentvolumeclaims", namespace), claim)
    container = {"name": "worker", "image": "python:3.11", "command": ["python", "train.py"]}
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "train"},
        "spec": {
            "workers": {"replicas": replicas},
            "template": {"spec": {"containers": [container]}},
            "checkpoint": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
        },
    }
    plane.api.create(path(API_VERSION, PLURAL, namespace), job)


def pods(plane: ControlPlane, namespace: str) -> list[Raw]:
    return plane.api.list(path("v1", "pods", namespace), labelSelector=f"{LABEL_JOB}=train")


def await_pods(plane: ControlPlane, namespace: str, number: int = 2) -> dict[str, str]:
    """Names and uids of the job's pods, when there are so many."""
    wait_until(lambda: len(pods(plane, namespace)) == number, 60, f"{number} pods")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods(plane, namespace)}


def assert_calm(process: OperatorProcess) -> None:
    """No line of the log tells of an error or of a missing right."""
    troubles = [
        line for line in process.lines() if line["level"] == "error" or "forbidden" in line["message"].lower()
    ]
    assert troubles == []


def test_serves_the_cluster(
    control_plane: ControlPlane, namespace: str, cluster_account: Path, start: Start
) -> None:
    """With no more than its own account it gets ready, gives a job its pods, and ends when asked."""
    operator = start(cluster_account, namespace)
    operator.await_ready()
    assert operator.get("/healthz") == (200, "ok\n")
    create_job(control_plane, namespace)
    await_pods(control_plane, namespace)
    wait_until(
        lambda: control_plane.api.get(path(API_VERSION, PLURAL, namespace, "train")).get("status", {}) != {},
        60,
        "the job's status",
    )
    labels = {"namespace": namespace, "training_job": "train"}
    assert operator.metric("resumable_info", **labels) == 1.0
    assert operator.metric("resumable_workers", kind="desired", **labels) == 2.0
    assert operator.metric("resumable_operator_passes_total", result="acted") >= 1.0
    assert operator.metric("resumable_operator_api_requests_total", verb="create", resource="pods") >= 2.0
    assert operator.metric("resumable_operator_api_requests_total", code="403") == 0.0
    (made, *_) = [line for line in operator.lines() if "CreateWorker" in line["message"]]
    assert (made["job"], made["event"], made["level"]) == (f"{namespace}/train", "pass", "info")
    code, seconds = operator.end()
    assert code == 0
    assert seconds < 10.0
    assert_calm(operator)
    assert "Traceback" not in operator.log.read_text()


WRONG_CLOCK = """
import time, types
from resumable_operator import clock
seconds = {seconds}
clock.time = types.SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + seconds)
from resumable_operator.__main__ import main
main()
"""


@pytest.mark.parametrize(("seconds", "how"), [(-600, "600 s behind"), (600, "600 s ahead of")])
def test_a_machine_with_a_wrong_clock(
    control_plane: ControlPlane,
    namespace: str,
    namespaced_account: Path,
    tmp_path: Path,
    seconds: int,
    how: str,
) -> None:
    """The API server's time counts, in which deadlines are given; it says so, and stays healthy."""
    options = ("--operator-namespace", namespace, "--namespace", namespace)
    program = ("-c", WRONG_CLOCK.format(seconds=seconds))
    operator = OperatorProcess(tmp_path / "log", namespaced_account, *options, program=program)
    try:
        operator.await_ready()
        assert operator.says(f"this machine's clock is {how}")
        create_job(control_plane, namespace)
        await_pods(control_plane, namespace)
        assert operator.get("/healthz") == (200, "ok\n")
        job = control_plane.api.get(path(API_VERSION, PLURAL, namespace, "train"))
        assert abs(seconds_of(job["status"]["startedAt"]) - time.time()) < 60.0
        assert_calm(operator)
    finally:
        operator.kill()


def test_interrupt_ends_it_too(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """Ctrl-C is as good as SIGTERM."""
    operator = start(namespaced_account, namespace, "--namespace", namespace)
    operator.await_ready()
    assert operator.end(signal.SIGINT)[0] == 0
    assert_calm(operator)


def test_serves_one_namespace_without_cluster_rights(
    control_plane: ControlPlane, make_namespace: Callable[[], str], start: Start
) -> None:
    """Limited to a namespace it never asks beyond it: the account would be refused, and nothing is."""
    mine, other = make_namespace(), make_namespace()
    account = grant(control_plane, mine, whole_cluster=False)
    operator = start(account, mine, "--namespace", mine, "--relist-seconds", "1")
    operator.await_ready()
    assert operator.says("nodes are not watched")
    create_job(control_plane, other)
    create_job(control_plane, mine)
    await_pods(control_plane, mine)
    synced = operator.metric("resumable_operator_relist_timestamp_seconds")
    wait_until(
        lambda: operator.metric("resumable_operator_relist_timestamp_seconds") > synced, 30, "a comparison"
    )
    assert pods(control_plane, other) == []
    assert operator.metric("resumable_info") == 1.0
    assert operator.metric("resumable_operator_api_requests_total", code="403") == 0.0
    assert operator.metric("resumable_operator_api_requests_total", resource="nodes") == 0.0
    assert_calm(operator)


def test_restart_changes_nothing(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """Killed and started anew it finds the job's pods and key again, and makes no others."""
    first = start(namespaced_account, namespace, "--namespace", namespace)
    create_job(control_plane, namespace)
    before = await_pods(control_plane, namespace)
    secrets = path("v1", "secrets", namespace, SECRET_NAME)
    master = control_plane.api.get(secrets)["data"]
    first.kill()
    second = start(namespaced_account, namespace, "--namespace", namespace)
    second.await_ready()
    wait_until(lambda: second.metric("resumable_operator_pass_seconds_count") >= 1, 30, "a pass")
    assert await_pods(control_plane, namespace) == before
    assert control_plane.api.get(secrets)["data"] == master
    assert_calm(second)


def test_second_operator_does_no_harm(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """Two that start at once use one master key and together make each pod once."""
    options = ("--namespace", namespace, "--relist-seconds", "1")
    both = [start(namespaced_account, namespace, *options) for _ in range(2)]
    create_job(control_plane, namespace, replicas=5)
    for operator in both:
        operator.await_ready()
    made = await_pods(control_plane, namespace, 5)
    passes = [operator.metric("resumable_operator_pass_seconds_count") for operator in both]
    for operator, count in zip(both, passes, strict=True):
        wait_until(
            lambda operator=operator, count=count: (
                operator.metric("resumable_operator_pass_seconds_count") > count
            ),
            30,
            "another pass",
        )
    assert await_pods(control_plane, namespace, 5) == made
    assert set(made) == {f"train-{place}-1" for place in range(5)}
    for operator in both:
        assert operator.end()[0] == 0
        assert_calm(operator)


def test_log_tells_no_key(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """Not even the most talkative log has the master key or a job's in it."""
    operator = start(namespaced_account, namespace, "--namespace", namespace, "--log-level", "debug")
    create_job(control_plane, namespace)
    await_pods(control_plane, namespace)
    operator.end()
    text = operator.log.read_text()
    values = [
        value
        for secret in control_plane.api.list(path("v1", "secrets", namespace))
        for value in secret.get("data", {}).values()
    ]
    assert len(values) >= 2
    for value in values:
        assert value not in text
        assert base64.b64decode(value).hex() not in text


def fatal_line(operator: OperatorProcess) -> str:
    """The last line of one that gave up; there must be just one error, and no traceback."""
    lines = operator.lines()
    errors = [line for line in lines if line["level"] == "error" and line.get("event") == "fatal"]
    assert errors == lines[-1:]
    assert "Traceback" not in operator.log.read_text()
    message: str = errors[0]["message"]
    return message


MISSING = {"list pods": "pods", f"watch {PLURAL}": PLURAL, f"update {PLURAL}/status": f"{PLURAL}/status"}


@pytest.mark.parametrize("right", MISSING)
def test_missing_right(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start, right: str
) -> None:
    """It gives up at once with the verb, the resource and whom to grant it to."""
    where = path("rbac.authorization.k8s.io/v1", "roles", namespace, "resumable-training")
    role = control_plane.api.get(where)
    for rule in role["rules"]:
        if MISSING[right] in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != right.split()[0]]
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    control_plane.api.update(where, role)
    operator = start(namespaced_account, namespace, "--namespace", namespace)
    assert operator.exit_code() == 1
    who = f"system:serviceaccount:{namespace}:resumable-training"
    assert f"{who} may not {right} in namespace {namespace}" in fatal_line(operator)


def test_api_server_comes_late(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """It waits for an API server that is not there yet, alive but not ready; then it works."""
    control_plane.stop_apiserver()
    try:
        operator = start(namespaced_account, namespace, "--namespace", namespace)
        operator.await_words("waiting for the API server")
        assert operator.get("/healthz")[0] == 200
        assert operator.get("/readyz")[0] == 503
    finally:
        control_plane.start_apiserver()
    operator.await_ready()


def test_api_server_never_comes(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """After the time it was given it gives up, and says which address it tried."""
    control_plane.stop_apiserver()
    try:
        limit = ("--unreachable-seconds", "1")
        operator = start(namespaced_account, namespace, "--namespace", namespace, *limit)
        assert operator.exit_code() == 1
    finally:
        control_plane.start_apiserver()
    assert control_plane.url in fatal_line(operator)


def test_api_server_away_for_a_while(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start
) -> None:
    """An operator at work outlives the API server's absence, and goes on by itself."""
    operator = start(namespaced_account, namespace, "--namespace", namespace, "--relist-seconds", "1")
    operator.await_ready()
    control_plane.stop_apiserver()
    try:
        operator.await_words("could not compare with the API server")
    finally:
        control_plane.start_apiserver()
    create_job(control_plane, namespace)
    await_pods(control_plane, namespace)
    assert operator.process.poll() is None


@pytest.mark.cluster
def test_kind_is_not_installed(own_plane: ControlPlane, start: Start) -> None:
    """Without the CRD it gives up with what to do; so does a running one whose CRD vanishes."""
    where = path("apiextensions.k8s.io/v1", "customresourcedefinitions", name=f"{PLURAL}.{GROUP}")
    operator = start(own_plane.kubeconfig, "default", "--relist-seconds", "1")
    assert operator.exit_code() == 1
    assert "kubectl apply -f deploy/crd.yaml" in fatal_line(operator)

    own_plane.define_kind(crd())
    operator = start(own_plane.kubeconfig, "default", "--relist-seconds", "1")
    operator.await_ready()
    own_plane.api.delete(where)
    assert operator.exit_code() == 1
    fatal_line(operator)

    own_plane.define_kind(crd())
    operator = start(own_plane.kubeconfig, "default", "--relist-seconds", "1")
    operator.await_ready()


def test_port_is_taken(
    control_plane: ControlPlane, namespace: str, namespaced_account: Path, start: Start, tmp_path: Path
) -> None:
    """A port that is not free is said at once."""
    options = ("--operator-namespace", namespace, "--namespace", namespace)
    with operator_process(tmp_path / "first.log", namespaced_account, *options) as first:
        second = start(namespaced_account, namespace, "--namespace", namespace, "--port", str(first.port))
        assert second.exit_code() == 1
        assert f"port {first.port} (--port)" in fatal_line(second)


@pytest.mark.parametrize("namespace_option", [("--namespace", "No/Namespace"), ("--nonsense", "x")])
def test_wrong_command_line(
    control_plane: ControlPlane, start: Start, namespace_option: tuple[str, str]
) -> None:
    """A wrong command line is exit code 2 with a usage message."""
    operator = start(control_plane.kubeconfig, "default", *namespace_option)
    assert operator.exit_code() == 2
    assert "Usage:" in operator.log.read_text()
