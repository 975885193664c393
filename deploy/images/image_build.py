"""Build both images with docker, podman or buildah, whichever works here: ``make images``.

Standard library only, so that a machine that builds needs no virtual environment. ``image_check`` says
whether what was built is right.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGETS = ("operator", "worker")
# A client alone is no tool: docker's comes without its daemon in many a container. An answer shows more.
TOOLS: Mapping[str, tuple[str, ...]] = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "buildah": ("buildah", "version"),
}
PROBE_SECONDS = 60


class NoTool(Exception):
    """None of the tools that would do works here; the message says what was tried, and the fix."""


@dataclass(frozen=True)
class Options:
    """What is built, and how.

    Attributes:
        registry: in front of the names, with no slash at its end; "" for none.
        python_image: the base, in place of the Dockerfile's own.
        more: arguments for the tool's own ``build``, as they are.
    """

    targets: tuple[str, ...] = TARGETS
    registry: str = ""
    python_image: str = ""
    more: tuple[str, ...] = ()


def find_tool(names: Sequence[str] = tuple(TOOLS)) -> str:
    """The first of these that is there and works.

    Raises:
        NoTool: none is.
    """
    tried = []
    for name in names:
        if shutil.which(name) is None:
            tried.append(f"{name}: not found")
            continue
        refusal = _refusal(TOOLS[name])
        if refusal is None:
            return name
        tried.append(f"{name}: {refusal}")
    raise NoTool(
        "No tool for images works here.\n"
        + "".join(f"  {line}\n" for line in tried)
        + f"Install one of {', '.join(names)}, or start docker's daemon."
    )


def _refusal(command: Sequence[str]) -> str | None:
    """Why it does not work, in a line; None: it does."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = (result.stderr.strip() or result.stdout.strip() or "no answer").splitlines()
    return lines[-1] if result.returncode else None


def version() -> str:
    """Of the project; the images' tag."""
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def image_name(target: str, registry: str = "") -> str:
    """As the chart and the examples name it, behind the registry."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    return f"{prefix}resumable-training/{target}:{version()}"


def build_command(tool: str, target: str, options: Options) -> list[str]:
    """What builds one target; ``.dockerignore`` decides what of the tree is sent along."""
    base = ["--build-arg", f"PYTHON_IMAGE={options.python_image}"] if options.python_image else []
    name = image_name(target, options.registry)
    return [tool, "build", "--target", target, "--tag", name, *base, *options.more, str(ROOT)]


def parse(arguments: Sequence[str]) -> tuple[Options, str | None]:
    """Options, and the tool that was asked for."""
    parser = argparse.ArgumentParser(
        description="Build the images of the operator and of a worker.",
        epilog="What follows -- goes to the tool's build, e.g. -- --secret id=pip.conf,src=pip.conf",
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: both")
    parser.add_argument("--registry", default="", help="in front of the images' names")
    parser.add_argument("--python-image", default="", help="base image, in place of the pinned one")
    parser.add_argument("--tool", choices=list(TOOLS), help="default: the first that works")
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    given = parser.parse_args(arguments[:at])
    targets = tuple(given.target or TARGETS)
    return Options(targets, given.registry, given.python_image, tuple(arguments[at + 1 :])), given.tool


def main(arguments: Sequence[str]) -> int:
    options, wanted = parse(arguments)
    try:
        tool = find_tool((wanted,) if wanted else tuple(TOOLS))
    except NoTool as error:
        print(error, file=sys.stderr)
        return 1
    for target in options.targets:
        command = build_command(tool, target, options)
        print(f"images: {' '.join(command)}", file=sys.stderr, flush=True)
        code = subprocess.run(command, check=False).returncode
        if code:
            return code
        print(f"images: built {image_name(target, options.registry)}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
