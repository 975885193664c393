"""Helm, and the chart as it renders, for the tests of what is deployed."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bed.binaries import binary
from bed.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "resumable-training"

Completed = subprocess.CompletedProcess[str]
Helm = Callable[..., Completed]
Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """``helm(*args, check=True, kubeconfig=None)``: Helm itself, its files kept out of the home directory."""
    home = tmp_path_factory.mktemp("helm")

    def run(*args: str | Path, check: bool = True, kubeconfig: Path | None = None) -> Completed:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig or home / "none")}
        result = subprocess.run([binary("helm"), *args], env=env, capture_output=True, text=True, check=False)
        assert result.returncode == 0 or not check, result.stdout + result.stderr
        return result

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """``render(*settings, namespace="sys")``: objects of the chart with these ``--set`` settings."""

    def run(*settings: str, namespace: str = "sys", release: str = "rt") -> list[dict[str, Any]]:
        options = [option for setting in settings for option in ("--set", setting)]
        text = helm("template", release, CHART, "--namespace", namespace, *options).stdout
        return [document for document in yaml.safe_load_all(text) if document]

    return run


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of the file's own: what is installed here belongs to the whole cluster."""
    with ControlPlane.start(tmp_path_factory.mktemp("plane")) as plane:
        yield plane
