"""Starting and ending the trainings of the recovery benchmark: processes, and what their ranks trace.

A training's processes all carry the path of its trace in their environment: that is how they are found again,
whoever started them, and no other process is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRACE = "BENCH_TRACE"
POLL_SECONDS = 0.01
Line = dict[str, Any]


class Trace:
    """What the ranks have traced so far, in the order of writing; only what is new is read each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines: list[Line] = []

    def lines(self, kind: str) -> list[Line]:
        """All lines of one kind: ``rank`` (a process began) or ``step`` (a step was finished)."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._offset += len(whole) + 1
                self._lines += map(json.loads, whole.splitlines())
        return [line for line in self._lines if line["kind"] == kind]


@dataclass
class Running:
    """A training under way in ``directory``.

    ``processes``: the supervisors that we started. ``more``: starts another one like the last of them.
    """

    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    more: Callable[[], None] = lambda: None
    _timers: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trace = Trace(self.directory / "trace.jsonl")

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A supervisor, in a session of its own; its output goes to a file."""
        shared = {
            TRACE: str(self.directory / "trace.jsonl"),
            "BENCH_CHECKPOINTS": str(self.directory / "checkpoints"),
            "OMP_NUM_THREADS": "1",
        }
        with (self.directory / f"supervisor-{len(self.processes)}.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **shared, **self.environment, **(environment or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do something while the benchmark waits for a new step."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def steps(self) -> list[Line]:
        return self.trace.lines("step")

    def step(self) -> int:
        """The last step done; 0 before the first."""
        steps = self.steps()
        return int(steps[-1]["step"]) if steps else 0

    def rank(self, number: int) -> Line:
        """The newest process of that rank."""
        return [line for line in self.trace.lines("rank") if line["rank"] == number][-1]

    def last_rank(self) -> Line:
        """The newest process of the highest rank that trains now."""
        return self.rank(int(self.steps()[-1]["world"]) - 1)

    def ranks_of(self, supervisor: int) -> list[Line]:
        return [line for line in self.trace.lines("rank") if line["supervisor"] == supervisor]

    def saved(self) -> int:
        """Step of the newest checkpoint that is complete, in either layout; 0: none."""
        stores = (self.directory / "checkpoints", self.directory / "run" / "checkpoints")
        marked = [path.parent.name for store in stores for path in store.glob("step-*/.metadata")]
        return max((int(name.removeprefix("step-").partition(".")[0]) for name in marked), default=0)

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            timer.join()
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        while left := list(carriers(self.directory)):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        for process in self.processes:
            process.wait()


def carriers(directory: Path) -> Iterator[int]:
    """Living processes of the training in ``directory``."""
    mark = f"{TRACE}={directory / 'trace.jsonl'}\0".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # ended, or not ours
            if mark in (entry / "environ").read_bytes() and alive(int(entry.name)):
                yield int(entry.name)


@contextmanager
def ended_afterwards(running: Running) -> Iterator[Running]:
    """Ends the training when the block is left."""
    try:
        yield running
    finally:
        running.end()


def signal_rank(running: Running, line: Line, number: signal.Signals) -> float:
    """A signal to the process that traced ``line``, unless its number has another owner by now.

    Returns the wall-clock time just before (seconds).
    """
    now = time.time()
    pid = _outer_pid(running, line["pid"])
    if pid is not None and started(pid) == line["started"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return now


def kill_supervisor(running: Running, index: int) -> float:
    """SIGKILL to a supervisor and then to all its ranks, as when their machine is lost; returns when."""
    victim = running.processes[index]
    ranks = running.ranks_of(victim.pid)
    now = time.time()
    victim.kill()
    for line in ranks:
        signal_rank(running, line, signal.SIGKILL)
    return now


def started(pid: int) -> str | None:
    """When the process began, in clock ticks since boot; None: there is none."""
    fields = _stat(pid)
    return fields[19] if fields else None


def alive(pid: int) -> bool:
    """It exists and is no zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _outer_pid(running: Running, pid: int) -> int | None:
    """The number here of a process that may have another in a PID namespace of its own."""
    if not running.environment.get("BENCH_PID_NAMESPACE"):
        return pid
    for outer in carriers(running.directory):
        status = Path(f"/proc/{outer}/status").read_text()
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if int(numbers[-1]) == pid and len(numbers) > 1:
            return outer
    return None


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until ``condition`` holds; False when ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def free_port() -> int:
    """A port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody answers there."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
