"""The agent as the first process of a container: any Python from 3.9, nothing installed, nobody known."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from agent_process import KEY, AgentProcess, script, wait_until
from pod_agent import (
    AS_PID_1,
    UNKNOWN_USER,
    LockedPodAgent,
    PodAgent,
    bundle,
    children,
    oldest_python,
    pythons,
)

from resumable_operator.agent_client import AgentClient, Endpoint, new_session
from resumable_training.agent.__main__ import read_spec
from resumable_training.agent.neighbour import NeighbourWatch, PeerView
from resumable_training.contract import env, events
from resumable_training.contract.assignment import REQUEST_DRAIN, REQUEST_SHUTDOWN, AgentSpec, Member
from resumable_training.contract.codec import ContractError, to_json


def sleeper(code: int) -> tuple[str, ...]:
    """A rank that ends with ``code`` when it gets SIGTERM, and says ``up`` once it would."""
    return script(
        "import os, signal, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: os._exit({code}))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )


def python_script(text: str) -> tuple[str, ...]:
    """A rank in the container: `python3` by whatever name PATH finds."""
    return ("python3", "-I", "-S", "-c", text)


@pytest.mark.parametrize("version", sorted({min(pythons()), max(pythons())}))
def test_any_python(tmp_path: Path, version: tuple[int, int]) -> None:
    """A whole attempt under the oldest and the newest Python here, with no package to be found."""
    program = script("import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    with PodAgent(tmp_path, program, python=pythons()[version]) as agent:
        agent.begin(ranks=2)
        assert agent.ended() == events.SUCCEEDED
        assert {agent.rank_log(rank=rank) for rank in (0, 1)} == {"0 2\n", "1 2\n"}
        assert agent.request(REQUEST_SHUTDOWN)[0] == 200
        assert agent.process is not None
        assert agent.process.wait(20) == 0
        assert "Traceback" not in agent.own_log()


def test_arguments_are_the_users_own(tmp_path: Path) -> None:
    """What follows the first ``--`` is the command, to the letter."""
    words = ("--", "-h", "a b", "$(X)", "")
    with PodAgent(tmp_path, (*script("import sys; print(sys.argv[1:])"), *words)) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED
        assert agent.rank_log() == f"{list(words)}\n"


SPEC = AgentSpec("ns/a", "uid", "a-0-1", 0, 1, ("from", "spec"), "10.0.0.1", directory="/", key_file="/k")


def test_configuration_by_value_or_by_path(tmp_path: Path) -> None:
    """JSON that stands in the variable is taken as it is; anything else is the path of a file."""
    file = tmp_path / "spec.json"
    file.write_bytes(to_json(SPEC))
    assert read_spec(to_json(SPEC).decode()) == read_spec(str(file)) == SPEC
    assert read_spec(f"\n {to_json(SPEC).decode()}", ["--", "x", "--"]).command == ("x", "--")
    assert read_spec(str(file), ["--"]).command == SPEC.command


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("", [], "must hold the agent's configuration"),
        ("{", [], "not valid JSON"),
        ("{}", [], "job is missing"),
        (to_json(replace(SPEC, command=())).decode(), [], "RESUMABLE_AGENT_SPEC: command is missing"),
        (to_json(replace(SPEC, address="")).decode(), [], "address is missing"),
        (to_json(SPEC).decode(), ["-x", "--", "y"], "unknown argument '-x'"),
    ],
)
def test_wrong_configuration(text: str, arguments: list[str], says: str) -> None:
    """Each mistake is named."""
    with pytest.raises(ValueError, match=says) as caught:
        read_spec(text, arguments)
    assert isinstance(caught.value, ValueError | ContractError)


def test_a_wrong_start_is_said_by_the_container(tmp_path: Path) -> None:
    """A key that is not there ends it with 2 and one line that names the file."""
    agent = PodAgent(tmp_path, ("true",), key_file="/nowhere/key")
    assert agent.popen(to_json(agent.spec).decode()).wait(20) == 2
    assert agent.own_log().splitlines() == ["agent: [Errno 2] No such file or directory: '/nowhere/key'"]


OLD = """
import re, sys
sys.version_info, sys.version = (3, 8, 18, "final", 0), "3.8.18 (main)"
sys.argv[0] = sys.argv.pop(1)
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_an_image_with_an_older_python(tmp_path: Path) -> None:
    """It is told what it lacks, before anything that it could not read."""
    result = subprocess.run(
        [sys.executable, "-S", "-c", OLD, bundle(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (
        2,
        "agent: python3 is 3.8.18 here; 3.9 or newer is needed\n",
    )


# ---- the first process -------------------------------------------------------------------------------


def test_orphans_of_ranks_are_reaped(tmp_path: Path) -> None:
    """As PID 1 it inherits what ranks leave behind, and leaves no zombies."""
    program = script(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(0.1)\n"
        "        os._exit(0)\n"
        "print('forked', flush=True)\n"
        "time.sleep(60)\n"
    )
    with PodAgent(tmp_path, program, wrapper=AS_PID_1) as agent:
        agent.begin(ranks=1)
        wait_until(lambda: "forked" in agent.rank_log(), "the rank has forked")
        info = json.loads(agent.run_file().read_text())
        assert info["pid"] == 1
        rank = agent.rank_pids()[0]
        assert rank > 1
        wait_until(lambda: len(children(agent.agent_pid())) == 2, "only its guard and its rank are left")


def test_sigterm_drains_and_shows_zero(tmp_path: Path) -> None:
    """A container that is ended while it trains asks its ranks, and returns 0 when they have gone."""
    with PodAgent(tmp_path, sleeper(0), wrapper=AS_PID_1) as agent:
        agent.begin(ranks=1)
        wait_until(lambda: "up" in agent.rank_log(), "the rank runs")
        assert agent.kill(signal.SIGTERM) == 0


@pytest.mark.parametrize("started", ["idle", "ended"])
def test_sigterm_with_nothing_to_drain(tmp_path: Path, started: str) -> None:
    """With no ranks it leaves at once, with what shells say of SIGTERM."""
    with PodAgent(tmp_path, script("pass"), wrapper=AS_PID_1) as agent:
        if started == "ended":
            agent.begin(ranks=1)
            agent.ended()
        assert agent.kill(signal.SIGTERM) == 143


def test_a_failure_while_draining_shows_one(tmp_path: Path) -> None:
    """Ranks that fail in the drain make the container fail."""
    with PodAgent(tmp_path, sleeper(7), wrapper=AS_PID_1) as agent:
        agent.begin(ranks=1)
        wait_until(lambda: "up" in agent.rank_log(), "the rank runs")
        assert agent.kill(signal.SIGTERM) == 1


def test_sigterm_while_it_starts(tmp_path: Path) -> None:
    """The kernel spares a first process without a handler: there is one before anything that takes time."""
    key = tmp_path / "slow-key"
    os.mkfifo(key)
    agent = PodAgent(tmp_path, ("true",), wrapper=AS_PID_1, key_file=str(key))
    agent.process = agent.popen(to_json(agent.spec).decode())
    with agent_ends(agent):
        writer = wait_until(lambda: _open_for(key), "it opens the key")
        try:
            os.write(writer, b"k")
            wait_until(lambda: _waits_for_more(writer, agent.agent_pid()), "it reads the key")
            assert agent.kill(signal.SIGTERM) == 143
        finally:
            os.close(writer)


class agent_ends:
    """Ends an agent that was started without being waited for."""

    def __init__(self, agent: PodAgent) -> None:
        self._agent = agent

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._agent.__exit__(*error)


def _open_for(fifo: Path) -> int | None:
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None  # nobody reads


def _waits_for_more(fifo: int, pid: int) -> bool:
    """It has taken what was there, and sleeps: a signal just before that is only seen when it wakes up."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(fifo, termios.FIONREAD, bytes(4)))
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return waiting == 0 and state == "S"


# ---- what a pod may lack -----------------------------------------------------------------------------


TELL = (
    "import getpass, json, os, pathlib, tempfile\n"
    "home = pathlib.Path.home()\n"
    "(home / '.cache').mkdir()\n"
    "print(json.dumps({'home': str(home), 'user': getpass.getuser(), 'tmp': tempfile.gettempdir(),\n"
    "    'uid': os.getuid(), 'socket': os.environ['RESUMABLE_SOCKET'],\n"
    "    'write': [d for d in ('/', '/tmp', '/run') if os.access(d, os.W_OK)]}))\n"
)


def test_read_only_root_and_unknown_user(tmp_path: Path) -> None:
    """Ranks find a home, a name and a place for temporary files in the scratch space; so do the sockets."""
    with LockedPodAgent(tmp_path, python_script(TELL)) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED, agent.rank_log()
        told = json.loads(agent.rank_log())
    assert told["home"] == "/run/resumable/home"
    assert told["tmp"] == "/run/resumable/tmp"
    assert told["socket"].startswith("/run/resumable/tmp/rtj-")
    assert told["write"] == [] or os.geteuid() != 0
    if os.geteuid() == 0:
        assert (told["user"], told["uid"]) == ("resumable", UNKNOWN_USER)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """A home that exists, a name and a temporary directory stay what the image and the template say."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    variables = {"HOME": str(home), "USER": "me", "TMPDIR": str(temporary)}
    tell = script("import os; print([os.environ.get(n) for n in ('HOME', 'USER', 'LOGNAME', 'TMPDIR')])")
    with PodAgent(tmp_path, tell, variables=variables) as agent:
        agent.begin(ranks=1)
        agent.ended()
        assert agent.rank_log() == f"{[str(home), 'me', None, str(temporary)]}\n"


def test_the_agents_own_variables_stay_with_it(tmp_path: Path) -> None:
    """Ranks see the container's variables, but not what configures the agent."""
    tell = script("import os; print(sorted(n for n in os.environ if n in ('MINE', 'RESUMABLE_AGENT_SPEC', "
                  "'RESUMABLE_POD_ADDRESS', 'RESUMABLE_RESUME_FROM')))")  # fmt: skip
    variables = {"MINE": "1", env.POD_ADDRESS: "127.0.0.1", env.RESUME_FROM: "/fixed"}
    with PodAgent(tmp_path, tell, variables=variables) as agent:
        agent.begin(ranks=1)
        agent.ended()
        assert agent.rank_log() == "['MINE']\n"


def test_packages_of_the_image_stay_out_of_the_agent(tmp_path: Path) -> None:
    """A module of the user's with the name of a standard one, on PYTHONPATH, is for ranks alone."""
    (tmp_path / "asyncio.py").write_text("raise SystemExit('not the real one')")
    tell = script("import os; print(os.environ['PYTHONPATH'])")
    with PodAgent(tmp_path, tell, variables={"PYTHONPATH": str(tmp_path)}) as agent:
        agent.begin(ranks=1)
        assert agent.ended() == events.SUCCEEDED
        assert agent.rank_log() == f"{tmp_path}\n"


# ---- addresses ---------------------------------------------------------------------------------------


def _addresses() -> list[str]:
    """Loopback addresses of this machine, of both kinds where it has both."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return ["127.0.0.3"]
    return ["127.0.0.3", "::1"]


@pytest.mark.parametrize("address", _addresses())
async def test_address_of_the_pod(tmp_path: Path, address: str) -> None:
    """Operator, neighbour and ranks reach an agent by the pod's address, IPv4 or IPv6."""
    tell = script(
        "import os, socket\n"
        "master = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "socket.create_server(master, family=socket.AF_INET6 if ':' in master[0] else socket.AF_INET)\n"
        "print(os.environ['RESUMABLE_WORKER_ADDRESS'])"
    )
    with PodAgent(tmp_path, tell, address=address) as agent:
        peer = Member(agent.spec.worker, 0, 1, address, agent.port, 0, 1)
        watch = NeighbourWatch(peer, lambda _kind: None, lambda: False)
        await watch._ask()
        assert watch.view == PeerView(), "asked and not answered"
        watch._hang_up()
        async with new_session() as session:
            client = AgentClient(session, Endpoint(agent.spec.worker, address, agent.port, KEY))
            state = await client.assign(agent.assignment(ranks=1))
        assert state.attempt == 1
        agent.counter = client._counter
        assert agent.ended() == events.SUCCEEDED, agent.rank_log()
        assert agent.rank_log() == f"{address}\n"


def test_drain_by_the_operator_then_shutdown_shows_zero(tmp_path: Path) -> None:
    """The usual end of a worker: drained, then asked to go."""
    with PodAgent(tmp_path, sleeper(0)) as agent:
        agent.begin(ranks=1)
        wait_until(lambda: "up" in agent.rank_log(), "the rank runs")
        agent.request(REQUEST_DRAIN, attempt=1, seconds=10.0)
        assert agent.ended() == events.DRAINED
        agent.request(REQUEST_SHUTDOWN)
        assert agent.process is not None
        assert agent.process.wait(20) == 0


def test_oldest_is_old_enough_to_matter() -> None:
    """What was found to run the agent with does run, and is not too old."""
    assert min(pythons()) >= (3, 9)
    assert Path(oldest_python()).exists()
    assert issubclass(PodAgent, AgentProcess)
