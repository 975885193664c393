"""A tiny process that ends what an agent killed by SIGKILL could not: the children of its ranks.

The ranks themselves die with their agent (PDEATHSIG), but not their data loaders. Run as ``python -I -S -c
<this text> <directory>`` with a pipe as standard input: ``+<pid>`` and ``-<pid>`` lines name the sessions
that live; at end of file the agent is gone, all of them are killed and the directory is removed. What tidies
up after them (``trackers``) goes last, and by itself if it does so in time.
"""

import os
import re
import signal
import sys
import time

TURN_SECONDS = 0.01
TURNS = 100  # for all but trackers
TRACKER_TURNS = 50  # for those, when they are alone
TRACKER = re.compile(rb"from [\w.]*\bresource_tracker import main\b|(.*/)?torch_shm_manager$")


def sessions_of(lines: "list[str]") -> "set[int]":
    """Sessions that are still open after all lines."""
    living = set()
    for line in lines:
        if line.startswith("+"):
            living.add(int(line[1:]))
        elif line.startswith("-"):
            living.discard(int(line[1:]))
    return living


def members(sessions: "set[int]") -> "list[int]":
    """Pids that belong to these sessions, by ``/proc``; without it, none."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[3]) in sessions and fields[0] != b"Z":
                found.append(int(name))
    return found


def arguments(pid: int) -> "list[bytes]":
    """As ``/proc`` has them; none of one that has ended."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as cmdline:
            return cmdline.read().split(b"\0")
    except OSError:
        return []


def is_tracker(pid: int) -> bool:
    """Does it unlink what is in shared memory when its rank is dead?"""
    return any(TRACKER.match(argument) for argument in arguments(pid))


def kill_all(sessions: "set[int]") -> None:
    """SIGKILL members; again while members appear, for killing races with forking. Without /proc, groups."""
    if not os.path.isdir("/proc"):
        for leader in sessions:
            try:
                os.killpg(leader, signal.SIGKILL)
            except OSError:
                continue  # nobody left in it
    alone = 0
    for turn in range(TURNS + TRACKER_TURNS):
        found = members(sessions)
        if not found:
            return
        others = [pid for pid in found if not is_tracker(pid)]
        alone += not others
        for pid in others if turn < TURNS and alone < TRACKER_TURNS else found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # ended meanwhile
        time.sleep(TURN_SECONDS)


def main() -> None:
    """Outlive the agent, whatever ends it: own session, deaf to polite signals."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kill_all(sessions_of(sys.stdin.read().splitlines()))
    for path in sys.argv[1:]:  # the agent's temporary directory, flat
        for name in os.listdir(path) if os.path.isdir(path) else []:
            os.unlink(os.path.join(path, name))
        if os.path.isdir(path):
            os.rmdir(path)


if __name__ == "__main__":
    main()
