"""The operator works with the chart's rights alone, and uses them: compared by the API server's audit log."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bed.api import path
from bed.control_plane import ControlPlane
from bed.processes import Component, wait_until
from resumable_training.contract import labels

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resumable-training"
JOBS = f"{labels.GROUP}/{labels.VERSION}"
SYSTEM, TEAM, RELEASE = "resumable-system", "team-a", "resumable-training"
SECONDS = 60.0
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],  # not of answers that have begun: a watch does not end
    "rules": [{"level": "Metadata"}],
}
# Used only when something went wrong, or looked at by admission and never asked for.
SELDOM = {
    ("pods", "get"),
    ("resumabletrainingjobs", "get"),
    ("events", "patch"),
    ("resumabletrainingjobs/finalizers", "update"),
}
# Every account may ask what it may do.
EVERYBODYS = {("selfsubjectrulesreviews", "create")}

Object = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[Object]]
Start = Callable[..., None]

pytestmark = pytest.mark.cluster


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that writes down who asked for what."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={tmp_path / 'audit.log'}"]
    with ControlPlane.start(tmp_path / "plane", apiserver_flags=flags) as plane:
        plane.define_kind(yaml.safe_load((ROOT / "deploy" / "crd.yaml").read_text()))
        plane.api.create(path("v1", "namespaces"), {"metadata": {"name": TEAM}})
        yield plane


@pytest.fixture
def start_operator(audited: ControlPlane, tmp_path: Path) -> Iterator[Start]:
    """Starts an operator that has the account of the release and nothing else."""
    started: list[Component] = []

    def start(*arguments: str) -> None:
        command = [sys.executable, "-m", "resumable_operator", "--agent-image=agent", "--port=0"]
        options = ["--bind-address=127.0.0.1", f"--operator-namespace={SYSTEM}", "--relist-seconds=1"]
        env = {**os.environ, "KUBECONFIG": str(audited.kubeconfig_for(RELEASE, SYSTEM))}
        started.append(Component.start([*command, *options, *arguments], tmp_path / "operator.log", env))

    yield start
    for operator in started:
        operator.require_running()
        operator.terminate(30)


def _job(name: str, **spec: Any) -> Object:
    container = {"name": "worker", "image": "any", "command": ["python", "train.py"]}
    return {
        "apiVersion": JOBS,
        "kind": labels.KIND,
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "workers": {"replicas": 2},
            "checkpoint": {"persistentVolumeClaim": {"claimName": "checkpoints"}},
            "template": {"spec": {"containers": [container]}},
            **spec,
        },
    }


def _live_a_little(plane: ControlPlane) -> None:
    """A job gets pods, is suspended and goes on; another one is over and is tidied away."""
    claim = {
        "metadata": {"name": "checkpoints"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    plane.api.create(path("v1", "persistentvolumeclaims", TEAM), claim)
    jobs = path(JOBS, labels.PLURAL, TEAM)
    plane.api.create(jobs, _job("stays"))
    _await_pods(plane, "stays", 2)
    where = path(JOBS, labels.PLURAL, TEAM, "stays")
    plane.api.patch(where, {"spec": {"suspend": True}})
    _await_pods(plane, "stays", 0)
    plane.api.patch(where, {"spec": {"suspend": False}})
    _await_pods(plane, "stays", 2)
    plane.api.create(jobs, _job("goes", activeDeadlineSeconds=1, ttlSecondsAfterFinished=1))
    gone = path(JOBS, labels.PLURAL, TEAM, "goes")
    wait_until(lambda: plane.api.find(gone) is None, SECONDS, "the finished job to be deleted", interval=0.1)


def _await_pods(plane: ControlPlane, job: str, count: int) -> None:
    def there() -> bool:
        pods = plane.api.list(path("v1", "pods", TEAM), labelSelector=f"{labels.LABEL_JOB}={job}")
        return len(pods) == count

    wait_until(there, SECONDS, f"{count} pods of {job}", interval=0.1)


def _asked(log: Path) -> list[Object]:
    """What the operator's account has asked for on objects, by the audit log."""
    who = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [event for event in events if event["user"]["username"] == who and "objectRef" in event]


def _request(event: Object) -> tuple[str, str]:
    reference = event["objectRef"]
    return "/".join(filter(None, (reference["resource"], reference.get("subresource")))), event["verb"]


def _granted(objects: list[Object], names: tuple[str, ...]) -> set[tuple[str, str]]:
    return {
        (resource, verb)
        for o in objects
        if o["kind"] in ("Role", "ClusterRole") and o["metadata"]["name"] in names
        for rule in o["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [([], []), ([f"watchNamespaces={{{TEAM}}}"], [f"--namespace={TEAM}"])],
    ids=["cluster", "namespaced"],
)
def test_rights_are_enough_and_not_more(
    audited: ControlPlane,
    start_operator: Start,
    helm: Helm,
    render: Render,
    tmp_path: Path,
    settings: list[str],
    arguments: list[str],
) -> None:
    """Nothing that the operator asks for is forbidden, and it asks for all that it may."""
    options = [option for setting in [*settings, "crds.install=false"] for option in ("--set", setting)]
    helm(
        "install", RELEASE, CHART, "-n", SYSTEM, "--create-namespace", *options, kubeconfig=audited.kubeconfig
    )
    start_operator(*arguments)
    _live_a_little(audited)

    asked = _asked(tmp_path / "audit.log")
    forbidden = [event for event in asked if event.get("responseStatus", {}).get("code") == 403]
    assert {(_request(event), event["requestURI"]) for event in forbidden} == set()
    names = (RELEASE, f"{RELEASE}-keys")
    granted = _granted(render(*settings, namespace=SYSTEM, release=RELEASE), names)
    used = {_request(event) for event in asked}
    assert used - granted - EVERYBODYS == set()
    assert granted - used - SELDOM == set()
