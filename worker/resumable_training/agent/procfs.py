"""What ``/proc`` says about processes, and the identity (pid, start time) that a bare pid is not.

On systems without ``/proc`` (macOS) nothing is known: functions answer None or nothing, and callers rely on
process groups and the lifeline instead.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple

_PROC = Path("/proc")
_PF_EXITING = 0x4  # linux/sched.h


@dataclass(frozen=True)
class Process:
    """One line of ``/proc/<pid>/stat``. ``state``: the kernel's letter, T stopped, Z zombie."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int


def read_process(pid: int) -> Optional[Process]:
    """The process as it is now; None when there is none, or no ``/proc``."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and brackets
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def is_dying(pid: int) -> bool:
    """Is its end under way, or over and only not reaped? False where that can't be seen.

    A process of many threads that got a SIGKILL can be reaped only when the last of them has ended; its
    connections may break before, and who sees that may ask for its end as well.
    """
    try:
        return stat_of_dying((_PROC / str(pid) / "stat").read_bytes())
    except OSError:
        return False


def stat_of_dying(line: bytes) -> bool:
    """PURE: what a line of ``/proc/<pid>/stat`` shows of a main thread that has ended, ends, or must end."""
    fields = line.rpartition(b")")[2].split()
    state, flags, pending = fields[0], int(fields[6]), int(fields[28])
    return state in (b"Z", b"X") or bool(flags & _PF_EXITING) or bool(pending & 1 << signal.SIGKILL - 1)


def all_processes() -> List[Process]:
    """Every process that this one can see."""
    try:
        names = os.listdir(_PROC)
    except OSError:
        return []
    found = (read_process(int(name)) for name in names if name.isdigit())
    return [process for process in found if process]


def start_ticks(pid: int) -> int:
    """Start time in clock ticks since boot; 0 when unknown."""
    process = read_process(pid)
    return process.start_ticks if process else 0


def work(pid: int) -> Tuple[int, ...]:
    """What grows while a process computes or reads: page faults, ticks of the processor, bytes read."""
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        read = (_PROC / str(pid) / "io").read_bytes().split()[1]
    except OSError:
        return ()
    return (int(fields[7]), int(fields[9]), int(fields[11]), int(fields[12]), int(read))


def memory_bytes(pid: int) -> int:
    """Proportional set size: its own pages, and its share of those that others map as well. 0: unknown."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_bytes().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:"))


def has_mapped(pid: int, name: bytes) -> bool:
    """Whether a process has loaded a file with ``name`` in its path."""
    try:
        return name in (_PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """Stopped by a signal (state T). A debugger's stop (t) is not one."""
    process = read_process(pid)
    return process is not None and process.state == "T"
