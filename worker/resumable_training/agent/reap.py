"""Ending processes for good: sessions, groups, and orphans that this agent inherited.

The agent is a child subreaper: what a rank leaves behind becomes its child, and is killed when the attempt
ends. Nothing here waits; reaping is ``waitpid(-1)`` in the loop's SIGCHLD handler.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Iterable, List, Set, Tuple

from resumable_training.agent.guard import is_tracker
from resumable_training.agent.procfs import all_processes, read_process

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> bool:
    """Inherit the orphans of our descendants; False where the system can't (macOS)."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap() -> List[Tuple[int, int]]:
    """Collect every child that ended: (pid, code as ``subprocess`` reports it)."""
    ended: List[Tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, exit_code(status)))


def exit_code(status: int) -> int:
    """Exit code of a wait status; negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def kill_session(leader: int) -> None:
    """SIGKILL an unreaped child and its process group.

    Both, because a child that was started a moment ago may not lead its group yet.
    """
    send(leader, signal.SIGKILL)
    kill_group(leader)


def kill_groups(leaders: Set[int]) -> None:
    """SIGKILL who else is in the groups of ranks that were killed, but for what tidies up after them."""
    if sys.platform != "linux":  # no way to tell them apart
        for leader in leaders:
            kill_group(leader)
    for process in all_processes():
        if process.group in leaders and process.pid not in leaders and not is_tracker(process.pid):
            send(process.pid, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """SIGKILL a process group, if there is one of that number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or zombies ("permission", macOS)
        os.killpg(leader, signal.SIGKILL)


def send(pid: int, number: int) -> bool:
    """Send a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def leftovers(sessions: Set[int], keep: Iterable[int]) -> List[int]:
    """Living processes of these sessions, and children of ours that are not in ``keep``."""
    own, kept = os.getpid(), set(keep)
    return [
        process.pid
        for process in all_processes()
        if process.state != "Z"
        and process.pid not in kept
        and process.pid != own
        and (process.session in sessions or process.parent == own)
    ]


def kill_leftovers(sessions: Set[int], keep: Iterable[int]) -> Tuple[int, List[int]]:
    """SIGKILL what ranks left behind; how many there were. Killing may orphan more: call until it is 0.

    The second value: those that tidy up after them (``trackers``), which are not killed here.
    """
    if sys.platform != "linux":  # no way to list them: the groups that bear the ranks' numbers
        for leader in sessions:
            kill_group(leader)
    found = leftovers(sessions, keep)
    spared = [pid for pid in found if is_tracker(pid)]
    return sum(send(pid, signal.SIGKILL) for pid in found if pid not in spared), spared


def kill_recorded(pid: int, ticks: int) -> bool:
    """Kill the session of a process named in a run file, if that process is still the same one."""
    process = read_process(pid)
    if process is None or not ticks or process.start_ticks != ticks:
        return False
    kill_session(pid)
    return True
