"""The Dockerfile by its text: lint, pins, users, and a context that has what it copies."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def _instructions() -> list[tuple[str, str]]:
    """(instruction, rest) in order, with continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()
    ]


def _stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions by stage, those of the stages it builds on included."""
    stages: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for instruction, rest in _instructions():
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            current = stages[name] = list(stages.get(base, []))
        else:
            current.append((instruction, rest))
    return stages


def test_hadolint_is_clean() -> None:
    """hadolint finds nothing, not even a hint."""
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_base_image_is_pinned() -> None:
    """One base image, by full version and digest, of the lowest Python that is supported."""
    bases = [rest.partition(" AS ")[0] for instruction, rest in _instructions() if instruction == "FROM"]
    names = set(_stages())
    assert {base for base in bases if base not in names} == {"${PYTHON_IMAGE}"}
    (default,) = [rest for instruction, rest in _instructions() if instruction == "ARG"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", default)


def test_targets_run_as_nobody_special() -> None:
    """Both targets end up with user 1000; only the operator has an entrypoint: jobs set a command."""
    stages = _stages()
    for target in ("operator", "worker"):
        assert [rest for instruction, rest in stages[target] if instruction == "USER"][-1] == "1000:1000"
    entrypoints = {
        name: [rest for instruction, rest in stages[name] if instruction in ("ENTRYPOINT", "CMD")]
        for name in ("operator", "worker")
    }
    assert entrypoints == {"operator": ['["python", "-m", "resumable_operator"]'], "worker": []}


def test_installs_are_constrained_and_leave_nothing() -> None:
    """Every pip call has the constraints and no cache; what is installed is the wheel of this version."""
    pips = [rest for instruction, rest in _instructions() if instruction == "RUN" and " pip " in rest]
    installs = [pip for pip in pips if " install " in pip]
    assert len(installs) == 3
    assert all("--no-cache-dir" in pip for pip in pips)
    assert all("-c constraints.txt" in pip for pip in installs)
    wheels = re.findall(
        r"/wheels/resumable_training-([\d.]+)-py3-none-any\.whl\[(\w+)\]", "\n".join(installs)
    )
    assert wheels == [(VERSION, "operator"), (VERSION, "worker")]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert "hatchling" in pinned


def test_an_index_of_ones_own_leaves_no_trace() -> None:
    """Whatever asks the package index can be told another one by secrets; they are mounted, never copied."""
    runs = [rest for instruction, rest in _instructions() if instruction == "RUN"]
    secrets = ("--mount=type=secret,id=pip.conf,target=/etc/pip.conf", "--mount=type=secret,id=ca.pem")
    asking = [run for run in runs if " install " in run]
    assert asking
    assert [run for run in asking if not all(secret in run for secret in secrets)] == []
    assert "pip.conf" not in " ".join(rest for instruction, rest in _instructions() if instruction == "COPY")


def test_bytecode_is_held_to_hashes() -> None:
    """Of the standard library and of all that pip installs, whatever times a builder gives the files."""
    stages = _stages()
    for target in ("operator", "worker"):
        compiles = [rest for instruction, rest in stages[target] if " compileall " in rest]
        assert ["compileall -f -q --invalidation-mode checked-hash" in rest for rest in compiles] == [True]
        environment = stages[f"{target}-environment"]
        chooses = [rest.startswith("SOURCE_DATE_EPOCH=") for _, rest in environment].index(True)
        assert [rest for _, rest in environment[:chooses] if "/opt/venv" in rest] == []
    assert "--no-compile" not in DOCKERFILE.read_text()


def test_labels_have_the_version() -> None:
    """The images say which version they are."""
    labels = " ".join(rest for instruction, rest in _stages()["operator"] if instruction == "LABEL")
    assert f'org.opencontainers.image.version="{VERSION}"' in labels
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in labels


def test_context_has_what_is_copied_and_no_more() -> None:
    """.dockerignore shuts out everything but the sources that COPY names."""
    copied = {
        word.rstrip("/")
        for instruction, rest in _instructions()
        if instruction == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    assert copied == allowed
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert any(fnmatch.fnmatch("operator/x/__pycache__", rule) for rule in rules if rule != "*")
