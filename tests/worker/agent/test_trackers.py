"""What a killed script had in shared memory goes with it, and so does whoever unlinks it."""

from __future__ import annotations

import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess, process_exists, script, wait_until

from resumable_training.agent.guard import TRACKER
from resumable_training.contract import events

SHARES = """
import multiprocessing, os, sys, time
from multiprocessing import resource_tracker, shared_memory

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    block = shared_memory.SharedMemory(name=os.environ["BLOCK"], create=True, size=4096)
    lock = context.Lock()  # a semaphore with a name
    child = context.Process(target=time.sleep, args=(1000,))
    child.start()
    print("semaphore", lock._semlock.name, flush=True)
    print("process", child.pid, flush=True)
    print("process", resource_tracker._resource_tracker._pid, flush=True)
    time.sleep(1000)
"""
REFUSES = """
import subprocess, sys, time
text = "from multiprocessing.resource_tracker import main;import time;print(flush=True);time.sleep(1000)"
own = "{session}" == "own"
tracker = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=own)
tracker.stdout.readline()
for _ in range(2):
    print("process", tracker.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def block() -> Iterator[Path]:
    """A name in shared memory that nobody else has."""
    path = Path("/dev/shm", f"rtj-test-{secrets.token_hex(8)}")
    yield path
    path.unlink(missing_ok=True)


def processes(agent: AgentProcess) -> list[int]:
    """The rank, and those that it named."""

    def named() -> list[str]:
        return re.findall(r"process (\d+)\n", agent.rank_log())

    wait_until(lambda: len(named()) == 2, "the processes of the rank")
    return [agent.rank_pids()[0], *map(int, named())]


def end(agent: AgentProcess, how: str) -> None:
    if how == "stopped":
        agent.request("stop")
        assert agent.ended() == events.STOPPED
    elif how == "rank killed":
        os.kill(agent.rank_pids()[0], signal.SIGKILL)
        assert agent.ended() == events.FAILED
    elif how == "agent killed":
        agent.kill(signal.SIGKILL)
    else:
        agent.cut_lifeline()
        assert agent.process is not None
        assert agent.process.wait(20) == 1


@pytest.mark.parametrize("how", ["stopped", "rank killed", "agent killed", "agent ended"])
def test_shared_memory_goes_with_its_script(tmp_path: Path, block: Path, how: str) -> None:
    """However that ends; and no process stays."""
    command = ("/usr/bin/env", f"BLOCK={block.name}", *script(SHARES))
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=1)
        pids = processes(agent)
        (name,) = re.findall(r"semaphore /(\S+)\n", agent.rank_log())
        made = [block, Path("/dev/shm", f"sem.{name}")]
        assert all(path.exists() for path in made)
        end(agent, how)
        wait_until(lambda: not any(map(process_exists, pids)), f"the end of {pids}")
        assert not any(path.exists() for path in made)


@pytest.mark.parametrize(
    ("how", "session"),
    [
        ("stopped", "the rank's"),
        ("stopped", "own"),
        ("agent ended", "the rank's"),
        ("agent ended", "own"),
        ("agent killed", "the rank's"),
    ],
)
def test_one_that_does_not_end_is_killed(tmp_path: Path, how: str, session: str) -> None:
    """After its moment, also where it has left its session."""
    with AgentProcess(tmp_path, script(REFUSES.replace("{session}", session))) as agent:
        agent.begin(ranks=1)
        pids = processes(agent)
        end(agent, how)
        wait_until(lambda: not any(map(process_exists, pids)), f"the end of {pids}")


@pytest.mark.parametrize(
    ("argument", "is_one"),
    [
        ("from multiprocessing.resource_tracker import main;main(5)", True),
        ("from joblib.externals.loky.backend.resource_tracker import main; main(5, False)", True),
        ("/usr/lib/python3/site-packages/torch/bin/torch_shm_manager", True),
        ("torch_shm_manager", True),
        ("from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)", False),
        ("from multiprocessing.forkserver import main; main(5)", False),
        ("my_torch_shm_manager", False),
        ("torch_shm_manager.py", False),
    ],
)
def test_by_which_arguments_they_are_known(argument: str, is_one: bool) -> None:
    """As Python, loky and torch start them."""
    assert bool(TRACKER.match(argument.encode())) is is_one
