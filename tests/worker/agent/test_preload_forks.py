"""A preloaded parent forks while something goes wrong, in its own process and in the agent's."""

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from resumable_training.agent import preload_parent
from resumable_training.agent.preload import MOST_RANKS, PreloadStarter
from resumable_training.agent.preload_parent import Parent, fork_seconds
from resumable_training.agent.preload_standby import Standbys

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
    parent, theirs = parent_and_its_end()
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


def parent_and_its_end() -> tuple[Parent, socket.socket]:
    """One that was never started, and the end of its socket that its process would have."""
    parent = Parent.__new__(Parent)
    parent._asked = parent._answered = 0
    parent.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return parent, theirs


def test_a_late_answer_is_to_no_other_request() -> None:
    """Its ranks have ended by their gates; taken for the answer to the next request it would be a lie."""
    parent, theirs = parent_and_its_end()
    with parent.control, theirs:
        assert parent.fork(1, seconds=0.01)[1]["again"]
        theirs.send(json.dumps({"kind": "started", "number": 1, "pids": [7]}).encode())
        theirs.send(json.dumps({"kind": "started", "number": 2, "pids": [8]}).encode())
        forked, answer = parent.fork(1)
        assert ([one.pid for one in forked], answer["number"]) == ([8], 2)
        data, received, _, _ = socket.recv_fds(theirs, 100, 9)
        assert json.loads(data) == {"number": 1, "ranks": 1}
        assert os.read(received[1], 1) == b""  # the gate of a rank that nobody knows
        for one in forked:
            one.give_up()
        for descriptor in received:
            os.close(descriptor)


@pytest.mark.parametrize("gone", [True, False])
def test_a_parent_that_is_asked_whether_it_could(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has ended, or does not answer, ranks start cold; the parent is replaced, and asked no more."""
    parent, theirs = parent_and_its_end()
    starter: Any = PreloadStarter.__new__(PreloadStarter)
    starter._parent, starter._standbys = parent, Standbys(SimpleNamespace(harbour=print, remove=print))
    given_up, replaced = list[int](), list[str]()
    standing: Any = SimpleNamespace(pid=5, give_up=lambda: given_up.append(5))
    starter._standbys.add([standing])
    starter._replace = replaced.append
    monkeypatch.setattr(preload_parent, "FORK_SECONDS", 0.01)
    with parent.control, theirs:
        if gone:
            theirs.close()
        assert not starter._fork(2)
    assert (given_up, len(replaced)) == ([5], 1)


@pytest.mark.parametrize(("ranks", "seconds"), [(0, 2.0), (1, 2.0), (8, 5.5), (17, 10.0), (MOST_RANKS, 10.0)])
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
