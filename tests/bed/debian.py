"""Programs out of a Debian package, unpacked into the bed's cache: nothing is installed, no service started.

Called by binaries.py, under its lock, for what is not on the machine.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bed.progress import Progress
from bed.toolchain import BuildFailed

APT_SECONDS = 300


@dataclass(frozen=True)
class Package:
    """A package and what is taken out of it: `programs` maps our names to paths in it."""

    title: str
    name: str
    programs: Mapping[str, str]

    @property
    def key(self) -> str:
        """Changes with whatever changes the result: package, programs, platform."""
        parts = (self.name, repr(sorted(self.programs.items())), sys.platform, platform.machine())
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

    def make(self, output: Path) -> None:
        """Put its programs into `output`; BuildFailed when the package can't be had."""
        with Progress(f"fetching {self.title}") as progress, tempfile.TemporaryDirectory() as work:
            try:
                self._download(Path(work), progress)
                (archive,) = Path(work).glob("*.deb")
                _run(["dpkg-deb", "--extract", archive, Path(work, "root")], Path(work))
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                raise BuildFailed(f"no {self.title}: {_words(error)}\n{self._fix}") from error
            for name, inside in self.programs.items():
                shutil.copy2(Path(work, "root", inside), output / name)

    def _download(self, work: Path, progress: Progress) -> None:
        """With the package lists that are there; a fresh machine has none yet."""
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", self.name]
        progress.say("asking for the package")
        try:
            _run(download, work)
        except subprocess.CalledProcessError:
            progress.say("fetching the lists of packages")
            _run(["apt-get", "update"], work)
            _run(download, work)

    @property
    def _fix(self) -> str:
        names = " and ".join(self.programs)
        return f"Install the package {self.name} (apt-get install {self.name}), or put {names} on PATH."


def _run(command: Sequence[str | Path], work: Path) -> None:
    subprocess.run(command, cwd=work, capture_output=True, text=True, check=True, timeout=APT_SECONDS)


def _words(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    return f"{error}\n{said.strip()}" if said else str(error)


PROMETHEUS = Package(
    title="Prometheus (Debian's package)",
    name="prometheus",
    programs={"prometheus": "usr/bin/prometheus", "promtool": "usr/bin/promtool"},
)
