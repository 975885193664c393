"""An agent as a pod's container starts it: the bundle under a plain Python, told everything by its command
line and environment; and the ways to take from it what a pod may lack."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_process import WAIT_SECONDS, AgentProcess, wait_until

from resumable_training.contract import env
from resumable_training.contract.codec import to_json

NEEDED = (3, 9)
UNKNOWN_USER = 64321
PRIVILEGE = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
# First process of its own PID namespace; dies with `unshare`.
AS_PID_1 = ("unshare", *PRIVILEGE, "--pid", "--fork", "--kill-child", "--mount-proc")
# Nothing can be written but $SCRATCH, which is at /run/resumable; not root where root can give it up.
_LOCKED = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/resumable
mount --bind "$SCRATCH" /run/resumable
for place in /tmp /var/tmp /usr/tmp; do [ ! -d $place ] || mount -t tmpfs -o ro tmpfs $place; done
mount -o remount,bind,ro /
cd /
exec "$@"
"""


@cache
def _all_pythons() -> tuple[tuple[tuple[int, int], str], ...]:
    """(version, path) of every Python on this machine that the agent should run under."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [Path(sys.executable), *(pyenv.glob("*/bin/python3") if pyenv.is_dir() else ())]
    found += [Path(each) / f"python3.{minor}" for each in os.get_exec_path() for minor in range(9, 20)]
    found += [Path("/usr/bin/python3"), Path("/usr/local/bin/python3")]
    versions = [(_version(path), str(path)) for path in found if path.exists()]
    return tuple((version, path) for version, path in versions if version is not None and version >= NEEDED)


def pythons() -> dict[tuple[int, int], str]:
    """One of each version."""
    return dict(reversed(_all_pythons()))


def oldest_python() -> str:
    """The oldest one."""
    return pythons()[min(pythons())]


def _version(path: Path) -> tuple[int, int] | None:
    """None for what does not run, such as a shim of a version that is not there."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    result = subprocess.run([path, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    match = re.fullmatch(r"(\d+)\.(\d+)\n", result.stdout)
    return (int(match[1]), int(match[2])) if match and result.returncode == 0 else None


def public_python() -> str:
    """A Python that a stranger on this machine may run, too."""
    return next(path for _, path in _all_pythons() if _public(Path(path).resolve()))


def _public(path: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (path, *path.parents))


def bundle(directory: Path) -> Path:
    """The zipapp."""
    path = directory / "agent.pyz"
    subprocess.run([sys.executable, "-m", "resumable_training.agent.bundle", str(path)], check=True)
    return path


class PodAgent(AgentProcess):
    """``command`` goes behind ``--``. Nothing of this process's environment reaches it but PATH.

    Args:
        python: interpreter; default: the oldest there is.
        wrapper: what to start it through.
        variables: of the container.
    """

    def __init__(self, directory: Path, command: tuple[str, ...], **changes: Any) -> None:
        self.arguments = command
        self.python: str = changes.pop("python", None) or oldest_python()
        self.wrapper: tuple[str, ...] = changes.pop("wrapper", ())
        self.variables: dict[str, str] = changes.pop("variables", {})
        super().__init__(directory, (), **changes)

    def start(self) -> PodAgent:
        self.process = self.popen(to_json(self.spec).decode())
        info = wait_until(self._introduced, "the agent's run file: " + self.own_log())
        self.port, self.boot_id = info["port"], info["boot_id"]
        return self

    def popen(self, spec: str) -> subprocess.Popen[bytes]:
        """Start it with that configuration; not waited for."""
        errors, output = self.directory / "agent.log", self.directory / "stdout.log"
        with errors.open("ab") as err, output.open("ab") as out:
            return subprocess.Popen(
                (*self.wrapper, *self._argv()),
                env={"PATH": os.environ["PATH"], env.AGENT_SPEC: spec, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _argv(self) -> list[str]:
        return [self.python, "-I", "-S", str(bundle(self.directory)), "--", *self.arguments]

    def run_file(self) -> Path:
        return Path(self.spec.directory, "agent.json")

    def _introduced(self) -> Any:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the agent ended with {self.process.returncode}: {self.own_log()}")
        path = self.run_file()
        return json.loads(path.read_text()) if path.exists() else None

    def agent_pid(self) -> int:
        """Its pid as this process sees it."""
        assert self.process is not None
        pid = self.process.pid
        return children(pid)[0] if self.wrapper[:1] == ("unshare",) and "--fork" in self.wrapper else pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send the agent a signal as a kubelet would; the exit code that its container shows."""
        os.kill(self.agent_pid(), number)
        assert self.process is not None
        return self.process.wait(WAIT_SECONDS)

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class LockedPodAgent(PodAgent):
    """One on a read-only root, as a user that nobody knows, with only the scratch directory to write to.

    Paths in its configuration are those in the pod; its files are below ``directory / "scratch"`` here.
    """

    def __init__(self, directory: Path, command: tuple[str, ...], **changes: Any) -> None:
        scratch = directory / "scratch"
        scratch.mkdir(parents=True)
        drop = (
            "setpriv",
            f"--reuid={UNKNOWN_USER}",
            f"--regid={UNKNOWN_USER}",
            "--clear-groups",
            "--no-new-privs",
        )
        wrapper = ("unshare", *PRIVILEGE, "--mount", "sh", "-c", _LOCKED, "locked")
        super().__init__(
            directory,
            command,
            python=public_python(),
            wrapper=(*wrapper, *(drop if os.geteuid() == 0 else ())),
            **changes,
        )
        self.spec = replace(
            self.spec,
            directory="/run/resumable",
            log_directory="/run/resumable/logs",
            key_file="/run/resumable/key",
        )
        self.variables.update(SCRATCH=str(scratch), HOME="/nonexistent")
        shutil.copy(directory / "key", scratch / "key")
        shutil.copy(bundle(directory), scratch / "agent.pyz")
        scratch.chmod(0o777)  # as an emptyDir is

    def _argv(self) -> list[str]:
        return [self.python, "-I", "-S", "/run/resumable/agent.pyz", "--", *self.arguments]

    def run_file(self) -> Path:
        return self.directory / "scratch" / "agent.json"

    def rank_log(self, attempt: int = 1, rank: int = 0) -> str:
        path = self.directory / "scratch/logs" / f"attempt-{attempt:05d}" / f"rank-{rank:05d}.log"
        return path.read_text() if path.exists() else ""


def children(pid: int) -> list[int]:
    """Of a process with one thread."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
