"""A preloaded parent forks while something goes wrong, in its own process and in the agent's."""

import subprocess
import sys

import pytest

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
