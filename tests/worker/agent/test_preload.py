"""Preloaded parents: when ranks are forked from one, when they start cold and what is said, and its end."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import preload_agents
import pytest
from agent_process import AgentProcess, process_exists, wait_until
from preload_agents import MODULE, make_bare_python, parent_of, read, warnings_of

from resumable_training.agent.bundle import write_bundle
from resumable_training.agent.ports import bindable
from resumable_training.contract import events
from resumable_training.contract.assignment import Limits

SCRIPT = "import os, sys\nprint('forked' if 'colorsys' in sys.modules else 'cold', os.environ['RANK'])\n"
WAITS = SCRIPT + "import time\ntime.sleep(100)\n"
LATER = "import os\nwhile not os.path.exists('now'): pass\n"  # it is being imported until the test says so
PRELOADED = re.compile(r"preloaded \d+ modules in")

# A module that the job names, and a part of what is said when it can't be preloaded.
UNFIT_MODULES = {
    "a thread": ("import threading, time\nthreading.Timer(99, print).start()", "2 threads"),
    "a connection": ("import socket\nserver = socket.create_server(('127.0.0.1', 0))", "socket:"),
    "a process": ("import subprocess\nchild = subprocess.Popen(['sleep', '9'])", "left a process behind"),
    "its rank": ("import os\nrank = os.environ.get('LOCAL_RANK', 0)", "mine reads LOCAL_RANK"),
    "its address": ("import os\nrank = os.getenv('MASTER_ADDR')", "mine reads MASTER_ADDR"),
    "a seed": ("import random\nrandom.seed(0)", "mine seeds a random generator"),
    "an error": ("1 / 0", "importing mine raised ZeroDivisionError: division by zero"),
    "an exit": ("raise SystemExit(3)", "importing mine raised SystemExit: 3"),
    "an end": ("import os\nprint('last words')\nos._exit(0)", "last words"),
    "a crash": ("import os\nos.abort()", "can't be preloaded"),
    "a hang": ("import time\ntime.sleep(1000)", "hangs in an import"),
    "nothing": ("", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without torch, so that a parent is there in no time."""
    return make_bare_python(tmp_path_factory.mktemp("bare"))


def agent_of(root: Path, python: str, text: str = SCRIPT, mine: str = "", **changes: Any) -> AgentProcess:
    """One whose ranks say how they were started."""
    return preload_agents.agent_of(root, python, text, mine, **changes)


def one_attempt(agent: AgentProcess, number: int = 1, **changes: Any) -> list[str]:
    """How its two ranks were started."""
    agent.begin(number, **changes)
    assert agent.ended(number) == events.SUCCEEDED
    return [agent.rank_log(number, rank).split()[0] for rank in (0, 1)]


def test_ranks_are_forked_from_the_first_attempt_on(tmp_path: Path, bare_python: str) -> None:
    """The first attempt waits for the imports, and the parent outlives attempts and their cleaning up."""
    with agent_of(tmp_path, bare_python) as agent:
        assert one_attempt(agent, 1) == ["forked"] * 2
        parent = parent_of(agent)
        assert one_attempt(agent, 2) == ["forked"] * 2
        assert parent_of(agent) == parent
        assert not warnings_of(agent)
    wait_until(lambda: not process_exists(parent), "the parent's end with its agent")


def test_ranks_that_are_forked_together(tmp_path: Path, bare_python: str) -> None:
    """Each has its own number, output and process, and is the agent's child."""
    text = SCRIPT + "print(os.getpid(), os.getppid(), os.getsid(0))\n" + WAITS.removeprefix(SCRIPT)
    with agent_of(tmp_path, bare_python, text) as agent:
        agent.begin(1, ranks=5)
        agent.wait_event(events.RANKS_STARTED)
        logs = [lambda rank=rank: agent.rank_log(1, rank).split() for rank in range(5)]
        wait_until(lambda: all(len(log()) == 5 for log in logs), "what they print")
        assert agent.process is not None
        pids = [str(agent.rank_pids()[rank]) for rank in range(5)]
        assert len(set(pids)) == 5
        assert [log() for log in logs] == [
            ["forked", str(rank), pid, str(agent.process.pid), pid] for rank, pid in enumerate(pids)
        ]


def test_the_agent_that_pods_get_preloads_too(tmp_path: Path, bare_python: str) -> None:
    """From one file, isolated, and with an interpreter that is not the ranks'."""
    write_bundle(tmp_path / "agent.pyz")
    launcher = (sys.executable, "-I", "-S", str(tmp_path / "agent.pyz"))
    with agent_of(tmp_path, bare_python, launcher=launcher) as agent:
        assert one_attempt(agent) == ["forked"] * 2


@pytest.mark.parametrize("kept", [True, False])
def test_it_says_what_is_compiled_at_each_start(tmp_path: Path, bare_python: str, kept: bool) -> None:
    """An image without bytecode costs more at each start than anything else here gains."""
    environment = {"PYTHONDONTWRITEBYTECODE": "" if kept else "1"}
    with agent_of(tmp_path, bare_python, preload_modules=("mine",), environment=environment) as agent:
        parent_of(agent)
        assert ("1 files were compiled" in agent.own_log()) is not kept


def test_it_says_what_it_is(tmp_path: Path, bare_python: str) -> None:
    """In a list of processes a parent is told from its ranks."""
    with agent_of(tmp_path, bare_python) as agent:
        shown = Path(f"/proc/{parent_of(agent)}/cmdline").read_text()
        assert shown == f"rtj-preload: {bare_python} script.py\0"


@pytest.mark.parametrize("name", UNFIT_MODULES)
def test_modules_that_can_not_be_preloaded(tmp_path: Path, bare_python: str, name: str) -> None:
    """Ranks start cold all the same; the reason is said once, and the parent does not stay."""
    text, why = UNFIT_MODULES[name]
    with agent_of(tmp_path, bare_python, mine=text, preload_modules=(*MODULE, "mine")) as agent:
        seen = [one_attempt(agent, number) for number in (1, 2)]
        said = warnings_of(agent)
        if not why:
            assert (seen, said) == ([["forked"] * 2] * 2, [])
            return
        assert seen == [["cold"] * 2] * 2
        assert len(said) == 1
        assert said[0].startswith("ranks start cold")
        assert why in said[0]
        assert agent.process is not None
        children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text()
        assert not [pid for pid in children.split() if "rtj-preload" in read(pid, "comm")]


def test_who_waits_for_imports_can_be_stopped(tmp_path: Path, bare_python: str) -> None:
    """An attempt that has no ranks yet ends at once, however long the parent will be busy."""
    with agent_of(tmp_path, bare_python, mine="while True: pass", preload_modules=("mine",)) as agent:
        agent.begin()
        assert agent.state().ranks_alive == 0
        agent.request("stop")
        assert agent.ended() == events.STOPPED
        assert not warnings_of(agent)


def test_who_waits_for_imports_can_be_drained(tmp_path: Path, bare_python: str) -> None:
    """With nothing begun there is nothing to wait for: a notice of preemption has no time for imports."""
    with agent_of(tmp_path, bare_python, mine="while True: pass", preload_modules=("mine",)) as agent:
        agent.begin()
        assert agent.state().ranks_alive == 0
        agent.request("drain", reason="preempted", seconds=60.0)
        assert agent.ended() == events.DRAINED
        assert not [event for event in agent.events() if event.kind == events.RANK_EXITED]


def test_the_masters_port_is_held_while_ranks_wait_for_imports(tmp_path: Path, bare_python: str) -> None:
    """Nobody takes it in these seconds; one that ends meanwhile lets it go, the next has its own."""
    with agent_of(tmp_path, bare_python, mine=LATER, preload_modules=("mine",)) as agent:
        first = agent.state().next_port
        agent.begin(1, master_port=first)
        assert not bindable("127.0.0.1", first)
        second = agent.state().next_port
        assert second not in (0, first)
        agent.begin(2, master_port=second)
        assert agent.ended(1) == events.STOPPED
        wait_until(lambda: bindable("127.0.0.1", first), "the port of the attempt that has ended")
        assert not bindable("127.0.0.1", second)
        (tmp_path / "work" / "now").touch()
        assert agent.ended(2) == events.SUCCEEDED
        assert bindable("127.0.0.1", second)


def test_without_preloading(tmp_path: Path, bare_python: str) -> None:
    """Switched off there is no parent and no word about it."""
    with agent_of(tmp_path, bare_python, preload=False) as agent:
        assert one_attempt(agent) == ["cold"] * 2
        assert not warnings_of(agent)
        assert "preload" not in agent.own_log()


def test_programs_that_do_not_use_torch_are_left_alone(tmp_path: Path, bare_python: str) -> None:
    """Nothing is named, and the script imports nothing of torch: there is nothing to gain."""
    with agent_of(tmp_path, bare_python, preload_modules=()) as agent:
        assert one_attempt(agent) == ["cold"] * 2
        assert not warnings_of(agent)


def test_an_interpreter_without_torch_is_left_alone(tmp_path: Path, bare_python: str) -> None:
    """It was asked, for the script says that it wants torch."""
    text = SCRIPT + "if False:\n    import torch\n"
    with agent_of(tmp_path, bare_python, text, preload_modules=()) as agent:
        assert one_attempt(agent) == ["cold"] * 2
        assert not warnings_of(agent)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("sh", "-c", "exec python3 script.py"), "'sh' is no Python program"),
        (("python3", "-I", "script.py"), "option -I"),
        (("python3", "environment.py"), "sets OMP_NUM_THREADS itself"),
    ],
)
def test_commands_that_can_not_be_preloaded(tmp_path: Path, command: tuple[str, ...], why: str) -> None:
    """Whoever names modules is told why they are of no use."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "environment.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '2'\n" + SCRIPT)
    changes: dict[str, Any] = {"preload_modules": MODULE, "working_directory": str(tmp_path)}
    with AgentProcess(tmp_path / "agent", command, **changes) as agent:
        assert one_attempt(agent) == ["cold"] * 2
        [said] = warnings_of(agent)
        assert why in said


def test_a_parent_that_dies_is_replaced(tmp_path: Path, bare_python: str) -> None:
    """The next attempt has a new one; its ranks do not notice."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        agent.begin(1)
        agent.wait_event(events.RANKS_STARTED)
        parent, ranks = parent_of(agent), agent.rank_pids()
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: parent_of(agent) != parent, "a new parent")
        assert agent.rank_pids() == ranks
        assert all(process_exists(pid) for pid in ranks.values())
        agent.begin(2)
        agent.wait_event(events.RANKS_STARTED, where=lambda event: event.attempt == 2)
        wait_until(lambda: agent.rank_log(2), "its output")
        assert agent.rank_log(2).split()[0] == "forked"
        assert not warnings_of(agent)


def test_a_parent_is_never_made_without_the_hook(
    tmp_path: Path, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary files are cleaned up by others too, and without the hook the parent would run the script."""
    with tempfile.TemporaryDirectory() as scratch:
        monkeypatch.setenv("TMPDIR", scratch)
        with agent_of(tmp_path, bare_python, "open('ran', 'a').write('x')\n" + WAITS) as agent:
            agent.begin(1)
            agent.wait_event(events.RANKS_STARTED)
            parent = parent_of(agent)
            (hook,) = Path(scratch).glob("*/preload.zip")
            hook.unlink()
            os.kill(parent, signal.SIGKILL)
            wait_until(lambda: parent_of(agent) != parent, "a new parent")
            agent.begin(2)
            agent.wait_event(events.RANKS_STARTED, where=lambda event: event.attempt == 2)
            wait_until(lambda: agent.rank_log(2) and agent.rank_log(2, 1), "their output")
            assert agent.rank_log(2).split()[0] == "forked"
            assert (tmp_path / "work" / "ran").read_text() == "x" * 4


def test_variables_beyond_a_packet_start_cold(tmp_path: Path, bare_python: str) -> None:
    """They would be cut off on their way."""
    big = {f"RESUMABLE_MINE_{number}": "x" * 100_000 for number in range(2)}
    with agent_of(tmp_path, bare_python, environment=big) as agent:
        assert one_attempt(agent) == ["cold"] * 2
        assert any("variables of a rank" in warning for warning in warnings_of(agent))


def test_a_parent_that_does_not_answer_is_given_up(tmp_path: Path, bare_python: str) -> None:
    """A stopped one costs a bounded wait and a cold start, and no rank is started twice."""
    with agent_of(tmp_path, bare_python) as agent:
        parent = parent_of(agent)
        os.kill(parent, signal.SIGSTOP)
        assert "cold" in one_attempt(agent)
        wait_until(lambda: not process_exists(parent), "its end")
        assert re.search("could not fork: timed out", agent.own_log())
        assert one_attempt(agent, 2) == ["forked"] * 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_agent(tmp_path: Path, bare_python: str, number: signal.Signals) -> None:
    """Forked ranks and their parent die with an agent that is killed, as cold ranks do."""
    with agent_of(tmp_path, bare_python, WAITS) as agent:
        agent.begin(1, limits=Limits(drain_seconds=0.2))
        agent.wait_event(events.RANKS_STARTED)
        pids = [parent_of(agent), *agent.rank_pids().values()]
        agent.kill(number)
        wait_until(lambda: not any(map(process_exists, pids)), "the end of all")


def test_a_changed_variable_makes_another_parent(tmp_path: Path, bare_python: str) -> None:
    """What imports may have read must be the same: that attempt starts cold, the next one forked."""
    text = SCRIPT + "print(os.environ.get('MINE'))\n"
    with agent_of(tmp_path, bare_python, text, environment={"MINE": "1"}) as agent:
        assert one_attempt(agent, 1) == ["forked"] * 2
        assert one_attempt(agent, 2, env={"MINE": "2"})[0] == "cold"
        wait_until(lambda: len(PRELOADED.findall(agent.own_log())) == 2, "another parent")
        assert one_attempt(agent, 3, env={"MINE": "2"}) == ["forked"] * 2
        assert [agent.rank_log(number).split()[-1] for number in (1, 2, 3)] == ["1", "2", "2"]
        assert not warnings_of(agent)


def test_a_changed_module_makes_another_parent(tmp_path: Path, bare_python: str) -> None:
    """Ranks never run what a file held before."""
    text = "import mine, sys\nprint('forked' if 'colorsys' in sys.modules else 'cold', mine.VALUE)\n"
    with agent_of(tmp_path, bare_python, text, mine="VALUE = 1", preload_modules=(*MODULE, "mine")) as agent:
        assert one_attempt(agent, 1) == ["forked"] * 2
        (tmp_path / "work" / "mine.py").write_text("VALUE = 22")
        assert one_attempt(agent, 2)[0] == "cold"
        wait_until(lambda: len(PRELOADED.findall(agent.own_log())) == 2, "another parent")
        assert one_attempt(agent, 3) == ["forked"] * 2
        assert [agent.rank_log(number).split()[1] for number in (1, 2, 3)] == ["1", "22", "22"]
