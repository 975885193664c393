"""How ranks and agents end: drained, hung, orphaned; nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from agent_process import FAKE_RANK, AgentProcess, fake_command, process_exists, script, wait_until

from resumable_training.agent.procfs import all_processes
from resumable_training.contract import events
from resumable_training.contract.assignment import Limits

LONG = fake_command("--steps", "100000", "--step-seconds", "0.02")
OBEDIENT = script(
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    "print('ready', flush=True)\n"
    "time.sleep(1000)"
)
DAEMON = script(
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(1000)'],"
    " start_new_session=True)\n"
    "print('grandchild', child.pid, flush=True)\n"
)


def gone(pids: list[int]) -> None:
    """All of these processes end within the bound."""
    wait_until(lambda: not any(process_exists(pid) for pid in pids), f"the end of {pids}")


def grandchildren(agent: AgentProcess, ranks: int) -> list[int]:
    """Pids that the fake ranks printed."""

    def printed() -> list[int]:
        found = [re.findall(r"grandchild (\d+)\n", agent.rank_log(rank=rank)) for rank in range(ranks)]
        return [int(pids[0]) for pids in found if pids]

    return wait_until(lambda: printed() if len(printed()) == ranks else None, "grandchildren")


def test_drain_on_the_socket(tmp_path: Path) -> None:
    """Ranks that use the library commit and return DRAINED; a repeated request is harmless."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        agent.wait_event(events.PROGRESS)
        agent.request("drain", reason="scale", seconds=20.0, asked_by="operator")
        agent.request("drain", reason="scale", seconds=20.0, asked_by="operator")
        assert agent.ended() == events.DRAINED
        found = agent.events()
        asked = [event.data for event in found if event.kind == events.DRAIN_REQUESTED]
        assert asked == [{"reason": "scale", "seconds": 20.0, "asked_by": "operator"}]
        assert {e.data["code"] for e in found if e.kind == events.RANK_EXITED} == {80}
        assert any(event.kind == events.CHECKPOINT for event in found)


def test_drain_reaches_a_rank_that_connects_later(tmp_path: Path) -> None:
    """It is told when it says hello, and not killed by a signal before."""
    command = fake_command("--setup-seconds", "0.7", "--steps", "100000")
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=1)
        agent.request("drain", seconds=20.0)
        assert agent.ended() == events.DRAINED
        (code,) = [e.data["code"] for e in agent.events() if e.kind == events.RANK_EXITED]
        assert code == 80


@pytest.mark.parametrize("command", [OBEDIENT, script("import time; time.sleep(1000)")])
def test_drain_of_a_script_without_the_library(tmp_path: Path, command: tuple[str, ...]) -> None:
    """It gets SIGTERM; whether it returns 0 or dies of it, the end is a drained one."""
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=1)
        agent.request("drain", seconds=30.0)
        agent.request("drain", seconds=3.0)  # a shorter window: half of it is soon over
        assert agent.ended() == events.DRAINED
        assert agent.wait_event(events.RANK_EXITED).data["code"] in (0, -15)


def test_only_local_rank_0_of_such_a_script_is_signalled(tmp_path: Path) -> None:
    """The others may end by themselves, in whichever way, and that is no failure."""
    others = "import os, sys, time\nif os.environ['RANK'] != '0': time.sleep(3); sys.exit(7)\n"
    command = script(others + "time.sleep(1000)")
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=2)
        agent.request("drain", seconds=4.0)
        assert agent.ended() == events.DRAINED
        codes = {e.data["rank"]: e.data["code"] for e in agent.events() if e.kind == events.RANK_EXITED}
        assert codes == {0: -15, 1: 7}


def test_window_over(tmp_path: Path) -> None:
    """A rank that does not obey is killed when the window is over, with a warning."""
    with AgentProcess(tmp_path, fake_command("--ignore-drain", "--steps", "100000")) as agent:
        agent.begin(ranks=1)
        agent.wait_event(events.RANK_CONNECTED)
        agent.request("drain", seconds=0.5)
        assert agent.ended() == events.STOPPED
        assert "window is over" in agent.wait_event(events.WARNING).data["message"]


def test_sigterm_drains_and_leaves(tmp_path: Path) -> None:
    """The pod's end: ranks are asked, the agent exits with 0, and the last event reached the listener."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        agent.wait_event(events.PROGRESS)
        stream = agent.stream()
        next(stream)
        assert agent.kill(signal.SIGTERM) == 0
        rest = list(stream)
        told = {"reason": "sigterm", "seconds": 60.0, "asked_by": "agent"}
        assert told in [e.data for e in rest]
        assert rest[-1].kind == events.ATTEMPT_ENDED
        assert rest[-1].data["outcome"] == events.DRAINED


def test_sigterm_to_an_idle_agent(tmp_path: Path) -> None:
    """There was nothing to drain: 143, as of a process that has no handler."""
    with AgentProcess(tmp_path, LONG) as agent:
        assert agent.kill(signal.SIGTERM) == 143


@pytest.mark.parametrize(("options", "code"), [(("--ignore-drain",), 0), (("--exit-at", "40"), 1)])
def test_sigterm_when_ranks_do_not_drain(tmp_path: Path, options: tuple[str, ...], code: int) -> None:
    """The window over: they were asked, 0. A rank that fails meanwhile: 1."""
    command = fake_command("--steps", "100000", "--ignore-drain", *options)
    with AgentProcess(tmp_path, command) as agent:
        agent.begin(ranks=1, limits=Limits(drain_seconds=3.0))
        agent.wait_event(events.RANK_CONNECTED)
        assert agent.kill(signal.SIGTERM) == code


def test_nothing_new_for_an_agent_that_is_leaving(tmp_path: Path) -> None:
    """After SIGTERM, assignments are refused, and the state says why."""
    command = fake_command("--ignore-drain", "--steps", "100000")
    with AgentProcess(tmp_path, command, drain_seconds=20.0) as agent:
        agent.begin(ranks=1)
        assert agent.process is not None
        agent.process.send_signal(signal.SIGTERM)
        wait_until(lambda: agent.state().terminating, "SIGTERM seen")
        status, answer = agent.assign(agent.assignment(2))
        assert (status, answer["code"]) == (409, "terminating")
        assert agent.state().state == "draining"


def test_a_stopped_rank_is_a_hang(tmp_path: Path) -> None:
    """SIGSTOP on one rank: found by its state, stacks of the others in log and events, attempt failed."""
    with AgentProcess(
        tmp_path, fake_command("--stop-at", "3", "--only-rank", "1", "--steps", "9999")
    ) as agent:
        agent.begin(ranks=2)
        assert agent.ended() == events.FAILED
        hang = agent.wait_event(events.HANG)
        assert (hang.data["rank"], hang.data["stopped"]) == (1, True)
        stacks = agent.wait_event(events.STACKS)
        assert stacks.data["rank"] == 0
        assert "fake_rank.py" in stacks.data["text"]
        wait_until(lambda: "fake_rank.py" in agent.rank_log(rank=0), "stacks in the rank's log")


def test_a_silent_rank_is_a_hang(tmp_path: Path) -> None:
    """Alive and doing nothing: found by its silence, and it can still say where it is."""
    with AgentProcess(
        tmp_path, fake_command("--hang-at", "3", "--only-rank", "1", "--steps", "9999")
    ) as agent:
        agent.begin(ranks=2, limits=Limits(hang_seconds=1.0))
        assert agent.ended() == events.FAILED
        hang = agent.wait_event(events.HANG)
        assert (hang.data["rank"], hang.data["stopped"], hang.data["limit_ms"]) == (1, False, 1000)
        ranks = {e.data["rank"] for e in agent.events() if e.kind == events.STACKS}
        assert ranks == {0, 1}


def test_stacks_on_request(tmp_path: Path) -> None:
    """The ranks answer and go on."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        for rank in (0, 1):
            agent.wait_event(events.RANK_CONNECTED, where=lambda e, rank=rank: e.data["rank"] == rank)
        agent.request("stacks")
        assert {e.data["rank"] for e in agent.events() if e.kind == events.STACKS} == {0, 1}
        assert agent.state().ranks_alive == 2


def test_stop_with_stacks(tmp_path: Path) -> None:
    """The ranks say where they are, then they are killed; asking twice gives one stack each."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=2)
        for rank in (0, 1):
            agent.wait_event(events.RANK_CONNECTED, where=lambda e, rank=rank: e.data["rank"] == rank)
        agent.request("stop", with_stacks=True)
        agent.request("stop", with_stacks=True)
        assert agent.ended() == events.STOPPED
        assert sorted(e.data["rank"] for e in agent.events() if e.kind == events.STACKS) == [0, 1]


@pytest.mark.parametrize("how", ["kill", "lifeline"])
def test_an_agent_that_dies_takes_all_with_it(tmp_path: Path, how: str) -> None:
    """SIGKILL to the agent, or the end of its parent: no rank and no child of a rank survives."""
    command = fake_command("--steps", "100000", "--grandchild")
    with AgentProcess(tmp_path, command, extra_environment={"TMPDIR": str(tmp_path)}) as agent:
        agent.begin(ranks=2)
        pids = [*agent.rank_pids().values(), *grandchildren(agent, 2)]
        assert len(pids) == 4
        if how == "kill":
            agent.kill(signal.SIGKILL)
        else:
            agent.cut_lifeline()
            assert agent.process is not None
            assert agent.process.wait(20) == 1
        gone(pids)
        wait_until(lambda: not list(tmp_path.glob("rtj-*")), "the end of the temporary directory")


def test_ranks_die_with_their_agent_without_its_guard(tmp_path: Path) -> None:
    """The kernel ends them (PDEATHSIG); and the loss of the guard is no harm to a living agent."""
    with AgentProcess(tmp_path, LONG, extra_environment={"TMPDIR": str(tmp_path)}) as agent:
        assert agent.process is not None
        (guard,) = [process.pid for process in all_processes() if process.parent == agent.process.pid]
        os.kill(guard, signal.SIGKILL)
        gone([guard])
        agent.begin(ranks=2)
        pids = [*agent.rank_pids().values()]
        agent.wait_event(events.PROGRESS)
        agent.kill(signal.SIGKILL)
        gone(pids)


def test_what_ranks_leave_behind_ends_with_the_attempt(tmp_path: Path) -> None:
    """Children of a rank that succeeded, and even one that made itself a session of its own."""
    with AgentProcess(tmp_path / "a", fake_command("--steps", "3", "--grandchild")) as agent:
        agent.begin(ranks=2)
        pids = grandchildren(agent, 2)
        assert agent.ended() == events.SUCCEEDED
        gone(pids)
    with AgentProcess(tmp_path / "b", DAEMON) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED
        gone(grandchildren(agent, 1))


def test_ranks_of_an_earlier_agent_are_ended_at_start(tmp_path: Path) -> None:
    """By pid and start time: the recorded process is killed, a stranger with that pid is not."""
    with AgentProcess(tmp_path, LONG) as agent:
        agent.begin(ranks=1)
        record = Path(agent.spec.directory, "ranks.json")
        pid = agent.rank_pids()[0]
        content = record.read_text()
        successor = AgentProcess(tmp_path / "next", LONG)
        Path(successor.spec.directory).mkdir(parents=True)
        Path(successor.spec.directory, "ranks.json").write_text(
            re.sub(r'"start_ticks":\d+', '"start_ticks":1', content)
        )
        with successor:
            assert process_exists(pid)
        Path(successor.spec.directory, "ranks.json").write_text(content)
        with successor:
            gone([pid])


def test_a_flood_of_output_does_not_block_a_rank(tmp_path: Path) -> None:
    """Nobody reads the agent's standard output; training ends, the log has every line."""
    read, write = os.pipe()
    command = fake_command("--steps", "10", "--step-seconds", "0", "--flood", "5000")
    with AgentProcess(tmp_path, command, stdout=write) as agent:
        os.close(write)
        agent.begin(ranks=2)
        assert agent.ended() == events.SUCCEEDED
        assert agent.rank_log(rank=1).count("\n") == 50_000
    os.close(read)


def test_output_of_ranks_is_told_apart(tmp_path: Path) -> None:
    """Attempt and rank stand in front of every line on the agent's standard output."""
    with AgentProcess(tmp_path, script("import os; print('hello from', os.environ['RANK'])")) as agent:
        agent.begin(attempt=4, ranks=2)
        agent.ended(4)
        shown = tmp_path / "stdout.log"
        wait_until(lambda: shown.read_text().count("\n") == 2, "both lines")
        lines = sorted(shown.read_text().splitlines())
        assert lines == [f"[attempt 4 rank {rank}] hello from {rank}" for rank in (0, 1)]


def test_signals_of_a_rank_are_the_default_ones(tmp_path: Path) -> None:
    """What our own interpreter ignores or blocks is not passed on to the user's."""
    text = "grep -E 'Sig(Blk|Ign)' /proc/self/status"
    ours = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1)
    with AgentProcess(tmp_path, ("/bin/sh", "-c", text)) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED
        for line in agent.rank_log().splitlines():
            mask = int(line.split()[1], 16)
            assert not [number for number in ours if mask >> (number - 1) & 1], line


def test_an_agent_says_whether_it_had_asked(tmp_path: Path) -> None:
    """A script may end with the code of a drain by itself; who reads that can tell it from one."""
    told = []
    for number, asks in enumerate((False, True)):
        command = LONG if asks else script("import sys; sys.exit(80)")
        with AgentProcess(tmp_path / str(number), command) as agent:
            agent.begin(ranks=1)
            if asks:
                agent.wait_event(events.PROGRESS)
                agent.request("drain", seconds=20.0)
            assert agent.ended() == events.DRAINED
            told += [e.data["asked"] for e in agent.events() if e.kind == events.RANK_EXITED]
    assert told == [False, True]


def test_a_drain_while_one_rank_has_yet_to_connect(tmp_path: Path) -> None:
    """The others wait for it and can do no step, so nothing is lost: all end, and at once."""
    starting = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1': time.sleep(1000)\n"
        f"os.execv(sys.executable, [sys.executable, {FAKE_RANK!r}, '--meet', '--ignore-drain'])"
    )
    with AgentProcess(tmp_path, starting, working_directory=str(tmp_path)) as agent:
        agent.begin(ranks=2)
        agent.wait_event(events.RANK_CONNECTED)
        agent.request("drain", seconds=3600.0)
        assert agent.ended() == events.DRAINED
        exits = [e.data for e in agent.events() if e.kind == events.RANK_EXITED]
        assert [(exit_["own"], exit_["idle"]) for exit_ in exits] == [(False, True)] * 2
