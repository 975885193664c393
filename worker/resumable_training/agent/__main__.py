"""``python -m resumable_training.agent [-- COMMAND...]``: wiring.

Configured by RESUMABLE_AGENT_SPEC: JSON, or the path of a file with it. The command of a rank is what follows
``--``, or else the configuration's. Exit codes: 0 all that was asked is done; 1 ranks failed in a drain, or
the agent can't go on; 2 it was not started right; 143 ended by SIGTERM with no ranks to ask.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Callable, Optional, Sequence, Tuple

from resumable_training.agent import reap, surroundings
from resumable_training.agent.auth import Gate
from resumable_training.agent.context import REAP_SECONDS, Context
from resumable_training.agent.core import EXIT_FAILED, EXIT_SIGTERM, Agent
from resumable_training.agent.guarding import GuardProcess
from resumable_training.agent.keeper import Keeper
from resumable_training.agent.outlet import Outlet
from resumable_training.agent.output import OutputPump
from resumable_training.agent.preload import PreloadStarter
from resumable_training.agent.ranks import RankStarter
from resumable_training.agent.trackers import Trackers
from resumable_training.contract import env
from resumable_training.contract.assignment import AgentSpec
from resumable_training.contract.codec import from_json

EXIT_USAGE = 2


def main(starter: Optional[RankStarter] = None, reap_seconds: float = REAP_SECONDS) -> int:
    """Read the configuration, run the agent, return its exit code."""
    signal.signal(
        signal.SIGTERM, _leave
    )  # until the loop takes over: the kernel spares a PID 1 that has none
    _open_standard_streams()
    try:
        spec = read_spec(os.environ.get(env.AGENT_SPEC, ""), sys.argv[1:])
        gate = Gate(Path(spec.key_file), secrets.token_hex(8))  # kept in status, for each worker
    except (OSError, ValueError) as error:
        sys.stderr.write("agent: %s\n" % error)
        return EXIT_USAGE
    outlet, errors = Outlet(1), Outlet(2)
    say = _sayer(errors, spec.worker)
    try:
        os.environ.update(surroundings.amend(os.environ, Path(spec.directory)))
        temporary = surroundings.socket_directory(os.environ, Path(spec.directory))
        try:
            return _run(spec, gate, temporary, outlet, say, starter, reap_seconds)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        say("cannot go on: %s" % error)
        return EXIT_FAILED
    finally:
        outlet.flush(1.0)
        errors.flush(1.0)


def read_spec(text: str, arguments: Sequence[str] = ()) -> AgentSpec:
    """The configuration; ``text`` is JSON or a path, ``arguments`` end in the command if ``--`` is there.

    Raises:
        OSError: it can't be read, or the scratch directory can't be made.
        ValueError: it is not an AgentSpec, or lacks what the agent can't do without.
    """
    if not text:
        raise ValueError(
            "%s must hold the agent's configuration (JSON), or name a file of it" % env.AGENT_SPEC
        )
    inline = text.lstrip().startswith("{")
    spec = from_json(AgentSpec, text.encode() if inline else Path(text).read_bytes())
    command = _command(arguments)
    if command:
        spec = dataclasses.replace(spec, command=command)
    for name in ("command", "directory", "key_file", "address"):
        if not getattr(spec, name):
            raise ValueError("%s: %s is missing" % (env.AGENT_SPEC if inline else text, name))
    Path(spec.directory).mkdir(parents=True, exist_ok=True)
    return spec


def _command(arguments: Sequence[str]) -> Tuple[str, ...]:
    if arguments and arguments[0] != "--":
        raise ValueError("unknown argument %r; the command of a rank follows --" % arguments[0])
    return tuple(arguments[1:])


def _leave(*_: object) -> None:
    os._exit(EXIT_SIGTERM)


def _run(
    spec: AgentSpec,
    gate: Gate,
    temporary: Path,
    outlet: Outlet,
    say: Callable[[str], None],
    starter: Optional[RankStarter],
    reap_seconds: float,
) -> int:
    end_leftovers(spec, say)
    guard = GuardProcess(temporary)
    keeper = Keeper(str(temporary / "keeper.sock"), guard.remove, say)
    trackers = Trackers(guard.remove)

    def context(agent: Agent) -> Context:
        pump = OutputPump(outlet, agent.warn_from_thread, spec.log_bytes)
        starts = starter or PreloadStarter(spec, temporary, pump, guard, agent.warn, say)
        return Context(spec, starts, pump, guard, agent.emit, temporary, keeper, trackers, reap_seconds)

    async def run() -> int:
        return await Agent(spec, gate.boot_id, gate, context, say).run()

    try:
        return asyncio.run(run())
    finally:
        keeper.close()


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


def _sayer(errors: Outlet, worker: str) -> Callable[[str], None]:
    """The agent's own log: one line with the time, on standard error, never blocking."""

    def say(text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
        errors.put(("%s [agent %s] %s\n" % (stamp, worker, text)).encode())

    return say


if __name__ == "__main__":
    sys.exit(main())
