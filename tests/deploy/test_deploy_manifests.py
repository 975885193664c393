"""deploy/: rendered from the chart, whole with kustomize, and movable to another namespace."""

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from bed.binaries import binary

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
Helm = Callable[..., subprocess.CompletedProcess[str]]


def _render_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render", DEPLOY / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _kustomize(directory: Path) -> list[dict[str, Any]]:
    result = subprocess.run(
        [binary("kubectl"), "kustomize", directory], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def test_manifests_are_the_charts(helm: Helm) -> None:
    """Each rendered file is what `make deploy` would write now."""
    render = _render_module()
    stale = [
        path
        for path, (namespace, options) in render.VARIANTS.items()
        if path.read_text() != render.render(namespace, options)
    ]
    assert stale == [], "run make deploy"


def test_kustomization_is_whole(helm: Helm) -> None:
    """`kubectl apply -k deploy` brings the namespace, the CRD, rights and the operator."""
    kinds = [document["kind"] for document in _kustomize(DEPLOY)]
    assert sorted(set(kinds)) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "Deployment",
        "Namespace",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ]


@pytest.mark.parametrize("namespace", ["training", "team-a"])
def test_namespaced_variant_moves(helm: Helm, tmp_path: Path, namespace: str) -> None:
    """One line names the namespace, and everything follows: accounts, bindings, what is watched."""
    source = (DEPLOY / "namespaced" / "kustomization.yaml").read_text()
    (tmp_path / "kustomization.yaml").write_text(
        source.replace("namespace: training", f"namespace: {namespace}")
    )
    (tmp_path / "operator.yaml").write_text((DEPLOY / "namespaced" / "operator.yaml").read_text())
    documents = _kustomize(tmp_path)
    assert {document["metadata"]["namespace"] for document in documents} == {namespace}
    subjects = [subject for d in documents if d["kind"] == "RoleBinding" for subject in d["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {namespace}
    (deployment,) = [document for document in documents if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--namespace=$(POD_NAMESPACE)" in container["args"]
    if namespace != "training":
        assert "training" not in {document["metadata"]["namespace"] for document in documents}
