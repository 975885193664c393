"""Ranks that are forked before they are wanted: they become the next attempt's, and never anything else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_process import AgentProcess, process_exists, wait_until
from preload_agents import MODULE, agent_of, make_bare_python, parent_of, read, warnings_of

from resumable_training.agent.preload_parent import Forked
from resumable_training.agent.preload_standby import Standbys
from resumable_training.contract import events

PRINTS = "print(os.getcwd(), os.environ['RESUMABLE_ATTEMPT'], os.environ['RANK'], os.environ['WORLD_SIZE'])\n"
SCRIPT = "import os, sys, time\nprint('forked' if 'colorsys' in sys.modules else 'cold')\n" + PRINTS
WAITS = SCRIPT + "time.sleep(100)\n"
# Ends about when the next ranks are forked, and leaves sessions that are found one after the other.
NESTS = """
import os, time
rank, depth = os.getpid(), 60
while depth and os.fork() == 0:
    os.setsid()
    depth -= 1
time.sleep(0.9 if os.getpid() == rank else 100)
"""
# An agent that tries again after a moment, and is patient: its parent is slow only when it is stopped.
HASTY = """
import sys
from resumable_training.agent import __main__, preload
preload.AGAIN_SECONDS, preload.PATIENCE_SECONDS = 0.2, 2.0
sys.exit(__main__.main())
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without torch, so that a parent is there in no time."""
    return make_bare_python(tmp_path_factory.mktemp("bare"))


def children(agent: AgentProcess) -> set[int]:
    """Pids of what the agent has started or adopted, and lives."""
    assert agent.process is not None
    listed = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    return {pid for pid in map(int, listed) if process_exists(pid)}


def descriptors(agent: AgentProcess) -> int:
    """How many the agent has open."""
    assert agent.process is not None
    return len(os.listdir(f"/proc/{agent.process.pid}/fd"))


def waiting_now(agent: AgentProcess) -> set[int]:
    """Pids of the processes that wait at their gates."""
    named = {pid for pid in children(agent) if "standby" in read(str(pid), "comm")}
    return named - set(agent.rank_pids().values())


def standbys(agent: AgentProcess, count: int) -> set[int]:
    """The same, once there are so many."""
    return wait_until(
        lambda: found if len(found := waiting_now(agent)) == count else set(), f"{count} that stand by"
    )


def began(agent: AgentProcess, number: int, ranks: int = 2) -> set[int]:
    """Pids of an attempt's ranks, when all of them have printed what they are."""
    agent.begin(number, ranks=ranks)
    agent.wait_event(events.RANKS_STARTED, where=lambda event: event.attempt == number)
    for rank in range(ranks):
        wait_until(lambda rank=rank: len(agent.rank_log(number, rank).split()) == 5, "what it prints")
    return set(agent.rank_pids().values())


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_next_attempts_ranks_were_there_before(tmp_path: Path, bare_python: str, ranks: int) -> None:
    """With the numbers and variables of that attempt; what is missing is forked, what is too much ends."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        began(agent, 1)
        waiting = standbys(agent, 2)
        pids = began(agent, 2, ranks)
        assert len(pids & waiting) == min(ranks, 2)
        for rank in range(ranks):
            said = ["forked", str(tmp_path / "work"), "2", str(rank), str(ranks)]
            assert agent.rank_log(2, rank).split() == said
        wait_until(lambda: not any(map(process_exists, waiting - pids)), "the end of what is not wanted")
        assert standbys(agent, ranks)
        assert not warnings_of(agent)


def test_one_that_is_killed_is_not_counted_on(tmp_path: Path, bare_python: str) -> None:
    """The attempt has another in its place."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        began(agent, 1)
        killed, other = standbys(agent, 2)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not process_exists(killed), "its end")
        pids = began(agent, 2)
        assert other in pids
        assert [agent.rank_log(2, rank).split()[0] for rank in (0, 1)] == ["forked"] * 2
        assert not warnings_of(agent)


def test_another_takes_the_place_of_one_that_was_killed(tmp_path: Path, bare_python: str) -> None:
    """Within the same attempt, so that the next one has all it needs."""
    with agent_of(tmp_path, bare_python, WAITS, launcher=(sys.executable, "-c", HASTY)) as agent:
        began(agent, 1)
        killed, other = standbys(agent, 2)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not process_exists(killed), "its end")
        assert other in standbys(agent, 2)
        assert not warnings_of(agent)


def test_a_parent_that_was_slow_is_asked_again(tmp_path: Path, bare_python: str) -> None:
    """It is the same one; what it forks too late ends, and nothing stays open."""
    with agent_of(tmp_path, bare_python, WAITS, launcher=(sys.executable, "-c", HASTY)) as agent:
        began(agent, 1)
        before, parent = standbys(agent, 2), parent_of(agent)
        others, opened = children(agent) - before, descriptors(agent)
        os.kill(parent, signal.SIGSTOP)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "no rank stands by: timed out" in agent.own_log(), "a time-out")
        os.kill(parent, signal.SIGCONT)
        wait_until(lambda: children(agent) - others == standbys(agent, 2), "two, and none that came too late")
        wait_until(lambda: descriptors(agent) <= opened, "no more descriptors than before")
        assert parent_of(agent) == parent
        assert not warnings_of(agent)


def test_one_that_is_stopped_is_not_let_go(tmp_path: Path, bare_python: str) -> None:
    """It would be a rank that never comes; it ends, and so does one that is stopped when its agent ends."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        began(agent, 1)
        stopped = standbys(agent, 2).pop()
        os.kill(stopped, signal.SIGSTOP)
        assert stopped not in began(agent, 2)
        wait_until(lambda: not process_exists(stopped), "its end")
        stopped = standbys(agent, 2).pop()
        os.kill(stopped, signal.SIGSTOP)
        agent.kill(signal.SIGTERM)
        wait_until(lambda: not process_exists(stopped), "its end with the agent")


def test_they_are_no_leftovers_of_a_long_cleaning_up(tmp_path: Path, bare_python: str) -> None:
    """Also those that are forked while an attempt's leftovers are being found and killed."""
    seen: set[int] = set()
    with agent_of(tmp_path, bare_python, NESTS) as agent:
        agent.begin(1)

        def found() -> bool:
            now = waiting_now(agent)
            seen.update(now)
            return len(now) == 2

        agent.wait_event(events.RANK_EXITED)
        wait_until(found, "two that stand by")
        assert agent.ended(1) == events.SUCCEEDED
        assert seen == standbys(agent, 2)


def test_of_a_module_that_has_changed(tmp_path: Path, bare_python: str) -> None:
    """They hold what the file held before: ranks start cold, and those that stood by end."""
    text = SCRIPT + "import mine\ntime.sleep(100)\n"
    with agent_of(tmp_path, bare_python, text, mine="VALUE = 1", preload_modules=(*MODULE, "mine")) as agent:
        began(agent, 1)
        waiting = standbys(agent, 2)
        (tmp_path / "work" / "mine.py").write_text("VALUE = 22")
        assert not began(agent, 2) & waiting
        assert agent.rank_log(2).split()[0] == "cold"
        wait_until(lambda: not any(map(process_exists, waiting)), "their end")


@pytest.mark.parametrize("victim", ["parent", "agent"])
def test_they_end_with_what_they_came_from(tmp_path: Path, bare_python: str, victim: str) -> None:
    """A parent that dies may have been ended for a reason; without an agent nobody lets them go."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        began(agent, 1)
        waiting, parent = standbys(agent, 2), parent_of(agent)
        if victim == "agent":
            agent.kill(signal.SIGKILL)
        else:
            os.kill(parent, signal.SIGKILL)
        wait_until(lambda: not any(map(process_exists, waiting)), "their end")
        if victim == "parent":
            assert standbys(agent, 2)


class Noted:
    """What is told which children are no leftovers, and of what is to be done later."""

    def __init__(self) -> None:
        self.harboured: list[int] = []
        self.planned: list[Callable[[], None]] = []

    def harbour(self, session: int) -> None:
        self.harboured.append(session)

    def remove(self, session: int) -> None:
        self.harboured.remove(session)

    def later(self, act: Callable[[], None]) -> Noted:
        self.planned.append(act)
        return self

    def cancel(self) -> None:
        self.planned.clear()


class Waiting(Forked):
    """One of which nothing is left but its number."""

    def give_up(self) -> None:
        ENDED.append(self.pid)

    def close(self) -> None:
        CLOSED.append(self.pid)


ENDED, CLOSED = list[int](), list[int]()


def waiting(*pids: int) -> list[Forked]:
    return [Waiting(pid, -1, None) for pid in pids]  # type: ignore[arg-type]


def test_who_is_harboured() -> None:
    """Those that stand by, and no others: what is let go, given up or dead is somebody else's business."""
    noted = Noted()
    standing = Standbys(noted)
    standing.add(waiting(1, 2, 3))
    assert noted.harboured == standing.pids == [1, 2, 3]
    assert not standing.reaped([(7, 0)])
    assert standing.reaped([(2, -9), (7, 0)])
    assert noted.harboured == standing.pids == [1, 3]
    standing.add(waiting(5))
    assert [one.pid for one in standing.take(1, lambda pid: pid != 1)] == [3]
    assert (ENDED, CLOSED) == ([1, 5], [2])  # the number of one that was reaped may be another's by now
    assert (noted.harboured, len(standing)) == ([], 0)
    standing.add(waiting(4))
    standing.give_up()
    assert (noted.harboured, len(standing)) == ([], 0)


def test_one_plan_at_a_time() -> None:
    """The newest; none when ranks are about to be started."""
    noted, done = Noted(), list[int]()
    standing = Standbys(noted)
    standing.plan(lambda: noted.later(lambda: done.append(1)))
    standing.plan(lambda: noted.later(lambda: done.append(2)))
    assert len(noted.planned) == 1
    noted.planned[0]()
    assert done == [2]
    standing.unplan()
    assert not noted.planned
