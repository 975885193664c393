"""Whose deed a rank's end is: what the agent kills, and what was dying before."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from agent_process import script, wait_until

from resumable_training.agent import procfs
from resumable_training.agent.rank import Rank
from resumable_training.agent.ranks import ColdStarter, StartedRank

NOTHING = cast(Any, None)  # what its end does not need


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A rank's process, reaped when the test ends."""
    child = subprocess.Popen(script("import time; time.sleep(1000)"), start_new_session=True)
    yield child
    child.kill()
    child.wait()


def rank_of(child: subprocess.Popen[bytes]) -> Rank:
    return Rank(0, StartedRank(child.pid, -1), NOTHING, Path(), Path(), NOTHING, 0.0)


def test_a_living_rank_is_killed_by_the_agent(child: subprocess.Popen[bytes]) -> None:
    """And stays so when it is killed again while it dies, or when it waits to be reaped."""
    rank = rank_of(child)
    for _ in range(3):
        rank.kill(ColdStarter())
        assert rank.killed
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    rank.kill(ColdStarter())
    assert rank.killed


def test_a_rank_that_was_killed_before_is_not(child: subprocess.Popen[bytes]) -> None:
    """However often the agent kills it, too late."""
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: procfs.is_dying(child.pid), "its way out")
    rank = rank_of(child)
    for _ in range(3):
        rank.kill(ColdStarter())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    rank.kill(ColdStarter())
    assert not rank.killed
