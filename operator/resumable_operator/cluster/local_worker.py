"""One worker of a local cluster: an agent process with a directory and an address of its own.

The process is started in its own session and holds the read end of the cluster's lifeline: when the process
that holds the other end dies, however it dies, the agent ends its ranks and itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resumable_operator.cluster.local_files import read_hint, write_json
from resumable_operator.cluster.local_processes import (
    ProcessId,
    kill_worker_processes,
    rank_processes,
    start_ticks,
)
from resumable_operator.decide.observation import Disruption, Worker, WorkerPhase
from resumable_training.contract import env
from resumable_training.contract.assignment import AgentSpec
from resumable_training.contract.codec import to_plain

logger = logging.getLogger(__name__)

AGENT_COMMAND = (sys.executable, "-P", "-m", "resumable_training.agent")  # -P: not the user's queue.py
READY_POLL_SECONDS = 0.01
LOG_TAIL_BYTES = 2000
LOG_TAIL_LINES = 5


@dataclass
class LocalWorker:
    """What the cluster knows of one worker; ``view`` is what others see of it."""

    name: str
    job_key: str
    place: int
    incarnation: int
    directory: Path
    created_at: float
    phase: WorkerPhase = "pending"
    machine: str = ""
    address: str = ""
    port: int = 0
    deleting: bool = False
    deleting_since: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    disruption: Disruption | None = None
    schedulable_since: float | None = None
    process: asyncio.subprocess.Process | None = None
    identity: ProcessId | None = None
    kill_timer: asyncio.TimerHandle | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def view(self) -> Worker:
        """As the decisions see it."""
        return Worker(
            name=self.name,
            place=self.place,
            incarnation=self.incarnation,
            phase=self.phase,
            node=self.machine,
            address=self.address,
            agent_port=self.port,
            created_at=self.created_at,
            deleting=self.deleting,
            deleting_since=self.deleting_since,
            exit_code=self.exit_code,
            reason=self.reason,
            message=self.message,
            disruption=self.disruption,
            schedulable_since=self.schedulable_since,
        )

    @property
    def ended(self) -> bool:
        return self.phase in ("succeeded", "failed")

    async def start(self, spec: AgentSpec, lifeline: int) -> None:
        """Start the agent; returns when the process exists.

        Raises:
            OSError: it cannot be started.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for stale in ("agent.json", "ranks.json"):
            (self.directory / stale).unlink(missing_ok=True)
        path = self.directory / "spec.json"
        write_json(path, to_plain(spec))
        with (self.directory / "agent.log").open("ab") as log:  # ranks' output has files of its own
            self.process = await asyncio.create_subprocess_exec(
                *AGENT_COMMAND,
                env={**os.environ, env.AGENT_SPEC: str(path)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                pass_fds=(lifeline,),
            )
        self.identity = ProcessId(self.process.pid, start_ticks(self.process.pid) or 0)

    async def ready(self) -> None:
        """Returns when the agent has written where it listens, or has ended."""
        assert self.process is not None
        while self.process.returncode is None:
            plain = read_hint(self.directory / "agent.json")
            if plain.get("pid") == self.process.pid:
                self.address, self.port = plain["address"], plain["port"]
                self.phase = "running"
                return
            await asyncio.sleep(READY_POLL_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def kill_all(self) -> list[int]:
        """SIGKILL the agent, its ranks and all that they started; returns what could not be ended. Blocks."""
        return kill_worker_processes(self.directory, self.processes())

    def processes(self) -> list[ProcessId]:
        """Agent and ranks, as far as they live."""
        known = [*([self.identity] if self.identity else []), *self.ranks().values()]
        return [process for process in known if process.alive()]

    def ranks(self) -> dict[int, ProcessId]:
        """Ranks that it runs, or ran last."""
        return rank_processes(self.directory)

    def log_tail(self) -> str:
        """Last lines of the agent's own output."""
        path = self.directory / "agent.log"
        if not path.exists():
            return ""
        tail = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return "\n".join(tail.splitlines()[-LOG_TAIL_LINES:])
