"""What builds and checks the images, as far as no tool for images is needed: `make images` has the rest."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from py_compile import PycInvalidationMode
from py_compile import compile as compile_file
from types import ModuleType
from typing import Any

import pytest
from image_build import NoTool, Options, build_command, find_tool, image_name, main, parse
from image_check import deployment, dev_packages, worker_pod
from image_faults import of_configuration, of_facts, pins_of
from image_pods import Pod, confinement, run_command
from image_probe import compilations, load_again

ROOT = Path(__file__).parents[2]
WORKS, FAILS = "exit 0", "echo 'no daemon' >&2; exit 1"
Raw = dict[str, Any]
Tools = Callable[..., None]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """``tools(docker="exit 0")``: PATH has these and no others."""

    def lay(**bodies: str) -> None:
        for name, body in bodies.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return lay


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ({"docker": WORKS, "podman": WORKS}, "docker"),
        ({"docker": FAILS, "podman": WORKS}, "podman"),
        ({"docker": FAILS, "buildah": WORKS}, "buildah"),
    ],
)
def test_the_first_tool_that_works_is_taken(tools: Tools, there: dict[str, str], chosen: str) -> None:
    """A docker client without its daemon does not count."""
    tools(**there)
    assert find_tool() == chosen


def test_without_a_tool_it_says_what_was_tried(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    """Each tool with its own words, and the fix; no traceback."""
    tools(docker=FAILS)
    with pytest.raises(NoTool):
        find_tool()
    assert main([]) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in ("docker: no daemon", "podman: not found", "Install one of"))


def test_a_failed_build_is_the_end(tools: Tools) -> None:
    """The tool's exit code comes back, and the second target is not begun."""
    tools(podman='case "$*" in *worker*) exit 9;; build*) exit 3;; esac')
    assert main([]) == 3


def test_build_command_has_what_was_asked_for() -> None:
    """Base image, registry, and what follows `--`, in the order that all three tools take."""
    options, tool = parse(
        ["--tool", "podman", "--registry", "r.example/ml/", "--python-image", "py:1", "--", "--pull"]
    )
    assert tool == "podman"
    assert build_command("podman", "worker", options) == [
        *("podman", "build", "--target", "worker", "--tag", image_name("worker", "r.example/ml")),
        *("--build-arg", "PYTHON_IMAGE=py:1", "--pull", str(ROOT)),
    ]
    assert parse([])[0] == Options()
    assert parse(["--target", "worker"])[0].targets == ("worker",)


def test_images_are_called_as_the_manifests_call_them() -> None:
    """What is built is what the rendered Deployment and the examples name."""
    assert image_name("operator") in (ROOT / "deploy" / "operator.yaml").read_text()
    assert image_name("worker") in (ROOT / "deploy" / "examples" / "gpt-pvc.yaml").read_text()


def test_containers_run_as_their_pod_says(tmp_path: Path) -> None:
    """User, root, capabilities, volumes and variables of the real containers reach the tool."""
    spec = worker_pod("op:1", "train:1")
    volumes = {volume["name"]: tmp_path / volume["name"] for volume in spec["volumes"]}
    pod = Pod(spec, volumes, {"status.podIP": "127.0.0.1"})
    init = run_command("docker", pod, spec["initContainers"][-1], "--rm")
    assert init == [
        *("docker", "run", "--network", "none", "--rm", "--user", "1000:1000", "--read-only"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--volume", f"{tmp_path}/resumable-agent:/opt/resumable:z", "--entrypoint", "python"),
        *("op:1", "-m", "resumable_training.agent.bundle", "/opt/resumable/agent.pyz"),
    ]
    (container,) = spec["containers"]
    worker = run_command("podman", pod, container)
    assert f"{tmp_path}/resumable-agent:/opt/resumable:ro,z" in worker
    assert "/dev/shm:rw,mode=1777" in worker
    assert "--read-only-tmpfs=false" in worker
    (agent_spec,) = [word for word in worker if word.startswith("RESUMABLE_AGENT_SPEC=")]
    assert '"address": "127.0.0.1"' in agent_spec or '"address":"127.0.0.1"' in agent_spec
    assert worker[-3:] == ["resumable_training.examples.gpt", "--steps", "2000"]


def test_a_pod_without_wishes_gets_no_options() -> None:
    """The container's word comes before the pod's; what neither says is left to the image."""
    assert confinement("docker", {}, {}) == []
    assert confinement("docker", {"runAsUser": 1, "runAsGroup": 2}, {"runAsUser": 3}) == ["--user", "3:2"]
    assert confinement("docker", {"runAsUser": 1}, {}) == ["--user", "1"]


def test_the_operators_container_is_the_deployments() -> None:
    """With the image that is checked, whatever the manifest names."""
    spec, container = deployment("r.example/op:2")
    assert container["image"] == "r.example/op:2"
    assert confinement("docker", spec["securityContext"], container["securityContext"])[:3] == [
        *("--user", "1000:1000", "--read-only")
    ]


RIGHT: Raw = {
    "User": "1000:1000",
    "Entrypoint": ["python", "-m", "resumable_operator"],
    "Env": ["PATH=/opt/venv/bin:/usr/bin", "EMPTY="],
    "Labels": {
        "org.opencontainers.image.version": "1.2",
        "org.opencontainers.image.title": "resumable-training operator",
    },
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"User": "root"}, "its user is 'root'"),
        ({"Entrypoint": []}, "its entrypoint is None"),
        ({"Env": []}, "the first folder of PATH"),
        ({"Labels": None}, "its version is None"),
    ],
)
def test_configurations_are_judged(change: Raw, fault: str) -> None:
    """Each thing that pods rely on is named when it is wrong."""
    found = of_configuration("operator", "1.2", {**RIGHT, **change})
    assert (fault in "\n".join(found)) if fault else found == []


FOUND: Raw = {
    "distributions": {"resumable-training": "1.2", "kopf": "1.45", "pip": "24"},
    "not_importable": {},
    "compiled": [],
    "torch_present": False,
    "builders": [],
    "strays": [],
    "pip_check": "No broken requirements found.",
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"torch_present": True}, "torch is in it"),
        (
            {"compiled": ["/lib/ssl.py"]},
            "1 files without valid bytecode are compiled at each start: /lib/ssl.py",
        ),
        ({"compiled": [*"abcd"]}, "4 files without valid bytecode are compiled at each start: a, b, c, ..."),
        ({"builders": ["gcc"]}, "gcc, a tool for building"),
        ({"strays": ["/src"]}, "/src should not be in it"),
        ({"not_importable": {"kopf": "no kopf"}}, "kopf cannot be imported: no kopf"),
        ({"pip_check": "a 1 requires b, which is not installed."}, "pip check: a 1 requires b"),
        ({"distributions": {"resumable-training": "1.1"}}, "resumable-training is 1.1, not 1.2"),
        ({"distributions": {"resumable-training": "1.2", "kopf": "2"}}, "kopf is 2, not 1.45"),
        ({"distributions": {"resumable-training": "1.2", "pytest": "9"}}, "pytest, a package for developers"),
        ({"distributions": {"resumable-training": "1.2", "left-pad": "1"}}, "left-pad is in it, but not in"),
    ],
)
def test_contents_are_judged(change: Raw, fault: str) -> None:
    """An image with more or other things than it should have is refused, with the thing's name."""
    pins = pins_of("# pins\nkopf==1.45  # why\npytest==9\n")
    found = of_facts("operator", "1.2", {**FOUND, **change}, pins, frozenset({"pytest"}))
    assert (fault in "\n".join(found)) if fault else found == []


HASH, TIMESTAMP = PycInvalidationMode.CHECKED_HASH, PycInvalidationMode.TIMESTAMP


@pytest.mark.parametrize(
    ("mode", "touched", "text", "compiles"),
    [
        (None, False, "VALUE = 1", True),
        (TIMESTAMP, False, "VALUE = 1", False),
        (TIMESTAMP, True, "VALUE = 1", True),
        (HASH, True, "VALUE = 1", False),
        (HASH, False, "VALUE = 2", True),
    ],
    ids=["none", "timestamp", "timestamp-rewritten", "hash-rewritten", "hash-changed"],
)
def test_missing_bytecode_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: PycInvalidationMode | None,
    touched: bool,
    text: str,
    compiles: bool,
) -> None:
    """Also bytecode that no longer fits: a builder that rewrites times spoils timestamps, and not hashes."""
    file = tmp_path / "probed_for_bytecode.py"
    file.write_text("VALUE = 1")
    os.utime(file, (1e9, 1e9))
    if mode is not None:
        compile_file(str(file), invalidation_mode=mode)
    file.write_text(text)
    os.utime(file, (5e8, 5e8) if touched else (1e9, 1e9))
    monkeypatch.syspath_prepend(tmp_path)
    with compilations() as compiled:
        module = importlib.import_module("probed_for_bytecode")
    del sys.modules["probed_for_bytecode"]
    bare = ModuleType("bare")  # such as typing.io: no import made it
    del bare.__spec__
    with compilations() as later:
        load_again({"bare": bare, "probed_for_bytecode": module})
    expected = [str(file)] if compiles else []
    assert (compiled, later, f"VALUE = {module.VALUE}") == (expected, expected, text)


def test_a_worker_may_have_what_torch_brings() -> None:
    """Only the operator's image is held to the packages of constraints.txt."""
    found = {
        **FOUND,
        "torch_present": True,
        "distributions": {"resumable-training": "1.2", "nvidia-nccl": "2"},
    }
    assert of_facts("worker", "1.2", found, {}, frozenset()) == []


def test_developers_packages_are_known_by_name() -> None:
    """Without versions, in lower case, as an installed package calls itself."""
    assert {"pytest", "ruff", "grafana-foundation-sdk", "types-pyyaml"} <= dev_packages()


def test_the_builder_needs_no_environment() -> None:
    """`make images` runs on a machine with nothing but Python."""
    script = ROOT / "deploy" / "images" / "image_build.py"
    result = subprocess.run([sys.executable, "-I", "-S", script, "--help"], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
