"""pytest fixtures of the bed, loaded by tests/conftest.py: one real control plane for all tests of a run.

A test that uses one of them gets the marker `cluster`; one that starts its own plane has to set it.
Programs that are missing are built before the first test, outside of any test's time limit, with progress on
the terminal.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bed import control_plane as planes
from bed import prometheus as monitoring
from bed import s3 as object_storage
from bed.api import Api, ApiError, path
from bed.binaries import build, missing
from bed.control_plane import ControlPlane
from bed.nodes import Nodes
from bed.processes import wait_until
from bed.toolchain import BuildFailed
from resumable_operator.crd import crd

# Fixture -> programs that it needs.
PROGRAMS = {
    "control_plane": planes.PROGRAMS,
    "own_plane": planes.PROGRAMS,
    "helm": ("helm",),
    "s3": object_storage.PROGRAMS,
    "prometheus": monitoring.PROGRAMS,
    "promtool": ("promtool",),
}
NAMESPACE_SECONDS = 60.0

OWN = "bed.example/own"

MakeNamespace = Callable[..., str]
AddNode = Callable[..., str]
StartPrometheus = Callable[..., monitoring.Prometheus]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the bed, before -m selects by marks."""
    for item in items:
        if PROGRAMS.keys() & _fixtures(item):
            item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Build before the first test what the tests that were selected will need.

    If that fails they will fail, each with the reason; all others run.
    """
    if session.config.option.collectonly:
        return
    names = {program for item in session.items for program in _programs(item)}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        for module in missing(names):
            try:
                build(module)
            except BuildFailed as error:
                print(f"bed: no {module.title}: {error}", file=sys.stderr, flush=True)


def _programs(item: pytest.Item) -> Iterator[str]:
    """What it needs by its fixtures; what has the marker without any of them needs a control plane."""
    known = PROGRAMS.keys() & _fixtures(item)
    for fixture in known or (["control_plane"] if item.get_closest_marker("cluster") else []):
        yield from PROGRAMS[fixture]


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane with no nodes, shared by all tests: leave nothing cluster-wide behind."""
    with ControlPlane.start(tmp_path_factory.mktemp("bed")) as plane:
        yield plane


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_storage.S3Server]:
    """A running S3 server, shared by all tests: each works below a prefix of its own (`s3_url`)."""
    with object_storage.S3Server.start(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[StartPrometheus]:
    """``prometheus(rules=..., every=...)``: a running server of the test's own (`Prometheus.start`)."""
    with ExitStack() as running:

        def start(rules: Iterable[Path] = (), every: str = "1s") -> monitoring.Prometheus:
            server = monitoring.Prometheus.start(tmp_path / "prometheus", rules, every)
            return running.enter_context(server)

        yield start


@pytest.fixture(scope="session")
def promtool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``promtool("check", "rules", path)``; not checked."""
    return monitoring.promtool


@pytest.fixture
def s3_url(s3: object_storage.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix on the server; the environment has what a client needs to get there."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.bucket}/t-{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def job_kind(control_plane: ControlPlane) -> str:
    """The shared control plane knows ResumableTrainingJob; the path of all of them."""
    definition = crd()
    control_plane.define_kind(definition)
    spec = definition["spec"]
    return path(f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["plural"])


@pytest.fixture
def own_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane that the test may harm."""
    with ControlPlane.start(tmp_path / "plane") as plane:
        yield plane


@pytest.fixture(scope="session")
def nodes(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes of the shared control plane, `node-1` to `node-4`. No test may harm them: see `add_node`."""
    with Nodes.start(control_plane, tmp_path_factory.mktemp("nodes")) as running:
        for number in range(1, 5):
            running.add(f"node-{number}", cpu=8, memory="32Gi")
        yield running


@pytest.fixture
def add_node(nodes: Nodes) -> Iterator[AddNode]:
    """Call it for the name of a new node that the test may harm; it is removed after the test.

    Only pods that tolerate its taint `bed.example/own` (NoSchedule) come there; its label of that name has
    its own name as value, for a nodeSelector. Arguments are those of `Nodes.add`.
    """
    made: list[str] = []

    def add(**settings: Any) -> str:
        name = f"own-{secrets.token_hex(4)}"
        own = f"{OWN}={name}"
        settings["labels"] = {OWN: name, **settings.get("labels", {})}
        settings["taints"] = [f"{own}:NoSchedule", *settings.get("taints", ())]
        made.append(name)
        nodes.add(name, **settings)
        return name

    yield add
    for name in made:
        nodes.remove(name)


@pytest.fixture
def make_namespace(control_plane: ControlPlane) -> Iterator[MakeNamespace]:
    """Call it for a fresh namespace, `labels` optional; all of them go with the test."""
    made: list[str] = []

    def make(**labels: str) -> str:
        name = f"t-{secrets.token_hex(4)}"
        control_plane.api.create(path("v1", "namespaces"), {"metadata": {"name": name, "labels": labels}})
        made.append(name)
        _await_default_account(control_plane.api, name)
        return name

    yield make
    for name in made:
        remove_namespace(control_plane.api, name)


@pytest.fixture
def namespace(make_namespace: MakeNamespace) -> str:
    """The name of a fresh namespace that goes with the test."""
    return make_namespace()


@pytest.fixture
def restricted_namespace(make_namespace: MakeNamespace) -> str:
    """As `namespace`, where only pods of the restricted security standard are let in."""
    return make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})


def _await_default_account(api: Api, namespace: str) -> None:
    """Pods are refused before it exists, and wait for the CA's config map."""
    wanted = (
        path("v1", "serviceaccounts", namespace, "default"),
        path("v1", "configmaps", namespace, "kube-root-ca.crt"),
    )
    wait_until(
        lambda: all(api.find(where) for where in wanted), NAMESPACE_SECONDS, f"the account of {namespace}"
    )


def remove_namespace(api: Api, namespace: str) -> None:
    """Nothing is created there any more, and its pods end now, even those on a dead node. Not awaited."""
    try:
        api.delete(path("v1", "namespaces", name=namespace))
        pods = api.list(path("v1", "pods", namespace))
        for pod in pods:
            _delete_now(api, path("v1", "pods", namespace, pod["metadata"]["name"]))
    except ApiError as error:
        if error.status != 404:
            raise


def _delete_now(api: Api, where: str) -> None:
    try:
        api.delete(where, gracePeriodSeconds=0)
    except ApiError as error:
        if error.status != 404:
            raise
