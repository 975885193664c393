"""Processes of a worker: who they are, and how to end all of them for certain.

A bare process id proves nothing, since the kernel reuses it: files hold (pid, start time, boot id), and
nothing is signalled unless all three still fit. A worker's descendants are found by the variables that every
one of them inherited, so that a loader process in a session of its own does not outlive its machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resumable_operator.cluster.local_files import read_hint
from resumable_training.contract import env

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number (on Linux)."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """It is there, is the same one, and is not a zombie."""
        stat = _stat(self.pid)
        return stat is not None and stat[0] not in "ZX" and stat[1] == self.start_ticks

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is gone."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def machine_boot_id() -> str:
    """Identity of this boot of the machine; start times are relative to it."""
    path = PROC / "sys/kernel/random/boot_id"
    return path.read_text().strip() if path.exists() else ""


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is none of that number."""
    stat = _stat(pid)
    return stat[1] if stat else None


def rank_processes(directory: Path) -> dict[int, ProcessId]:
    """Ranks of the worker whose scratch directory this is, as its agent wrote them down."""
    ranks = read_hint(directory / "ranks.json").get("ranks")
    found = {rank: _process(entry) for rank, entry in ranks.items()} if isinstance(ranks, dict) else {}
    return {int(rank): process for rank, process in found.items() if process is not None}


def recorded_processes(directory: Path) -> list[ProcessId]:
    """Agent and ranks that the worker's files name. They say nothing across boots of the machine."""
    agent = _process(read_hint(directory / "agent.json"))
    return [*([agent] if agent else []), *rank_processes(directory).values()]


def kill_worker_processes(
    directory: Path, known: list[ProcessId], patience_seconds: float = 2.0
) -> list[int]:
    """SIGKILL ``known`` and all that carries the worker's variables; returns those that still live then.

    Blocks until they are gone, for ``patience_seconds`` at most: one in an uninterruptible call dies later.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        left = {process.pid for process in known if process.signal(signal.SIGKILL)}
        for pid in _carriers(directory):
            left.add(pid)
            _kill(pid)
        if not left or time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.005)


def kill_leftovers(workers: Path, boot_id: str | None) -> list[int]:
    """End what earlier agents below ``workers`` left behind; returns what could not be ended. Blocks.

    Processes that files name are ended only if the files prove them to be the same: they were written in
    this boot of the machine (``boot_id``: of the boot in which they were) and start times can be compared.
    """
    recorded: list[ProcessId] = []
    if boot_id == machine_boot_id() and PROC.joinpath("self").exists():
        for directory in (path for path in workers.iterdir() if path.is_dir()):
            recorded += recorded_processes(directory)
    return kill_worker_processes(workers, recorded)


def _carriers(directory: Path) -> Iterator[int]:
    """Processes started (at any depth) by agents whose scratch is ``directory`` or below it."""
    if not sys.platform.startswith("linux"):
        return
    marks = tuple(f"{name}={directory}/".encode() for name in (env.AGENT_SPEC, env.PROGRESS))
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:  # gone meanwhile, or another user's
                continue
            if any(mark in environment for mark in marks):
                yield int(entry.name)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _process(entry: Any) -> ProcessId | None:
    """None for what a damaged file holds: it must not name a process group, or everybody (pid -1)."""
    try:
        process = ProcessId(int(entry["pid"]), int(entry["start_ticks"]))
    except (KeyError, TypeError, ValueError):
        return None
    return process if process.pid > 1 else None


def _stat(pid: int) -> tuple[str, int] | None:
    """(state letter, start ticks) of a process; without /proc all that can be said is whether it is there."""
    if not PROC.joinpath("self").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "?", 0
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])
