"""``python -m resumable_training.agent``: wiring. Configured by the file that RESUMABLE_AGENT_SPEC names."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Callable, Optional

from resumable_training.agent import reap
from resumable_training.agent.auth import Gate
from resumable_training.agent.context import REAP_SECONDS, Context
from resumable_training.agent.core import Agent
from resumable_training.agent.guarding import GuardProcess
from resumable_training.agent.outlet import Outlet
from resumable_training.agent.output import OutputPump
from resumable_training.agent.ranks import ColdStarter, RankStarter
from resumable_training.contract import env
from resumable_training.contract.assignment import AgentSpec
from resumable_training.contract.codec import from_json

EXIT_USAGE = 2
_SOCKET_PATH_LIMIT = 80  # of the directory: sun_path holds 108 bytes (104 on macOS)


def main(starter: Optional[RankStarter] = None, reap_seconds: float = REAP_SECONDS) -> int:
    """Read the configuration, run the agent, return its exit code."""
    _open_standard_streams()
    try:
        spec = read_spec(os.environ.get(env.AGENT_SPEC, ""))
        gate = Gate(Path(spec.key_file), uuid.uuid4().hex)
    except (OSError, ValueError) as error:
        sys.stderr.write("agent: %s\n" % error)
        return EXIT_USAGE
    outlet, errors = Outlet(1), Outlet(2)
    say = _sayer(errors, spec.worker)
    temporary = _short_directory()
    try:
        return _run(spec, gate, temporary, outlet, say, starter or ColdStarter(), reap_seconds)
    except OSError as error:
        say("cannot go on: %s" % error)
        return 1
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        outlet.flush(1.0)
        errors.flush(1.0)


def read_spec(path: str) -> AgentSpec:
    """The configuration.

    Raises:
        OSError: it can't be read, or the scratch directory can't be made.
        ValueError: it is not an AgentSpec, or lacks what the agent can't do without.
    """
    if not path:
        raise ValueError("%s must name the agent's configuration (JSON)" % env.AGENT_SPEC)
    spec = from_json(AgentSpec, Path(path).read_bytes())
    for name in ("command", "directory", "key_file", "address"):
        if not getattr(spec, name):
            raise ValueError("%s: %s is missing" % (path, name))
    Path(spec.directory).mkdir(parents=True, exist_ok=True)
    return spec


def _run(
    spec: AgentSpec,
    gate: Gate,
    temporary: Path,
    outlet: Outlet,
    say: Callable[[str], None],
    starter: RankStarter,
    reap_seconds: float,
) -> int:
    end_leftovers(spec, say)
    guard = GuardProcess(temporary)

    def context(agent: Agent) -> Context:
        pump = OutputPump(outlet, agent.warn_from_thread)
        return Context(spec, starter, pump, guard, agent.emit, temporary, reap_seconds)

    async def run() -> int:
        return await Agent(spec, gate.boot_id, gate, context, say).run()

    return asyncio.run(run())


def end_leftovers(spec: AgentSpec, say: Callable[[str], None]) -> None:
    """Ranks of an agent that ran here before; recorded with start times, so that no stranger is hit."""
    path = Path(spec.directory, "ranks.json")
    try:
        recorded = json.loads(path.read_bytes())["ranks"].values()
        pairs = [(int(entry["pid"]), int(entry["start_ticks"])) for entry in recorded]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # none, or not ours
    for pid, ticks in pairs:
        if reap.kill_recorded(pid, ticks):
            say("ended process %d, a rank of an earlier agent" % pid)


def _open_standard_streams() -> None:
    """Descriptors 0-2 must be taken, or a pipe of a rank would get their numbers."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return


def _short_directory() -> Path:
    """For unix sockets."""
    path = tempfile.mkdtemp(prefix="rtj-")
    if len(path) > _SOCKET_PATH_LIMIT:
        os.rmdir(path)
        path = tempfile.mkdtemp(prefix="rtj-", dir="/tmp")
    return Path(path)


def _sayer(errors: Outlet, worker: str) -> Callable[[str], None]:
    """The agent's own log: one line with the time, on standard error, never blocking."""

    def say(text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        errors.put(("%s [agent %s] %s\n" % (stamp, worker, text)).encode())

    return say


if __name__ == "__main__":
    sys.exit(main())
