"""A tiny process that ends what an agent killed by SIGKILL could not: the children of its ranks.

The ranks themselves die with their agent (PDEATHSIG), but not their data loaders. Run as ``python -I -S -c
<this text> <directory>`` with a pipe as standard input: ``+<pid>`` and ``-<pid>`` lines name the sessions
that live; at end of file the agent is gone, all of them are killed and the directory is removed.
"""

import os
import signal
import sys
import time


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


def kill_all(sessions: "set[int]") -> None:
    """SIGKILL groups and members; again while members appear, for killing races with forking."""
    for leader in sessions:
        try:
            os.killpg(leader, signal.SIGKILL)
        except OSError:
            continue  # nobody left in it
    for _ in range(100):
        found = members(sessions)
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # ended meanwhile
        time.sleep(0.01)


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
