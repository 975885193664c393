"""Virtual environments for the peers of the recovery benchmark, in the cache: never in the project's own.

Each sees the packages of the interpreter that runs the benchmark behind its own, so that all train with the
same torch and none downloads it again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PIP_SECONDS = 900


class NotInstalled(Exception):
    """A peer can't be had here; the message says why."""


@dataclass(frozen=True)
class Peer:
    """``packages``: for pip. ``unpacked``: with the platform that its wheel claims, for a wheel that pip
    would refuse on this machine. ``check``: a module that must import."""

    name: str
    packages: tuple[str, ...]
    check: str
    unpacked: tuple[str, str] | None = None


def environment_of(peer: Peer) -> Path:
    """The directory with the peer's programs; made once.

    Raises:
        NotInstalled: pip failed, or what it installed does not import.
    """
    home = _cache() / f"{peer.name}-{sys.version_info.major}{sys.version_info.minor}"
    done = home / "installed"
    programs = home / "bin"
    if done.exists() and done.read_text() == repr(peer):
        return programs
    shutil.rmtree(home, ignore_errors=True)
    home.parent.mkdir(parents=True, exist_ok=True)
    _run(peer, [sys.executable, "-m", "venv", str(home)])
    python = str(programs / "python")
    site = Path(_run(peer, [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    (site / "zz-shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if peer.packages:
        _run(peer, [python, "-m", "pip", "install", "--no-input", "--quiet", *peer.packages])
    if peer.unpacked is not None:
        package, platform = peer.unpacked
        options = ["--no-deps", "--only-binary=:all:", f"--platform={platform}", f"--target={site}"]
        _run(peer, [python, "-m", "pip", "install", "--no-input", "--quiet", *options, package])
    _run(peer, [python, "-c", f"import {peer.check}"])
    done.write_text(repr(peer))
    return programs


def version_of(programs: Path, package: str) -> str:
    """Of what is installed there."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    done = subprocess.run([programs / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _run(peer: Peer, command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{' '.join(command[1:4])} took longer than {PIP_SECONDS} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise NotInstalled(f"{' '.join(command[1:4])}: {last[:300]}")
    return done.stdout


def _cache() -> Path:
    given = os.environ.get("RESUMABLE_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "resumable-training") / "peers"
