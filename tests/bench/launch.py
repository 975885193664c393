"""Starting, striking and ending the two sides of the recovery benchmark.

Scenario "rank": one supervisor with two ranks, one rank is killed. Scenario "worker": two supervisors with
one rank each; one supervisor is killed together with its rank, and no replacement comes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
PROGRAMS = Path(sys.executable).parent
Scenario = Literal["rank", "worker"]


@dataclass
class Running:
    """A training under way in ``directory``; ``processes`` are the supervisors that we started."""

    directory: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """What the ranks have traced so far."""
        path = self.directory / "trace.jsonl"
        text = path.read_text() if path.exists() else ""
        entries = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [entry for entry in entries if entry["kind"] == kind]

    def rank(self, number: int) -> dict[str, Any]:
        """The newest process of that rank."""
        return [entry for entry in self.lines("rank") if entry["rank"] == number][-1]


def start_torchrun(scenario: Scenario, directory: Path, share_store: bool) -> Running:
    """``torchrun`` elastic on this machine.

    ``share_store`` True is its default; False is the setting that lets restarted gloo ranks meet again.
    """
    endpoint = f"127.0.0.1:{_free_port()}"
    common = [
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={directory.name}",
    ]
    environment = {} if share_store else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    supervisors = {
        "rank": [["--nnodes=1", "--nproc-per-node=2"]],
        "worker": [
            ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-conf=is_host=1"],
            ["--nnodes=1:2", "--nproc-per-node=1", "--rdzv-conf=is_host=0"],
        ],
    }[scenario]
    running = Running(directory)
    for number, options in enumerate(supervisors):
        command = [PROGRAMS / "torchrun", *common, *options, HERE / "train_under_torchrun.py"]
        running.processes.append(_start(command, directory, environment, f"supervisor-{number}.log"))
    return running


def start_ours(scenario: Scenario, directory: Path) -> Running:
    """``rtj run`` with the same ranks and the same save interval."""
    workers, processes = {"rank": ("1:1", "2"), "worker": ("1:2", "1")}[scenario]
    command = [PROGRAMS / "rtj", "run", "--workers", workers, "--processes-per-worker", processes]
    command += ["--dir", directory / "run", "--save-every-steps", "5", HERE / "train_with_library.py"]
    return Running(directory, [_start(command, directory, {}, "rtj.log")])


def kill_rank(running: Running) -> float:
    """SIGKILL to rank 1; returns when (wall clock)."""
    return _kill(running.rank(1)["pid"])


def kill_torchrun_supervisor(running: Running) -> float:
    """SIGKILL to the supervisor that is not the store's host, and to its rank; returns when."""
    victim = running.processes[1]
    (rank,) = {entry["pid"] for entry in running.lines("rank") if entry["supervisor"] == victim.pid}
    victim.kill()
    return _kill(rank)


def kill_our_worker(running: Running) -> float:
    """A worker's machine is gone: agent and ranks are killed, no other takes its place; returns when.

    The command needs a moment to start, so the time is that of the agent's death.
    """
    agent = running.rank(1)["supervisor"]
    command = [PROGRAMS / "rtj", "fault", running.directory / "run", "kill-worker"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as fault:
        if not wait_for("the agent's death", lambda: not _lives(agent), 30):
            raise SystemExit("rtj fault killed no worker")
        died_at = time.time()
    if fault.returncode:
        raise SystemExit(f"rtj fault failed with exit code {fault.returncode}")
    return died_at


@contextmanager
def ended_afterwards(running: Running) -> Iterator[Running]:
    """Leave no process behind, whatever happens."""
    try:
        yield running
    finally:
        for process in running.processes:
            _kill(process.pid)
        for entry in running.lines("rank"):
            _kill(entry["pid"])
        for process in running.processes:
            process.wait()


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until ``condition`` holds; False when ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    print(f"    gave up after {seconds:.0f} s: {what}", flush=True)
    return False


def _start(
    command: list[str | Path], directory: Path, environment: dict[str, str], log: str
) -> "subprocess.Popen[bytes]":
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "checkpoints").mkdir(exist_ok=True)
    shared = {
        "BENCH_TRACE": str(directory / "trace.jsonl"),
        "BENCH_CHECKPOINTS": str(directory / "checkpoints"),
        "OMP_NUM_THREADS": "1",
    }
    with (directory / log).open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **shared, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill(pid: int) -> float:
    """SIGKILL, but only to a process that runs one of ours: a number may have been given to another since.

    Returns the wall-clock time just before.
    """
    now = time.time()
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if str(HERE).encode() in command:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return now
    return now


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
