"""The chart, deploy/ and the examples on a real API server, without nodes."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bed.api import ApiError, path
from bed.control_plane import ControlPlane
from bed.processes import wait_until
from resumable_operator import manifests
from resumable_operator.cluster.kube_objects import job_of
from resumable_training.contract import labels

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resumable-training"
DEPLOY = ROOT / "deploy"
CRD = path("apiextensions.k8s.io/v1", "customresourcedefinitions", name=f"{labels.PLURAL}.{labels.GROUP}")
JOBS = f"{labels.GROUP}/{labels.VERSION}"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SYSTEM = "resumable-system"
SECONDS = 30.0

Helm = Callable[..., subprocess.CompletedProcess[str]]
Install = Callable[..., str]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True, scope="module")
def crd(own_plane: ControlPlane) -> None:
    """Without it nothing else is known."""
    own_plane.define_kind(yaml.safe_load((DEPLOY / "crd.yaml").read_text()))


@pytest.fixture
def place(own_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace in which only restricted pods are let in."""
    name = "t-" + request.node.name.lower().translate(str.maketrans("_[]", "---")).strip("-")[:60]
    own_plane.api.create(path("v1", "namespaces"), {"metadata": {"name": name, "labels": RESTRICTED}})
    yield name
    own_plane.api.delete(path("v1", "namespaces", name=name))


@pytest.fixture
def install(own_plane: ControlPlane, helm: Helm) -> Iterator[Install]:
    """``install(namespace, *settings)`` gives the operator's account; the release goes with the test."""
    made: list[str] = []

    def run(namespace: str, *settings: str) -> str:
        options = [option for setting in settings for option in ("--set", setting)]
        helm("install", "rt", CHART, "--namespace", namespace, *options, kubeconfig=own_plane.kubeconfig)
        made.append(namespace)
        return f"{namespace}:rt-resumable-training"

    yield run
    for namespace in made:
        helm("uninstall", "rt", "--namespace", namespace, kubeconfig=own_plane.kubeconfig)


def _can(plane: ControlPlane, account: str, namespace: str, question: str) -> bool:
    """``kubectl auth can-i`` for a service account, e.g. "create pods"."""
    who = ("--as", f"system:serviceaccount:{account}", "-n", namespace)
    return plane.kubectl("auth", "can-i", *question.split(), *who, check=False).stdout.strip() == "yes"


@pytest.mark.parametrize(
    "example", sorted((DEPLOY / "examples").glob("*.yaml")), ids=lambda example: example.stem
)
def test_examples_are_accepted(own_plane: ControlPlane, place: str, example: Path) -> None:
    """Each example passes the CRD's schema and rules, is stored as written, and makes restricted pods."""
    own_plane.kubectl("create", "-n", place, "--dry-run=server", "--validate=strict", "-f", str(example))
    own_plane.kubectl("create", "-n", place, "-f", str(example))
    (job,) = own_plane.api.list(path(JOBS, labels.PLURAL, place))
    (written,) = [d for d in yaml.safe_load_all(example.read_text()) if d["kind"] == labels.KIND]
    assert job["spec"]["template"] == written["spec"]["template"]
    assert job["spec"]["workers"]["replicas"] == written["spec"]["workers"]["replicas"]
    settings = manifests.PodSettings(agent_image="resumable-training/operator")
    pod = manifests.pod(job_of(job), "worker-0-1", 0, 1, "key", settings)
    own_plane.api.create(path("v1", "pods", place), pod, dryRun="All")


def test_operators_pod_is_restricted(own_plane: ControlPlane, render: Render, place: str) -> None:
    """The pod of the Deployment is let in where only restricted pods are; without its settings it is not."""
    (deployment,) = [o for o in render(namespace=place) if o["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    template["spec"]["serviceAccountName"] = "default"
    pod = {"metadata": {**template["metadata"], "name": "operator"}, "spec": template["spec"]}
    own_plane.api.create(path("v1", "pods", place), pod, dryRun="All")
    del template["spec"]["securityContext"]
    with pytest.raises(ApiError, match="violates PodSecurity"):
        own_plane.api.create(path("v1", "pods", place), pod, dryRun="All")


def test_kustomization_applies_twice(own_plane: ControlPlane) -> None:
    """`kubectl apply -k deploy` works, changes nothing the second time, and can be taken back."""
    own_plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(DEPLOY))
    where = path("apps/v1", "deployments", SYSTEM, "resumable-training")
    first = own_plane.api.get(where)["metadata"]["generation"]
    own_plane.kubectl("apply", "--server-side", "-k", str(DEPLOY))
    assert own_plane.api.get(where)["metadata"]["generation"] == first
    own_plane.kubectl("delete", "-f", str(DEPLOY / "operator.yaml"))
    assert own_plane.api.find(where) is None


def test_rights_cluster_wide(own_plane: ControlPlane, install: Install, place: str) -> None:
    """Cluster-wide, the account may do what it must in any namespace, and nothing that it need not."""
    account = install(place, "crds.install=false")
    needed = [
        "create pods",
        "watch nodes",
        "update resumabletrainingjobs --subresource=status",
        "delete resumabletrainingjobs",
        "create secrets",
    ]
    assert [question for question in needed if not _can(own_plane, account, "default", question)] == []
    assert _can(own_plane, account, place, "get secrets/resumable-training-master")
    too_much = [
        "get secrets",
        "list secrets",
        "get secrets/resumable-training-master",
        "create pods --subresource=exec",
        "update resumabletrainingjobs",
        "patch resumabletrainingjobs",
        "delete nodes",
        "get configmaps",
        "impersonate users",
    ]
    assert [question for question in too_much if _can(own_plane, account, "default", question)] == []
    assert not _can(own_plane, account, place, "get secrets/other")
    assert not _can(own_plane, account, place, "list secrets")


def test_rights_namespaced(own_plane: ControlPlane, install: Install, place: str) -> None:
    """With watchNamespaces the account has rights there and nowhere else, and none on nodes."""
    account = install(place, "watchNamespaces={default}")
    assert _can(own_plane, account, "default", "create pods")
    assert _can(own_plane, account, "default", "update resumabletrainingjobs --subresource=status")
    assert not _can(own_plane, account, place, "create pods")
    assert not _can(own_plane, account, "kube-system", "list resumabletrainingjobs")
    assert not _can(own_plane, account, "default", "list nodes")


def test_standard_roles_include_jobs(own_plane: ControlPlane, install: Install, place: str) -> None:
    """The standard roles view and edit include jobs while the chart is installed cluster-wide."""
    for role in ("view", "edit"):
        own_plane.kubectl("create", "sa", role, "-n", place)
        who = (f"--clusterrole={role}", f"--serviceaccount={place}:{role}")
        own_plane.kubectl("create", "rolebinding", role, "-n", place, *who)
    view, edit = f"{place}:view", f"{place}:edit"
    assert not _can(own_plane, view, place, "get rtj")
    install(place, "crds.install=false")
    wait_until(lambda: _can(own_plane, edit, place, "create rtj"), SECONDS, "aggregated roles", interval=0.2)
    assert _can(own_plane, view, place, "get rtj")
    assert not _can(own_plane, view, place, "create rtj")
    assert _can(own_plane, edit, place, "patch resumabletrainingjobs --subresource=scale")
    assert not _can(own_plane, edit, place, "patch resumabletrainingjobs --subresource=status")


def test_crd_of_kubectl_can_be_taken_over(own_plane: ControlPlane, helm: Helm, place: str) -> None:
    """A CRD that kubectl applied stops an installation, is taken over on demand, and both may go on."""
    own_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEPLOY / "crd.yaml"))
    command, config = ("install", "rt", CHART, "-n", place), own_plane.kubeconfig
    assert "invalid ownership metadata" in helm(*command, check=False, kubeconfig=config).stderr
    helm(*command, "--take-ownership", kubeconfig=config)
    own_plane.kubectl("apply", "--server-side", "-f", str(DEPLOY / "crd.yaml"))
    helm("upgrade", "rt", CHART, "-n", place, "--set", "log.level=debug", kubeconfig=config)
    helm("uninstall", "rt", "-n", place, kubeconfig=config)
    assert own_plane.api.find(CRD) is not None
