"""Which processes are on their way out, whoever sent them there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from agent_process import script, wait_until

from resumable_training.agent import procfs


def stat(state: str = "S", flags: int = 0x400000, pending: int = 0) -> bytes:
    """A line as the kernel writes it, of a program whose name is made to be read wrongly."""
    before = f"4711 (a) Z 1 (b) {state} 1 4711 4711 0 -1 {flags} 500 0 0 0 9 3 0 0 20 0 12 0 88 1000 200"
    return f"{before} 18446744073709551615 1 1 0 0 0 {pending} 0 4096 0 0 0 0 17 0 0 0 0 0 0".encode()


@pytest.mark.parametrize(
    ("line", "dying"),
    [
        (stat(), False),
        (stat("R"), False),
        (stat("T"), False),
        (stat("D", flags=0x400100), False),
        (stat(pending=1 << signal.SIGTERM - 1), False),  # it may handle that
        (stat("Z"), True),
        (stat("X"), True),
        (stat("R", flags=0x400004), True),  # closes its files
        (stat("D", pending=1 << signal.SIGKILL - 1), True),  # has not been scheduled since
        (stat("R", pending=1 << signal.SIGKILL - 1 | 1 << signal.SIGTERM - 1), True),
    ],
)
def test_a_line_of_stat(line: bytes, dying: bool) -> None:
    """Ended, ending, or with a SIGKILL that no thread has acted upon."""
    assert procfs.stat_of_dying(line) is dying


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A living child, which nobody reaps before the test ends."""
    child = subprocess.Popen(script("import time; time.sleep(1000)"))
    yield child
    child.kill()
    child.wait()


def test_a_living_child_is_not_dying(sleeper: subprocess.Popen[bytes]) -> None:
    """Nor is one that is stopped."""
    assert not procfs.is_dying(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: procfs.is_stopped(sleeper.pid), "the stop")
    assert not procfs.is_dying(sleeper.pid)


def test_a_killed_child_is_dying_until_it_is_reaped(sleeper: subprocess.Popen[bytes]) -> None:
    """Through its exit, and as long as its status is there."""
    os.kill(sleeper.pid, signal.SIGKILL)
    wait_until(lambda: procfs.is_dying(sleeper.pid), "its way out")
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.is_dying(sleeper.pid)
    sleeper.wait()
    assert not procfs.is_dying(sleeper.pid)
