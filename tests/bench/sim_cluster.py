"""The simulator's process: agents and kubelets in one event loop, told what to do over a unix socket.

``python sim_cluster.py SOCKET CONNECTION`` with the connection to the API server as JSON. Each line on the
socket is a command with its answer; ``Simulator`` is the other end, for ``bench_operator``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sim_agents import Fleet, SimAgent
from sim_pods import KubeClient, Pods

from bed.processes import Component, wait_until

Raw = dict[str, Any]

AGENT_PORT = 8470  # of all pods
LAG_SECONDS = 0.05
RECOVERY_SECONDS = 60.0
WAY = ("stopped", "created", "runs", "followed", "assigned")  # first times of these after a failure, in turn
START_SECONDS = 60.0


# ---- inside the process ------------------------------------------------------------------------------


@dataclass
class Recovery:
    """A struck job until all agents of its next attempt have their assignments.

    Attributes:
        way: when it was first seen that a survivor was told to stop, the replacement's pod was created and
            then runs, its agent was asked for its events, and an agent got its assignment.
    """

    job: str
    attempt: int  # that was struck
    way: dict[str, float] = field(default_factory=dict)
    taken: set[SimAgent] = field(default_factory=set)  # agents that have the next one's
    size: int = 0
    done: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def told(self, agent: SimAgent, attempt: int, members: int) -> None:
        if attempt <= self.attempt:
            return
        self.noted("assigned")
        self.taken = {other for other in self.taken if other.attempt == attempt} | {agent}
        self.size = members
        if len(self.taken) == members and not self.done.done():
            self.done.set_result(time.monotonic())

    def noted(self, what: str) -> None:
        self.way.setdefault(what, time.monotonic())

    def stages(self, failed: float, done: float) -> dict[str, float]:
        """Seconds that led to each of the moments; those of one that was not seen are the next one's."""
        moments = sorted((self.way[what], what) for what in WAY if what in self.way)
        found, before = {}, failed
        for at, what in [*moments, (done, "all assigned")]:
            found[what], before = max(0.0, at - before), max(at, before)
        return found


class Cluster:
    """What the commands act on."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.pods: Pods
        self._recoveries: dict[str, Recovery] = {}
        self._lags: list[float] = []
        self._random = random.Random(1)

    def told(self, agent: SimAgent, attempt: int, members: int) -> None:
        if recovery := self._recoveries.get(agent.job):
            recovery.told(agent, attempt, members)

    def noted(self, agent: SimAgent, what: str) -> None:
        if recovery := self._recoveries.get(agent.job):
            recovery.noted(what)

    async def watch_lag(self) -> None:
        """How late this very process is: its part in what it measures."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            self._lags.append(time.monotonic() - began - LAG_SECONDS)

    # ---- commands --------------------------------------------------------------------------------

    async def facts(self) -> Raw:
        """Counts as they are now. ``agents``: also those that are dead, while their pods are there."""
        jobs = self._jobs()
        return {
            "jobs": len(jobs),
            "agents": len(self.fleet.agents),
            "followed": sum(agent.alive and bool(agent.streams) for agent in self.fleet.agents.values()),
            "streams": self.fleet.streams(),
            "training": sum(all(agent.trains for agent in agents) for agents in jobs.values()),
            "agents_training": sum(agent.trains for agents in jobs.values() for agent in agents),
        }

    async def mark(self) -> Raw:
        """Forget which agents were asked for their events, and how late this process was."""
        self.fleet.mark()
        self._lags.clear()
        return {}

    async def seen(self) -> Raw:
        """Since the mark: jobs of which an agent was asked for its events, and agents; the last times."""
        opened = self.fleet.opened
        first: dict[str, float] = {}
        for agent, at in opened.items():
            first[agent.job] = min(at, first.get(agent.job, at))
        lags = sorted(self._lags) or [0.0]
        return {
            "jobs": len(first),
            "jobs_at": max(first.values(), default=0.0),
            "agents": len(opened),
            "agents_at": max(opened.values(), default=0.0),
            "lag_p99": lags[int(0.99 * (len(lags) - 1))],
            "lag_max": lags[-1],
        }

    async def strike(self, jobs: list[str], rate: float) -> list[Raw]:
        """Fail one worker of each of these jobs, so many a second on average; what came of each."""
        runs = []
        for job in jobs:
            runs.append(asyncio.create_task(self._strike(job)))
            await asyncio.sleep(self._random.expovariate(rate))
        return list(await asyncio.gather(*runs))

    async def _strike(self, job: str) -> Raw:
        async with asyncio.timeout(RECOVERY_SECONDS):
            while not (members := self._members(job)):
                await asyncio.sleep(LAG_SECONDS)
        victim = self._random.choice(members)
        recovery = self._recoveries[job] = Recovery(job, victim.attempt)
        patched, failed = await self.pods.strike(victim)
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                done = await recovery.done
        except TimeoutError:
            return {"job": job, "seconds": None, "size": len(members), "size_after": 0}
        finally:
            del self._recoveries[job]
        return {
            "job": job,
            "seconds": done - failed,
            "with_write_seconds": done - patched,
            "size": len(members),
            "size_after": recovery.size,
            "stages": recovery.stages(failed, done),
        }

    def _members(self, job: str) -> list[SimAgent]:
        """Agents of the attempt that trains; empty while the job recovers from an earlier strike."""
        agents = sorted(self._jobs().get(job, ()), key=lambda agent: agent.worker)
        members = [agent for agent in agents if agent.state == "running"]
        whole = job not in self._recoveries and all(agent.trains for agent in members)
        return members if whole else []

    def _jobs(self) -> dict[str, list[SimAgent]]:
        jobs: dict[str, list[SimAgent]] = {}
        for agent in self.pods.agents():
            if agent.alive:
                jobs.setdefault(agent.job, []).append(agent)
        return jobs


def widen_file_limit() -> None:
    """A connection for each agent."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def command_server(path: str, target: object) -> asyncio.Server:
    """Listens at ``path``; each line that comes is a call of a method of ``target``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            command = json.loads(line)
            call: Callable[..., Any] = getattr(target, command.pop("do"))
            writer.write(json.dumps(await call(**command)).encode() + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(answer, path, limit=1 << 20)


async def serve(path: str, connection: Raw) -> None:
    widen_file_limit()
    cluster = Cluster()
    async with AsyncExitStack() as stack:
        api = KubeClient(connection["url"], connection["token"], connection["ca_file"])
        stack.push_async_callback(api.close)
        cluster.pods = Pods(api, cluster.fleet, connection["operator_namespace"], cluster.told, cluster.noted)
        await stack.enter_async_context(await cluster.fleet.serve(AGENT_PORT))
        await stack.enter_async_context(await command_server(path, cluster))
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.pods.run())
            group.create_task(cluster.watch_lag())


# ---- the other end -----------------------------------------------------------------------------------


class Simulator:
    """The simulator as a process of its own. Use as ``with``."""

    program = Path(__file__)  # takes the socket's path, and the connection

    def __init__(self, directory: Path, **connection: str) -> None:
        path = directory / "sim.sock"
        argv = [sys.executable, self.program, str(path), json.dumps(connection)]
        self._running = Component.start(argv, directory / "simulator.log", {**os.environ})
        self._socket = socket.socket(socket.AF_UNIX)
        wait_until(lambda: self._listens(str(path)), START_SECONDS, "the simulator")
        self._lines = self._socket.makefile("r")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()
        self._running.kill()

    @property
    def pid(self) -> int:
        return self._running.process.pid

    def _listens(self, path: str) -> bool:
        self._running.require_running()
        return self._socket.connect_ex(path) == 0

    def do(self, command: str, **arguments: Any) -> Any:
        """One command of ``Cluster``.

        Raises:
            RuntimeError: the simulator has ended; with its last words.
        """
        self._socket.sendall(json.dumps({"do": command, **arguments}).encode() + b"\n")
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"the simulator has ended:\n{self._running.tail(60)}")
        return json.loads(line)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
