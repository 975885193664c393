"""PURE: what is wrong with an image, from its configuration and from what image_probe.py found in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = dict[str, Any]

USER = "1000:1000"
ENTRYPOINTS: Mapping[str, list[str] | None] = {
    "operator": ["python", "-m", "resumable_operator"],
    "worker": None,  # a job says what runs
}
# Importing these takes everything that the image is for.
MODULES: Mapping[str, tuple[str, ...]] = {
    "operator": ("resumable_operator.__main__", "resumable_training.agent.bundle"),
    "worker": (
        *("torch", "torch.distributed.checkpoint", "torch._dynamo", "safetensors", "obstore"),
        *("resumable_training", "resumable_training.agent.__main__", "resumable_operator.cli.main"),
    ),
}
BASE_PACKAGES = ("pip", "setuptools")  # of the base image; no constraint binds them


def of_configuration(target: str, version: str, config: Raw) -> list[str]:
    """``config``: the image's own, as ``inspect`` tells it."""
    labels = config.get("Labels") or {}
    prefix = "org.opencontainers.image"
    path = dict(entry.split("=", 1) for entry in config.get("Env") or ()).get("PATH", "")
    wanted = (
        ("its user", config.get("User"), USER),
        ("its entrypoint", config.get("Entrypoint") or None, ENTRYPOINTS[target]),
        ("its version", labels.get(f"{prefix}.version"), version),
        ("its title", labels.get(f"{prefix}.title"), f"resumable-training {target}"),
        ("the first folder of PATH", path.split(":")[0], "/opt/venv/bin"),
    )
    return [f"{what} is {found!r}, not {right!r}" for what, found, right in wanted if found != right]


def of_facts(
    target: str, version: str, facts: Raw, pins: Mapping[str, str], dev: frozenset[str]
) -> list[str]:
    """``facts`` of the probe, ``pins`` of constraints.txt; ``dev``: packages that only developers need."""
    installed = facts["distributions"]
    found = [f"{name} cannot be imported: {why}" for name, why in facts["not_importable"].items()]
    if compiled := facts["compiled"]:
        named = ", ".join([*compiled[:3], "..."][: len(compiled)])
        found.append(f"{len(compiled)} files without valid bytecode are compiled at each start: {named}")
    found += [f"{path} should not be in it" for path in facts["strays"]]
    found += [f"{name}, a tool for building, is in it" for name in facts["builders"]]
    found += [f"{name}, a package for developers, is in it" for name in sorted(dev & set(installed))]
    found += [
        f"{name} is {installed[name]}, not {pin} as constraints.txt has it"
        for name, pin in pins.items()
        if installed.get(name, pin) != pin
    ]
    if installed.get("resumable-training") != version:
        found.append(f"resumable-training is {installed.get('resumable-training')}, not {version}")
    if "No broken requirements" not in facts["pip_check"]:
        found.append(f"pip check: {facts['pip_check']}")
    if target == "operator":
        found += _of_operator(facts, pins)
    return found


def _of_operator(facts: Raw, pins: Mapping[str, str]) -> list[str]:
    """It must be small, and nothing in it may be there by chance."""
    known = {*pins, *BASE_PACKAGES, "resumable-training"}
    found = [
        f"{name} is in it, but not in constraints.txt" for name in facts["distributions"] if name not in known
    ]
    if facts["torch_present"]:
        found.append("torch is in it")
    return found


def pins_of(constraints: str) -> dict[str, str]:
    """Name in lower case -> version, of the lines of constraints.txt."""
    lines = (line.split("#")[0].strip() for line in constraints.splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {name.lower(): version for name, version in pairs}
