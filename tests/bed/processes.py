"""Processes of the bed: each in a session of its own, with a log, and never outliving whoever started it.

Used by control_plane.py; whatever else of the bed needs a process with this manner may use it too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

# Runs in the new process before the command: own session, SIGKILL when the starter's thread ends.
_TRAMPOLINE = """
import ctypes, os, signal, sys
os.setsid()
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(137)  # the starter had ended before: no signal will come
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ComponentDied(RuntimeError):
    """A process of the bed ended by itself; the message has its exit status and the end of its log."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str, interval: float = 0.02) -> None:
    """Poll `condition` until it holds; TimeoutError, which says `what` was awaited, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(interval)


@dataclass
class Component:
    """One running process and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> Component:
        """Start `argv` (an absolute path first), output appended to `log`; from the main thread only.

        The kernel's death signal follows the thread that started the process, not its process: one that was
        started from a short-lived thread would die with it.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("start processes of the bed from the main thread: they die with their thread")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *map(str, argv)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env
            )
        return cls(Path(argv[0]).name, process, log)

    @property
    def running(self) -> bool:
        """False once it has ended (and is reaped)."""
        return self.process.poll() is None

    def require_running(self) -> None:
        """ComponentDied, with the last lines of the log, if it has ended."""
        if not self.running:
            raise ComponentDied(
                f"{self.name} ended with {self.process.returncode}; the end of {self.log}:\n{self.tail()}"
            )

    def tail(self, lines: int = 15) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL the whole process group, and reap."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL for what is left after `seconds`."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        """To the group; to the process alone in the moment before it has its own session."""
        if self.process.returncode is not None:
            return
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            self.process.send_signal(number)


@dataclass
class Server:
    """One component that a test talks to. As a context it is killed at the end: its data isn't needed."""

    component: Component

    def stop(self) -> None:
        """At once, and reaped."""
        self.component.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
