"""A preloaded parent forks while something goes wrong, in its own process and in the agent's."""

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from resumable_training.agent.preload import MOST_RANKS, PreloadStarter
from resumable_training.agent.preload_parent import Parent, fork_seconds

HOOK = """
import os, sys
from resumable_training.agent import preload_native, preload_rank
sys.modules["resumable_preload_native"], sys.modules["resumable_preload_rank"] = preload_native, preload_rank
from resumable_training.agent import preload_hook
parent, real, told = os.getpid(), {name: getattr(os, name) for name in ("fork", "write")}, []
def fails(*arguments):
    if os.getpid() != parent and len(told) == 2:
        raise OSError(32, "failed")
    if name == "write" or os.getpid() != parent:
        told.append(arguments)
    return real[name](*arguments)
name = sys.argv[1]
setattr(os, name, fails)
try:
    mine, pids = preload_hook.fork_ranks(4, "")
except OSError:
    mine, pids = None, ["of another one"]
if mine is None:
    real["write"](1, b"a parent of %d\\n" % len(pids))
os._exit(0)
"""


@pytest.mark.parametrize("call", ["fork", "write"])
def test_there_is_one_parent_whatever_fails(call: str) -> None:
    """The process that forks ranks ends when it can't go on; the parent has those that it was told of."""
    ran = subprocess.run([sys.executable, "-c", HOOK, call], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("a parent of 2\n", "")


def test_an_agent_without_descriptors_keeps_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked, nothing stays open, and the answer does not ask for another one."""
    parent = Parent.__new__(Parent)
    parent.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipe, made = os.pipe, list[int]()

    def few() -> tuple[int, int]:
        if len(made) >= 2:
            raise OSError(24, "Too many open files")
        made.extend(ends := pipe())
        return ends

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pipe", few)
    with parent.control, theirs:
        forked, answer = parent.fork(2)
        assert (forked, answer) == ([], {"kind": "refused", "why": "[Errno 24] Too many open files"})
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert sorted(os.listdir("/proc/self/fd")) == before
    assert len(made) == 2


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 2.0), (8, 5.5), (17, 10.0), (MOST_RANKS, 10.0)])
def test_the_agent_stands_still_for_seconds_only(ranks: int, seconds: float) -> None:
    """However many ranks it has asked for."""
    assert fork_seconds(ranks) == seconds


@pytest.mark.parametrize(("forked", "some"), [(0, "no rank"), (3, "only 3 of 4 ranks")])
def test_it_says_how_many_were_forked(forked: int, some: str) -> None:
    """The others are started cold."""
    said: list[str] = []
    starter: Any = PreloadStarter.__new__(PreloadStarter)
    starter._say = said.append
    starter._refused({"kind": "started", "why": "no process"}, forked, 4)
    assert said == [f"{some} could be forked: no process"]
